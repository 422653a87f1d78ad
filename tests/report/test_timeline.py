"""The timeline of the page: what it says of each request of a run with too little KV memory and few slots."""

from __future__ import annotations

import json
from html import unescape
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.instance import InstanceConfig
from maitred.report import Result, simulate
from maitred.report.page.timeline import timeline_html
from maitred.sim import ClusterConfig, Outcome
from maitred.workload.synthetic import synthetic


@pytest.fixture(scope="module")
def crowded() -> Result:
    workload = synthetic(
        rate=30,
        num_requests=120,
        input_tokens="uniform:50,300",
        output_tokens="uniform:20,120",
        class_mix="interactive:0.3,bulk:0.7",
    )
    return simulate(
        workload,
        ClusterConfig(capacity=12),
        InstanceConfig(max_num_seqs=16, total_kv_blocks=80),
        admission=AdmissionConfig(mode="priority", flavour="maitred", on_preempt="reject"),
    )


def timeline_of(result: Result) -> Any:
    return json.loads(unescape(timeline_html(result.rows).split('data-timeline="')[1].split('"')[0]))


def test_every_stretch_of_a_request_is_there(crowded: Result) -> None:
    rows, timeline = crowded.rows, timeline_of(crowded)
    assert len(timeline["requests"]) == len(rows) == 120
    assert rows.preemptions.sum() > 10
    for row, (request_id, group, outcome, arrival, admitted, ran, first, left, pauses, _) in enumerate(timeline["requests"]):
        assert request_id == rows.request_id[row]
        assert timeline["classes"][group] in ("interactive", "bulk")
        assert timeline["outcomes"][outcome] == Outcome(rows.outcome[row]).name.lower().replace("_", " ")
        assert len(pauses) == 2 * rows.preemptions[row]
        if left >= 0 and rows.outcome[row] == Outcome.COMPLETED:
            instants = [arrival, admitted, ran, *pauses, left]
            assert instants == sorted(instants)
            assert ran <= first <= left


def test_the_reasons_of_admission_are_there(crowded: Result) -> None:
    timeline = timeline_of(crowded)
    reasons = [timeline["reasons"][request[-1]] for request in timeline["requests"]]
    waited = [request[4] > request[3] for request in timeline["requests"]]
    assert sum(waited) > 10
    for reason, has_waited in zip(reasons, waited, strict=True):
        assert bool(reason) >= has_waited
        if has_waited:
            assert reason.startswith("queue: ")
            assert "; admit: " in reason
    rejected = [
        reason
        for reason, row in zip(reasons, crowded.rows.outcome, strict=True)
        if row in (Outcome.REJECTED, Outcome.PREEMPTED)
    ]
    assert all("reject: " in reason or "preempt" in reason for reason in rejected)


def test_of_many_requests_some_and_the_longest_waits() -> None:
    result = simulate(synthetic(rate=200, num_requests=3_000, input_tokens=200, output_tokens=20))
    timeline = timeline_of(result)
    ids = [request[0] for request in timeline["requests"]]
    waits = result.rows.first_token - result.rows.arrival
    assert 600 <= len(ids) <= 700
    assert ids == sorted(ids)
    assert set(result.rows.request_id[waits.argsort()[-100:]].tolist()) <= set(ids)
    assert "of 3,000: spread evenly, and the longest waits" in timeline_html(result.rows)


def test_a_run_without_samples_has_no_stretches(crowded: Result) -> None:
    plain = simulate(synthetic(rate=30, num_requests=5), sample_every=None)
    assert plain.rows.timelines is None
    assert len(timeline_of(plain)["requests"]) == 5


def test_of_a_measured_request_its_first_token_is_all_that_is_known(crowded: Result) -> None:
    rows = replace(crowded.rows, scheduled=np.full(len(crowded.rows), -1), timelines=None, is_measured=True)
    found = timeline_of(Result(rows, crowded.setup, crowded.slo))
    assert found["measured"] is True
    for _, _, _, arrival, admitted, began, first, *_ in found["requests"]:
        assert (admitted, began) == (arrival, first)
