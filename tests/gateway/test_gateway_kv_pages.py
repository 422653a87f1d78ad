"""What pages of engines say of their KV memory: the odd ones as well."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from maitred.scheduler.engines.kv_pages import parse_kv_report
from maitred.scheduler.engines.report import EngineReport, has_restarted
from maitred.scheduler.engines.server_info import parse_info_capacities

RECORDED = json.loads((Path(__file__).parents[1] / "vectors/thunderagent_metrics_parse.json").read_text())["results"]
"""What ThunderAgent's parsers return for odd pages, which is often wrong."""


def report(page: str, backend_type: Any = "auto", info_capacities: Sequence[int] = ()) -> EngineReport:
    found = parse_kv_report(page.encode(), backend_type, info_capacities)
    assert found is not None
    return found


def config(engine: str = "0", block_size: object = 16, blocks: object = 100, **labels: object) -> str:
    named = {"engine": engine, "block_size": block_size, "num_gpu_blocks": blocks, **labels}
    return "vllm:cache_config_info{" + ",".join(f'{k}="{v}"' for k, v in named.items() if v != "") + "} 1.0\n"


def usage(value: str, labels: str = '{engine="0",model_name="m"}') -> str:
    return f"vllm:kv_cache_usage_perc{labels} {value}\n"


