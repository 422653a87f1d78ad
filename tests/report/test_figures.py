"""From requests to figures: runs that are small enough to be computed by hand, and instants that never came, of which no figure
is made.

By hand: a step takes 1000 µs, 10 more per prefill token, 100 more per decode. Blocks hold 16 tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_rows import BULK, INTERACTIVE, NEVER, results_of

import maitred
from maitred.core.request import PriorityClass, Request
from maitred.instance import InstanceConfig
from maitred.instance.latency import LinearLatency
from maitred.report import By, Slo, summarise, write_metrics, write_results
from maitred.report.export import to_frame, write_requests
from maitred.report.latencies import request_times
from maitred.report.panels import latency_panels
from maitred.report.request_statistics import request_latencies
from maitred.report.slo import meets_slo
from maitred.sim import Outcome, Results
from maitred.workload import Job
from maitred.workload.prefix_keys import GroupPrefixKeys

SLO: Final = Slo(ttft_ms=2, tpot_ms=2)


def run(jobs: Sequence[Job], **instance: Any) -> maitred.Result:
    said: dict[str, Any] = {"latency": LinearLatency(beta=(1000, 10, 100)), "block_size_in_tokens": 16}
    return maitred.simulate(jobs, instance=InstanceConfig(**said, **instance), slo=SLO)


def job(number: int, arrival: int, prompt: int, answer: int, **said: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=prompt, **said), answer)


@pytest.fixture(scope="module")
def crowded() -> maitred.Result:
    """Three requests and four blocks.

    0..1640     A and B compute their prompts, 32 tokens each, and fill all blocks; first tokens
    1640..6040  A's next token needs a block, so B loses its two; four steps of 1100, and A has its five tokens
                C has come at 1000; it fits, and waits behind B, which needs three blocks
    6040..7530  B computes its 32 tokens again and that of its first one, C its 16: 1000 + 490; C is done
    7530..8630  B's third token
    """
    jobs = [
        job(0, 0, 32, 5, tenant="acme", priority_class=PriorityClass.INTERACTIVE, model="small"),
        job(1, 0, 32, 3, tenant="globex", priority_class=PriorityClass.BULK, model="large"),
        job(2, 1_000, 16, 1, tenant="acme", priority_class=PriorityClass.BULK, model="small"),
    ]
    return run(jobs, total_kv_blocks=4)


def test_latencies(crowded: maitred.Result) -> None:
    frame = crowded.to_frame()
    assert frame["ttft_us"].to_list() == [1_640, 1_640, 6_530]
    assert frame["e2e_us"].to_list() == [6_040, 8_630, 6_530]
    assert frame["tpot_us"].to_list() == [1_100, (8_630 - 1_640) / 2, None]
    assert frame["scheduled_at_us"].to_list() == [0, 6_040, 6_040]
    total = crowded.summary().total
    assert total.ttft is not None
    assert total.ttft.mean == (1_640 + 1_640 + 6_530) / 3
    assert total.scheduling_delay is not None
    assert total.scheduling_delay.mean == (0 + 6_040 + 5_040) / 3


def test_gaps_are_counted_one_by_one(crowded: maitred.Result) -> None:
    """A has four gaps of 1100; B one from 1640 to 7530, and one of 1100. The median is within half a percent."""
    itl = crowded.summary().all_instances.itl
    assert itl is not None
    assert itl.mean == (5 * 1_100 + 5_890) / 6
    assert itl.p50 == pytest.approx(1_100, rel=0.005)
    of_tenants = {label: group.completed_itl_mean for label, group in crowded.summary().by[By.TENANT].items()}
    assert of_tenants == {"acme": 1_100, "globex": (5_890 + 1_100) / 2}
    assert crowded.summary().total.completed_itl_mean == itl.mean


def test_work_that_a_preemption_cost(crowded: maitred.Result) -> None:
    """The prompt of B. The KV of its first token had not been computed before."""
    total = crowded.summary().total
    assert (total.preemptions, total.wasted_tokens) == (1, 32)
    assert total.waste == 32 / (80 + 9 + 32)
    assert crowded.summary().by[By.TENANT]["globex"].wasted_tokens == 32


def test_goodput_and_attainment(crowded: maitred.Result) -> None:
    """A is within both targets, B is too slow between its tokens, C begins too late."""
    summary = crowded.summary()
    assert summary.total.attainment == 1 / 3
    assert summary.per_second(summary.total.within_slo) == pytest.approx(1e6 / 8_630)
    per_class = {label: group.attainment for label, group in summary.by[By.CLASS].items()}
    assert per_class == {"interactive": 1, "bulk": 0}
    per_model = {label: group.attainment for label, group in summary.by[By.MODEL].items()}
    assert per_model == {"small": 1 / 2, "large": 0}


def test_fairness_starvation_and_use(crowded: maitred.Result) -> None:
    """Six tokens and three: 81 / (2 · 45). C waited 5040 before it ran at all. There was a step at every instant."""
    summary = crowded.summary()
    assert summary.fairness == 0.9
    assert summary.total.longest_wait == 5_040
    assert summary.all_instances.utilisation == 1
    assert summary.all_instances.steps == 1 + 4 + 1 + 1


def test_the_same_in_every_file(crowded: maitred.Result, tmp_path: Path) -> None:
    for name in ("r.parquet", "r.csv", "r.json"):
        with (tmp_path / name).open("wb") as file:
            write_results(crowded.rows, tmp_path / name, file.write)
    whole = crowded.to_frame()
    assert pl.read_parquet(tmp_path / "r.parquet").equals(whole)
    columns = ["request_id", "ttft_us", "e2e_us", "input_tokens", "output_tokens"]
    assert pl.read_csv(tmp_path / "r.csv").select(columns).rows() == whole.select(columns).rows()
    assert json.loads((tmp_path / "r.json").read_text()) == whole.select(columns).to_dicts()
    written: list[bytes] = []
    write_metrics(crowded.summary(), written.append)
    figures = json.loads(b"".join(written))
    assert figures["total_wasted_tokens"] == 32
    assert figures["fairness_jain_index"] == 0.9
    assert figures["starvation_age_ms"] == 5.04
    assert figures["per_tenant"]["globex"]["tpot_mean_ms"] == figures["per_model"]["large"]["itl_mean_ms"] == 3.495


def test_what_is_found_in_the_cache_and_an_instance_that_rests() -> None:
    """Two blocks of 48 tokens are those of the first prompt. 1480 of work, and from 10,000 on 1160 more."""
    prompts = [GroupPrefixKeys(7, 32, number, 48) for number in range(2)]
    jobs = [job(number, number * 10_000, 48, 1, prefix=prefix) for number, prefix in enumerate(prompts)]
    summary = run(jobs, enable_prefix_caching=True).summary()
    assert summary.total.hit_rate == 32 / 96
    assert summary.all_instances.utilisation == (1_480 + 1_160) / 11_160
    assert run(jobs).summary().total.hit_rate == 0


def test_a_step_that_outlasts_the_run_is_no_more_than_the_run() -> None:
    """Its only client leaves at 1500, in the middle of a step that ends at 1640."""
    result = run([job(0, 0, 64, 5, deadline=1_500)])
    assert result.rows.outcome.tolist() == [Outcome.TIMED_OUT]
    assert result.rows.end == 1_500
    assert result.summary().all_instances.utilisation == 1


SECOND = 1_000_000
# Completed 30 s after the start of the run with 20 tokens by its usage, and none of them seen; another one is as usual.
UNSEEN = (0, INTERACTIVE, 30 * SECOND, NEVER, NEVER, 31 * SECOND, 10, 20, Outcome.COMPLETED, NEVER, 0, 0, 0)
USUAL = (1, BULK, 30 * SECOND, NEVER, 30_100_000, 31 * SECOND, 10, 10, Outcome.COMPLETED, NEVER, 0, 0, 0)


@pytest.fixture
def measured() -> Results:
    return results_of((UNSEEN, USUAL), 31 * SECOND)


def test_a_request_whose_tokens_were_not_seen_has_no_ttft_and_no_tpot(measured: Results) -> None:
    found = {name: column.tolist() for name, column in request_latencies(measured).items()}
    assert found == {"ttft": [100_000], "tpot": [100_000], "e2e": [SECOND, SECOND], "scheduling_delay": []}
    total = summarise(measured).total
    assert total.itl_mean == 100_000


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(ttft_ms=1_000), [False, True]),
        (Slo(tpot_ms=1_000), [False, True]),
        (Slo(tpot_ms=3_600_000), [False, True]),
        (Slo(e2e_ms=2_000), [True, True]),
    ],
)
def test_it_meets_no_target_that_nobody_has_seen_it_meet(measured: Results, slo: Slo, met: list[bool]) -> None:
    assert meets_slo(measured, slo).tolist() == met


def test_files_say_that_there_is_none(measured: Results) -> None:
    frame = to_frame(measured)
    assert frame["ttft_us"].to_list() == [None, 100_000]
    assert frame["tpot_us"].to_list() == [None, 100_000.0]
    assert frame["e2e_us"].to_list() == [SECOND, SECOND]
    pieces: list[bytes] = []
    write_requests(measured, pieces.append)
    assert [row["ttft_us"] for row in json.loads(b"".join(pieces))] == [None, 100_000]


def test_charts_leave_it_out(measured: Results) -> None:
    for panel in latency_panels(measured, Slo()):
        assert all((curve.x > 0).all() for curve in panel.curves), panel.title


def test_tpot_ends_with_the_last_token_that_was_seen(measured: Results) -> None:
    seen = msgspec.structs.replace(measured, last_token=np.array([NEVER, 30_550_000]))
    assert request_latencies(seen)["tpot"].tolist() == [50_000]
    assert summarise(seen).total.itl_mean == 50_000
    at_once = msgspec.structs.replace(measured, last_token=np.array([NEVER, 30_100_000]))
    assert request_latencies(at_once)["tpot"].tolist() == []
    assert meets_slo(at_once, Slo(tpot_ms=0.001)).tolist() == [False, True]


INSTANTS = st.one_of(st.just(NEVER), st.integers(0, 50))


@st.composite
def rows(draw: st.DrawFn) -> tuple[int, ...]:
    """A row in which any instant may be missing."""
    arrival = draw(st.integers(0, 50))
    scheduled, first, finished = (at if at == NEVER else arrival + at for at in (draw(INSTANTS) for _ in range(3)))
    finished = max(finished, first) if finished != NEVER else NEVER
    outcome = draw(st.sampled_from(sorted(Outcome)))
    return (0, INTERACTIVE, arrival, scheduled, first, finished, 1, draw(st.integers(0, 9)), outcome, NEVER, 0, 0, 0)


@given(st.lists(rows(), min_size=1, max_size=6), st.sampled_from(["ttft", "tpot", "e2e"]))
def test_no_latency_is_negative_or_of_a_missing_instant(some: list[tuple[int, ...]], target: str) -> None:
    results = results_of(tuple(some), 200)
    times = request_times(results)
    missing = {
        "ttft": results.first_token < 0,
        "tpot": (results.first_token < 0) | (results.finished < 0),
        "e2e": results.finished < 0,
        "scheduling_delay": results.scheduled < 0,
    }
    for name, absent in missing.items():
        column = getattr(times, name)
        assert np.isnan(column[absent]).all()
        assert not (column < 0).any()
    met = meets_slo(results, Slo(**{f"{target}_ms": 10**6}))
    may_have_none = results.output_tokens <= 1 if target == "tpot" else np.zeros(len(results), dtype=bool)
    assert not (met & missing[target] & ~may_have_none).any()
