"""Samples lie evenly over a run of any length, and their number is bounded."""

from __future__ import annotations

import numpy as np
import pytest

from maitred.core.request import Request
from maitred.sim import ClusterConfig, simulate
from maitred.workload import Job


@pytest.mark.parametrize("seconds", [1, 60, 3600])
def test_however_long_the_run(seconds: int) -> None:
    jobs = [Job(Request(id=number, arrival=number * seconds * 10_000, prompt_tokens=10), 5) for number in range(101)]
    samples = simulate(jobs, ClusterConfig(num_instances=2), sample_every=1_000).samples
    assert samples is not None
    distances = np.diff(samples.at)
    assert len(set(distances.tolist())) == 1
    assert samples.at[0] == 0
    assert samples.at[-1] >= seconds * 1_000_000 - distances[0]
    assert 128 <= len(samples.at) <= 257
    assert samples.waiting.shape == samples.running.shape == samples.blocks_used.shape == (len(samples.at), 2)


def test_what_is_kept_was_seen_then() -> None:
    """A request of the first 8 seconds holds its blocks in every sample of that time, and in none after it."""
    work = [Job(Request(id=0, arrival=0, prompt_tokens=32), 1_000), Job(Request(id=1, arrival=20_000_000, prompt_tokens=1), 1)]
    results = simulate(work, sample_every=1_000)
    samples = results.samples
    assert samples is not None
    here = (samples.at > 0) & (samples.at < results.finished[0])
    assert np.count_nonzero(here) > 25
    assert samples.running[here].tolist() == [[1]] * np.count_nonzero(here)
    after = (samples.at > results.finished[0]) & (samples.at < 20_000_000)
    assert not samples.running[after].any()
    assert np.all(np.diff(samples.blocks_used[here, 0]) >= 0)


def test_samples_count_what_has_arrived_and_ended() -> None:
    jobs = [Job(Request(id=number, arrival=number * 1_000_000, prompt_tokens=10), 5) for number in range(9)]
    results = simulate(jobs, sample_every=1_000)
    samples = results.samples
    assert samples is not None
    for at, arrived, ended in zip(samples.at, samples.arrived, samples.ended, strict=True):
        assert arrived == np.count_nonzero(results.arrival <= at)
        assert ended == np.count_nonzero(results.finished <= at)
    assert (samples.arrived[-1], samples.ended[-1]) == (9, 9)


def test_a_run_that_keeps_no_rows_keeps_no_timelines() -> None:
    """They grow with the requests; samples do not."""
    jobs = [Job(Request(id=number, arrival=number, prompt_tokens=10), 5) for number in range(9)]
    kept, streamed = simulate(jobs, sample_every=1_000), simulate(jobs, sample_every=1_000, sink=lambda part: None)
    assert kept.timelines is not None
    assert streamed.timelines is None
    assert streamed.samples is not None