@pytest.mark.parametrize(
    ("case", "page", "right"),
    [
        ("vllm kv 5.2e-05", usage("5.2e-05"), 5.2e-05),
        ("vllm kv 0.35", usage("0.35"), 0.35),
        ("vllm kv without labels", usage("0.25", ""), 0.25),
        ("vllm kv two engines 0.9/0.1", usage("0.9") + usage("0.1", '{engine="1"}'), 0.5),
        ("vllm old name gpu_cache_usage_perc 0.5", 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', 0.5),
        ("vllm NaN", "vllm:num_requests_running 1\n" + usage("NaN"), None),
    ],
)
def test_usage_on_the_odd_pages_of_the_reference(case: str, page: str, right: float | None) -> None:
    """The recorded values are wrong for all but one of these pages."""
    assert report(page).counts.kv_cache_usage_perc == right
    assert (RECORDED[case] == right) == (case == "vllm kv 0.35")


@pytest.mark.parametrize(
    ("case", "page", "right"),
    [
        ("vllm cache cfg two engines 100+100 blocks", config() + config("1"), 3200),
        ("vllm cache cfg None", config(blocks="None"), None),
        ("vllm cache cfg absent page -> capacity", "vllm:num_requests_running 0\n", None),
        (
            "vllm cache cfg num_gpu_blocks_override label first",
            'vllm:cache_config_info{num_gpu_blocks_override="None",block_size="16",num_gpu_blocks="10"} 1\n',
            160,
        ),
    ],
)
def test_capacity_on_the_odd_pages_of_the_reference(case: str, page: str, right: int | None) -> None:
    assert report(page).capacity == right
    assert (RECORDED[case] == right) == ("override" in case)


def test_requests_of_all_engines_and_reasons_are_summed() -> None:
    page = "".join(
        f'vllm:request_success_total{{engine="{engine}",finished_reason="stop"}} {n}\n' for engine, n in ((0, 3), (1, 4))
    )
    assert report(page).counts.requests_completed == 7 != RECORDED["vllm success two engines stop 3+4"]


def test_each_rank_is_a_memory() -> None:
    page = (
        config("0") + config("2", blocks=50) + usage("0.5") + usage("1e-1", '{engine="2",model_name="m"}')
        + 'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="2"} 1.0\n'
        + 'vllm:num_requests_waiting{engine="2"} 2.0\n'
    )  # fmt: skip
    found = [(m.rank, m.capacity, m.usage, m.running, m.waiting) for m in report(page).memories]
    assert found == [(0, 1600, 0.5, 3, None), (2, 800, 0.1, 1, 2)]
    assert report(page).capacity == 2400


def test_one_rank_without_a_capacity_leaves_the_other_known() -> None:
    found = report(config("0") + config("1", blocks="None"))
    assert [memory.capacity for memory in found.memories] == [1600, None]
    assert found.capacity is None


@pytest.mark.parametrize("engine", ["a", "1024", "-1", "1e3"])
def test_a_label_that_is_no_rank_makes_one_memory(engine: str) -> None:
    found = report(config("0") + config(engine))
    assert [(memory.rank, memory.capacity) for memory in found.memories] == [(None, 3200)]


def test_the_only_rank_of_an_engine_is_not_named() -> None:
    assert [memory.rank for memory in report(config("3")).memories] == [None]


def test_tokens_count_before_blocks() -> None:
    """Blocks of a hybrid model hold the tokens of some layers only."""
    assert report(config(kv_cache_size_tokens=1200)).capacity == 1200
    assert report(config(kv_cache_size_tokens="None")).capacity == 1600


@pytest.mark.parametrize("blocks", ["", "0", "-5", "nan", "inf", "1e300", "many"])
def test_blocks_that_make_no_sense_are_unknown(blocks: str) -> None:
    assert report(config(blocks=blocks)).capacity is None


def test_braces_quotes_and_time_stamps() -> None:
    page = 'vllm:kv_cache_usage_perc{model_name="a}b\\",engine=\\"9",engine="0"} 0.5 1700000000000\n'
    assert report(page).counts.kv_cache_usage_perc == 0.5


def test_labels_are_looked_for_once_in_each_word() -> None:
    """Looked for at each letter, they would stop the gateway for minutes."""
    page = f"vllm:kv_cache_usage_perc{{{'a' * 200_000}}} 0.5\n"
    assert report(page).counts.kv_cache_usage_perc == 0.5


def test_usage_is_at_most_all() -> None:
    assert report(usage("1.5")).counts.kv_cache_usage_perc == 1.0


def test_prefix_cache_hit_rate() -> None:
    page = "vllm:prefix_cache_queries_total 1000\nvllm:prefix_cache_hits_total 800\n"
    assert report(page).counts.prefix_cache_hit_rate == 0.8
    assert report("vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n").counts.prefix_cache_hit_rate is None


@pytest.mark.parametrize(
    ("info", "capacities"),
    [
        ({"max_total_num_tokens": 5}, [5]),
        ({"max_total_num_tokens": "7"}, [7]),
        ({"internal_states": [{"memory_usage": {"token_capacity": 9}}]}, [9]),
        ({"internal_states": [{"memory_usage": {"token_capacity": 3}}, {"memory_usage": {"token_capacity": 8}}]}, [3, 8]),
        ({"max_total_num_tokens": 100, "internal_states": [{"memory_usage": {"token_capacity": 90}}]}, [100]),
        ({"max_total_num_tokens": 100, "internal_states": [{}, {}]}, [100, 100]),
        ({"max_total_num_tokens": 100, "dp_size": 4}, [100] * 4),
        ({"server_info": {"max_total_num_tokens": 8}}, [8]),
        ({"server_info": {"internal_states": [{"memory_usage": {"token_capacity": "6"}}]}}, [6]),
        ({"internal_states": [{"memory_usage": {"token_capacity": 3}}, {}]}, ()),
        ({"max_total_num_tokens": 0}, ()),
        ({"max_total_num_tokens": True}, ()),
        ({"max_total_num_tokens": None, "internal_states": None}, ()),
        ({}, ()),
        ([], ()),
        ({"internal_states": "none"}, ()),
    ],
)
def test_what_server_info_says(info: object, capacities: Sequence[int]) -> None:
    assert parse_info_capacities(msgspec.json.encode(info)) == capacities


def test_no_json_is_no_server_info() -> None:
    assert parse_info_capacities(b"<html>") == ()
    assert parse_info_capacities(b'{"max_total_num_tokens": "\xff"}') == ()


def test_sglang() -> None:
    page = (
        'sglang:token_usage{model_name="m"} 5e-05\nsglang:num_running_reqs 2\nsglang:num_queue_reqs 1\n'
        "sglang:cache_hit_rate 0.5\nsglang:prompt_tokens_total 100\n"
    )
    found = report(page, info_capacities=[1000])
    assert [(m.rank, m.capacity, m.usage, m.running, m.waiting) for m in found.memories] == [(None, 1000, 5e-05, 2, 1)]
    assert found.counts.prefix_cache_hit_rate == 0.5
    assert report(page).capacity is None
    without_metrics = parse_kv_report(None, "auto", [1000])
    assert without_metrics is not None
    assert [(m.capacity, m.usage) for m in without_metrics.memories] == [(1000, None)]


def test_each_rank_of_sglang_is_a_memory() -> None:
    """The capacities are in no order, so each rank has the least of them."""
    page = "".join(
        f'sglang:token_usage{{dp_rank="{rank}",tp_rank="0"}} {usage}\n'
        f'sglang:num_running_reqs{{dp_rank="{rank}",tp_rank="0"}} {running}\n'
        f'sglang:num_queue_reqs{{dp_rank="{rank}",tp_rank="0"}} {rank}\n'
        for rank, usage, running in ((0, 0.5, 3), (1, 0.25, 4))
    )
    found = report(page, info_capacities=[1000, 900])
    assert [(m.rank, m.capacity, m.usage, m.running, m.waiting) for m in found.memories] == [
        (0, 900, 0.5, 3, 0),
        (1, 900, 0.25, 4, 1),
    ]
    assert (found.counts.num_requests_running, found.counts.kv_cache_usage_perc) == (7, 0.375)
    assert [m.capacity for m in report(page).memories] == [None, None]


def test_one_labelled_rank_of_sglang_is_all_that_there_is() -> None:
    found = report('sglang:token_usage{dp_rank="0"} 0.5\n', info_capacities=[1000, 900])
    assert [(m.rank, m.capacity) for m in found.memories] == [(None, 1900)]


def test_skyrl() -> None:
    engines: list[dict[str, object]] = [
        {"num_running_reqs": 2, "num_waiting_reqs": 1, "kv_cache_usage_pct": 50, "num_cumulative_preemption": 3},
        {"num_running_reqs": 4, "num_waiting_reqs": 0, "kv_cache_usage_pct": 100.0},
        {"error": "unreachable", "num_running_reqs": 9},
    ]
    found = report(json.dumps({"engines": engines}))
    assert [(m.capacity, m.usage, m.running, m.waiting) for m in found.memories] == [(400_000, 0.75, 6, 1)]
    assert found.counts.num_preemptions == 3


@pytest.mark.parametrize("page", ['{"engines": []}', '{"engines": [{"error": "x"}]}', '{"engines": 3}', "{}", '{"engines": ['])
def test_a_skyrl_without_engines_says_nothing(page: str) -> None:
    assert parse_kv_report(page.encode(), "auto") is None


@pytest.mark.parametrize(
    ("backend_type", "page", "is_read"),
    [
        ("vllm", config(), True),
        ("sglang", config(), False),
        ("skyrl", config(), False),
        ("vllm", "sglang:token_usage 0.5\n", False),
        ("sglang", "sglang:token_usage 0.5\n", True),
        ("vllm", '{"engines": [{}]}', False),
        ("skyrl", '{"engines": [{}]}', True),
        ("auto", "go_goroutines 5\n", False),
        ("auto", "", False),
    ],
)
def test_a_configured_type_is_the_only_one_that_is_read(backend_type: Any, page: str, is_read: bool) -> None:
    assert (parse_kv_report(page.encode(), backend_type) is not None) == is_read


@pytest.mark.parametrize(
    ("before", "after", "restarted"),
    [
        ("vllm:prompt_tokens_total 10\n", "vllm:prompt_tokens_total 12\n", False),
        ("vllm:prompt_tokens_total 10\n", "vllm:prompt_tokens_total 10\n", False),
        ("vllm:prompt_tokens_total 10\n", "vllm:prompt_tokens_total 0\n", True),
        ("vllm:request_success_total 10\n", "vllm:num_requests_running 0\n", False),  # not reported now
        ("vllm:num_requests_running 9\n", "vllm:num_requests_running 0\n", False),  # a gauge may fall
        (
            "process_start_time_seconds 1.7e9\nvllm:prompt_tokens_total 0\n",
            "process_start_time_seconds 1.70001e9\nvllm:prompt_tokens_total 0\n",
            True,
        ),
        ("sglang:generation_tokens_total 9\n", "sglang:generation_tokens_total 8\n", True),
    ],
)
def test_a_restart_shows_in_counters(before: str, after: str, restarted: bool) -> None:
    assert has_restarted(report(before), report(after)) == restarted
