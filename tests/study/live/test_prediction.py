"""A prediction: the requests as they were sent, and latencies from the plan."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from maitred import Candidate, ClusterConfig, InstanceConfig
from maitred.sim import Results, simulate
from maitred.study.live.prediction import as_measured, predict
from maitred.workload import Job
from maitred.workload.synthetic import synthetic

STEPS = InstanceConfig(max_num_seqs=8)


def planned() -> list[Job]:
    return list(synthetic(rate=9, num_requests=60, class_mix="interactive:1,bulk:2"))


def late(jobs: list[Job]) -> list[Job]:
    """Return the jobs, each sent up to 20 ms after its plan."""
    rng = Random(5)
    moved = [replace(job, request=replace(job.request, arrival=job.request.arrival + rng.randrange(20_000))) for job in jobs]
    return sorted(moved, key=lambda job: job.request.arrival)


def measured(jobs: list[Job]) -> Results:
    """Return what clients would have seen of an engine that is exactly as simulated, with a sender that was late."""
    seen = simulate(late(jobs), ClusterConfig(), STEPS)
    plan = {job.request.id: job.request.arrival for job in jobs}
    return replace(seen, queued=seen.arrival, arrival=np.array([plan[number] for number in seen.request_id.tolist()]))


def test_a_late_sender_is_no_error_of_the_prediction() -> None:
    found = list(predict(planned(), Candidate(instance=STEPS), measured(planned()), seed=42))
    assert {group.name for group in found} == {"all", "interactive", "bulk"}
    for group in found:
        assert [line.error for line in group.lines] == pytest.approx([0.0] * len(group.lines))


def test_jobs_that_were_not_sent_are_left_out() -> None:
    sent = as_measured(planned(), measured(planned()[:20]))
    assert isinstance(sent, list)
    assert {job.request.id for job in sent} == set(range(20))
