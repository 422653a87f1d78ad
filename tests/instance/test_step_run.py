"""A run along lines, against its steps one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.batching import StepPlan
from maitred.core.contracts import BatchShape, ChunkShape
from maitred.instance.latency import AIConfiguratorLatency, Grid, SiliconTable
from maitred.instance.step_run import StepRun

MODEL = AIConfiguratorLatency(
    table=SiliconTable(
        shared=((0, 20.0), (64, 130.0)),
        prompts=Grid(((1,), (0, 100), (0,)), (0.0, 40.0)),
        decode=Grid(((1, 6), (0, 20, 60, 150)), (10.0, 12.0, 13.0, 40.0, 20.0, 22.0, 230.0, 900.5)),
        beside=Grid(((1, 6), (0, 90)), (0.0, 3.25, 1.0, 9.0)),
    )
).compiled()
RUNS = st.tuples(st.integers(1, 5), st.integers(0, 600), st.integers(1, 90))
"""Sequences that decode, their context and steps."""


def one_by_one(decodes: int, context: int, steps: int) -> list[int]:
    return [MODEL.step_time(BatchShape(decodes, context + decodes * step)) for step in range(steps)]


@given(st.lists(st.tuples(RUNS, st.floats(-0.1, 1.1)), min_size=1, max_size=6), st.booleans())
def test_a_run_ends_with_the_first_step_that_ends_at_an_input_or_later(
    runs: list[tuple[tuple[int, int, int], float]], is_plain: bool
) -> None:
    run = StepRun(MODEL)  # one object for all, which keeps lines
    for (decodes, context, steps), share in runs:
        times = one_by_one(decodes, context, steps)
        plan = StepPlan(steps)
        if is_plain:
            run.begin_plain(1000, plan, 0, decodes, context)
        else:
            run.begin(1000, plan, decodes, context)
        assert run.ends_at == 1000 + sum(times)

        now = 1000 + int(share * sum(times))
        run.truncate(now)

        last = next((step for step in range(1, steps) if 1000 + sum(times[:step]) >= now), steps)
        assert (run.steps, run.ends_at) == (last, 1000 + sum(times[:last]))
        assert run.truncated is (last < steps)


@given(st.integers(1, 300), st.integers(0, 5), st.integers(0, 500))
def test_a_whole_prompt_takes_as_long_by_the_shorter_way(prompt: int, decodes: int, context: int) -> None:
    run = StepRun(MODEL)
    run.begin_plain(0, StepPlan(1), prompt, decodes, context if decodes else 0)

    chunk = ChunkShape(prompt, 0, prompt)
    assert run.ends_at == MODEL.step_time(BatchShape(decodes, context if decodes else 0, prompt, (chunk,)))
