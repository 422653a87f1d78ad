"""The table of engines: which rows of a page count, and how they combine. Pages are as the engines write them (SGLang 0.5.23
with --enable-priority-scheduling and --enable-metrics-for-all-schedulers, vLLM 0.32, TensorRT-LLM's iterations)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec
import pytest

from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.engines.metrics import parse_engine_report
from maitred.scheduler.engines.report import EngineReport
from maitred.scheduler.engines.server_info import parse_reported_slots


def report(page: str) -> EngineReport:
    found = parse_engine_report(page.encode())
    assert found is not None
    return found


def sglang(rows: Iterator[tuple[str, int, int]]) -> str:
    """Return a page with these rows: labels, running, waiting."""
    return "".join(
        f'sglang:num_running_reqs{{engine_type="unified",model_name="m",{labels}}} {running}.0\n'
        f'sglang:num_queue_reqs{{engine_type="unified",model_name="m",{labels}}} {waiting}.0\n'
        f'sglang:token_usage{{engine_type="unified",model_name="m",{labels.partition(",priority")[0]}}} 0.25\n'
        for labels, running, waiting in rows
    )


PRIORITIES = (("", 4, 2), ("0", 1, 2), ("1", 3, 0))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("priorities", [PRIORITIES, PRIORITIES[:1], PRIORITIES[1:]])
def test_each_request_of_sglang_counts_once(processes: int, stages: int, ranks: int, priorities: Any) -> None:
    """Whatever it writes: a total beside its priorities, every tensor-parallel rank, every pipeline stage; its data-parallel
    ranks add up."""
    page = sglang(
        (f'dp_rank="{dp}",pp_rank="{pp}",tp_rank="{dp * processes + tp}",priority="{name}"', running, waiting)
        for dp, pp, tp, (name, running, waiting) in product(range(ranks), range(stages), range(processes), priorities)
    )
    found = report(page)
    assert (found.running, found.waiting, found.kv_usage) == (4 * ranks, 2 * ranks, 0.25)
    assert [(m.running, m.waiting) for m in found.memories] == [(4, 2)] * ranks
    reading = found.reading
    assert reading is not None
    assert (reading.running, reading.waiting) == (4 * ranks, 2 * ranks)


def test_ranks_of_sglang_without_a_label_of_data_parallelism_are_copies() -> None:
    assert report(sglang((f'tp_rank="{tp}"', 5, 1) for tp in (2, 10, 1))).running == 5


def test_steps_of_sglang_are_seen_in_the_counter_that_grows_with_each() -> None:
    """generation_tokens_total grows only when a request has ended."""
    page = "sglang:num_running_reqs 1\nsglang:generation_tokens_total 700\n"
    assert report(page).progress == 700
    page += "".join(
        f'sglang:realtime_tokens_total{{mode="{mode}",tp_rank="{tp}"}} {n}\n'
        for tp in (0, 1)
        for mode, n in (("decode", 40), ("prefill_compute", 2))
    )
    assert report(page).progress == 42


def test_rows_of_vllm_are_parts() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} 3.0\n'
        f'vllm:num_requests_waiting{{engine="{engine}",model_name="m"}} 5.0\n'
        f'vllm:num_requests_waiting_by_reason{{engine="{engine}",model_name="m",reason="capacity"}} 2.0\n'
        f'vllm:num_requests_waiting_by_reason{{engine="{engine}",model_name="m",reason="deferred"}} 3.0\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} 0.{engine + 1}\n'
        for engine in (0, 1, 2)
    )
    found = report(page)
    assert (found.running, found.waiting, found.blocked) == (9, 15, 6)
    assert found.kv_usage == pytest.approx(0.2)


def test_a_row_that_stands_twice_counts_once() -> None:
    assert report("vllm:num_requests_running 3\nvllm:num_requests_running 4\n").running == 4


def test_rows_that_differ_in_an_unknown_label_are_unknown_and_said() -> None:
    page = "".join(f'sglang:num_running_reqs{{replica="{n}"}} 3\nsglang:num_queue_reqs 2\n' for n in (0, 1))
    found = report(page)
    assert (found.running, found.waiting, found.reading) == (None, 2, None)
    assert [misfit.partition(",")[0] for misfit in found.misfits] == [
        "the rows of sglang:num_running_reqs differ in the label `replica`"
    ]
    assert report('sglang:num_running_reqs{replica="0"} 3\n').misfits == ()


def test_parts_of_a_counter_add_up_whatever_tells_them_apart() -> None:
    page = "vllm:num_requests_running 0\n" + "".join(
        f'vllm:request_success_total{{engine="{engine}",finished_reason="{reason}",odd="{reason}"}} 2\n'
        for engine, reason in product((0, 1), ("stop", "length"))
    )
    assert report(page).counts.requests_completed == 8


def test_llama_cpp() -> None:
    found = report("llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n")
    assert (found.engine, found.running, found.waiting, found.kv_usage) == ("llamacpp", 2, 3, None)


def iteration(**said: Any) -> dict[str, Any]:
    return {"iter": 1, "maxNumActiveRequests": 2048, "numActiveRequests": 5, "numQueuedRequests": 3, **said}


@pytest.mark.parametrize(
    ("said", "slots"),
    [
        ({"maxBatchSizeRuntime": 32, "maxBatchSizeStatic": 64}, 32),
        ({"maxBatchSizeRuntime": 0, "maxBatchSizeStatic": 64}, 64),
        ({"maxBatchSizeRuntime": 0, "maxBatchSizeStatic": 0}, 2048),  # its PyTorch backend
        ({}, 2048),
        ({"maxNumActiveRequests": "many"}, None),
        ({"maxNumActiveRequests": -1}, None),
    ],
)
def test_slots_of_tensorrt_llm_are_the_batch_of_its_runtime(said: dict[str, Any], slots: int | None) -> None:
    page = msgspec.json.encode([iteration(maxBatchSizeRuntime=7), iteration(**said)]).decode()
    assert report(page).slots == slots


def test_load_of_tensorrt_llm() -> None:
    kv = {"maxNumBlocks": 1000, "usedNumBlocks": 600, "tokensPerBlock": 64}
    found = report(msgspec.json.encode([iteration(numActiveRequests=9), iteration(kvCacheStats=kv)]).decode())
    assert (found.engine, found.running, found.waiting, found.kv_usage, found.capacity) == ("trtllm", 5, 3, 0.6, 64_000)
    assert not report("[]").has_load
    assert parse_engine_report(b"[1]") is None


def test_each_attention_rank_of_tensorrt_llm_has_a_batch() -> None:
    """Each row repeats what is active in all; the queue stands in the first."""
    ranks = [
        iteration(
            attentionDpRank=rank,
            maxBatchSizeRuntime=16,
            numQueuedRequests=0 if rank else 3,
            inflightBatchingStats={"numScheduledRequests": 4 + rank},
        )
        for rank in (0, 1)
    ]
    found = report(msgspec.json.encode([*ranks, *ranks]).decode())
    assert (found.slots, found.running, found.waiting) == (32, 9, 3)


@pytest.mark.parametrize(
    ("parallel", "slots"),
    [
        ({"data_parallel_size": 4}, 192),
        ({"data_parallel_size": 4, "data_parallel_external_lb": True}, 48),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_hybrid_lb": True}, 96),
        ({"data_parallel_size": None}, 48),
        (None, 48),
    ],
)
def test_slots_of_vllm_count_for_each_data_parallel_engine_behind_the_address(parallel: Any, slots: int) -> None:
    config = {"scheduler_config": {"max_num_seqs": 48}, "parallel_config": parallel}
    assert parse_reported_slots(msgspec.json.encode({"vllm_config": config})) == slots


@pytest.mark.parametrize("waiting", ['{replica="0"} 3\nvllm:num_requests_waiting{replica="1"} 3', " NaN", " 1e9"])
def test_a_queue_that_is_not_known_is_not_empty(waiting: str) -> None:
    found = report(f"vllm:num_requests_running 4\nvllm:num_requests_waiting{waiting}\n")
    assert (found.running, found.waiting) == (4, None)
    backend = Backend(0, "http://a:1")
    backend.note_load(found)
    assert (backend.running, backend.waiting) == (4, None)
    backend.note_load(report("vllm:num_requests_running 4\n"))  # It has no such gauge until something has waited.
    assert (backend.running, backend.waiting) == (4, 0)


def test_a_sum_of_which_a_part_is_unknown_is_unknown() -> None:
    rows = "".join(f'vllm:num_requests_running{{engine="{rank}"}} {running}\n' for rank, running in enumerate((3, "NaN")))
    assert report(rows).running is None


@pytest.mark.parametrize("running", ["900000000000000.0", "1000001", "1e999", "-5", "NaN"])
def test_a_number_of_requests_that_no_engine_can_have_is_not_known(running: str) -> None:
    """It would pass for other clients' requests, which leave no slot."""
    found = report(f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {running}\nvllm:kv_cache_usage_perc 0.5\n")
    assert (found.running, found.waiting, found.reading) == (None, None, None)
    assert [(memory.running, memory.waiting) for memory in found.memories] == [(None, None)]
    assert found.kv_usage == 0.5
