"""What every latency model promises."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from maitred.core.contracts import BatchShape, ChunkShape, LatencyModel
from maitred.instance.latency import LATENCY_MODELS, LatencySpec
from maitred.testing.samples import blaming, factory_of


def check_latency_model(model: str | Callable[[], LatencySpec], *, seeds: int = 40) -> None:
    """Raise AssertionError unless steps take whole microseconds, at least one, a run takes what its steps take, and as many
    steps fit into a span as end within it."""
    make = factory_of(model, LATENCY_MODELS)
    for seed in range(seeds):
        with blaming(model, seed):
            for scale in (1.0, 0.5, 3.0):
                check_runs(make().compiled(scale), seed)


def check_runs(model: LatencyModel, seed: int) -> None:
    """The steps of a run, one by one and together; and a step that prefills."""
    rng = Random(seed)
    decodes, context, steps = rng.randint(1, 200), rng.randint(0, 100_000), rng.randint(1, 50)
    shapes = [BatchShape(decodes, context + decodes * step) for step in range(steps)]
    times = [model.step_time(shape) for shape in shapes]
    assert all(time >= 1 and time == int(time) for time in times), f"steps of {times} µs"
    run = model.run_time(shapes[0], steps)
    assert run == sum(times), f"a run of {steps} steps takes {run} µs, and its steps {sum(times)}"
    for span in (0, times[0] - 1, times[0], sum(times) - 1, sum(times), rng.randint(0, 2 * sum(times))):
        within, fits = model.steps_within(shapes[0], span, steps), _within(times, span)
        assert within == fits, f"{within} steps end within {span} µs, and it should be {fits}"
    chunks = tuple(_chunk(rng) for _ in range(rng.randint(1, 4)))
    mixed = BatchShape(decodes, context, sum(chunk.num_tokens for chunk in chunks), chunks)
    time = model.step_time(mixed)
    assert time >= 1, f"a step that prefills takes {time} µs"
    assert time == int(time), f"a step that prefills takes {time} µs"
    assert model.overheads.queueing >= 0, "a negative way in"


def _within(times: list[int], span: int) -> int:
    for step, time in enumerate(times):
        span -= time
        if span < 0:
            return step
    return len(times)


def _chunk(rng: Random) -> ChunkShape:
    tokens, start = rng.randint(1, 500), rng.randint(0, 500)
    return ChunkShape(tokens, start, tokens + start + rng.randint(0, 100))
