"""Programs in the simulator: what the core is told, and when, is what a gateway tells it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maitred.core.decisions import DecisionLog
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.programs import ProgramsConfig
from maitred.sim import ClusterConfig, simulate
from maitred.workload import Job

INSTANCE = InstanceConfig(latency=LinearLatency((100, 1, 10)))
"""A prompt of 50 tokens takes 150 µs alone, each further token 110."""


def job(number: int, arrival: int, output: int, *, stream: bool = True) -> Job:
    request = Request(id=number, arrival=arrival, prompt_tokens=50, program=f"p{number}", stream=stream)
    return Job(request, output)


def inputs_of_core(*jobs: Job) -> list[tuple[Any, ...]]:
    """Return the inputs that the core gets: verb, time, request, and the tokens of progress."""
    lines: list[bytes] = []
    simulate(jobs, ClusterConfig(), INSTANCE, programs=ProgramsConfig(mode="tr"), log=DecisionLog(lines.append))
    entries = [entry for line in lines if "input" in (entry := msgspec.json.decode(line))]
    return [
        (entry["input"], entry["at"], entry["request"]["id"] if "request" in entry else entry["id"], entry.get("tokens"))
        for entry in entries
        if entry["input"] in ("begin", "progress", "end")
    ]


def test_the_progress_of_a_stream_is_told_in_steps_before_the_next_input() -> None:
    """The first one has its 50th token at 5,540. The second one is computed from 5,650 to 5,810 beside it."""
    assert inputs_of_core(job(0, 0, 65), job(1, 5_545, 2)) == [
        ("begin", 0, 0, None),
        ("progress", 5_545, 0, 40),
        ("begin", 5_545, 1, None),
        ("end", 5_930, 1, None),
        ("end", 7_250, 0, None),
    ]


def test_each_input_tells_of_what_came_since() -> None:
    told = [entry for entry in inputs_of_core(job(0, 0, 100), job(1, 2_245, 2), job(2, 9_000, 2)) if entry[0] == "progress"]
    assert told == [("progress", 2_245, 0, 20), ("progress", 9_000, 0, 60)]


@pytest.mark.parametrize(("stream", "num_told"), [(True, 1), (False, 0)])
def test_nothing_is_seen_of_an_answer_that_is_not_streamed(stream: bool, num_told: int) -> None:
    inputs = inputs_of_core(job(0, 0, 65, stream=stream), job(1, 5_545, 2))
    assert [verb for verb, *_ in inputs].count("progress") == num_told
