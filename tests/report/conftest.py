from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from maitred.core.histogram import QuantileSketch
from maitred.core.request import PriorityClass
from maitred.sim import InstanceTotals, Outcome, Results, Samples

NEVER = -1
INTERACTIVE, BULK = PriorityClass.INTERACTIVE, PriorityClass.BULK
COLUMNS = (
    "request_id", "priority_class", "arrival", "scheduled", "first_token", "finished",
    "prompt_tokens", "output_tokens", "outcome", "instance", "preemptions", "retries", "cached_tokens",
)  # fmt: skip
NOT_SAID = {"admitted": NEVER, "queued": NEVER, "wasted_tokens": 0, "tenant": 0, "model": 0, "slo_class": 0}

Row = tuple[int, ...]

FIVE: tuple[Row, ...] = (
    (0, INTERACTIVE, 0, 10_000, 100_000, 500_000, 10, 5, Outcome.COMPLETED, 0, 0, 0, 8),
    (1, INTERACTIVE, 100_000, 120_000, 300_000, 300_000, 20, 1, Outcome.COMPLETED, 1, 0, 0, 0),
    (2, BULK, 200_000, 230_000, 600_000, 1_600_000, 30, 11, Outcome.COMPLETED, 0, 2, 0, 14),
    (3, BULK, 250_000, NEVER, NEVER, NEVER, 40, 0, Outcome.REJECTED, NEVER, 0, 0, 0),
    (4, BULK, 300_000, 340_000, 1_100_000, NEVER, 50, 3, Outcome.UNFINISHED, 1, 1, 0, 0),
)
"""Two seconds in which three requests complete, one of them with a single token; one is rejected, one cut off by the end."""

PREEMPTING: tuple[Row, ...] = (
    *FIVE,
    (5, BULK, 400_000, NEVER, NEVER, 500_000, 60, 0, Outcome.PREEMPTED, 1, 0, 0, 0),
    (6, BULK, 400_000, 700_000, 800_000, 900_000, 70, 2, Outcome.COMPLETED, 1, 0, 1, 0),
)
"""The five, and two bulk requests that lost their slots; one of them was tried again."""


def results_of(rows: tuple[Row, ...], end: int) -> Results:
    columns = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    said = {name: np.array(list(column), dtype=np.int64) for name, column in zip(COLUMNS, columns, strict=True)}
    return Results(end=end, **said, **{name: np.full(len(rows), value) for name, value in NOT_SAID.items()})


def gaps_of(*values: int) -> QuantileSketch:
    sketch = QuantileSketch()
    for value in values:
        sketch.add(value)
    return sketch


@pytest.fixture
def told() -> Results:
    """Return the five with everything beside the rows: two tenants and one request without, SLO classes that two of three bulk
    requests name, and instances that were busy for 1.5 s and 0.5 s of the two."""
    totals = [
        InstanceTotals(
            steps=steps, busy=busy, preemptions=0, requests=2, prompt_tokens=40, cached_tokens=22, output_tokens=16, itl=gaps
        )
        for steps, busy, gaps in ((30, 1_500_000, gaps_of(100_000, 100_000)), (10, 500_000, gaps_of(300_000)))
    ]
    samples = Samples(
        at=np.array([0, 1_000_000, 2_000_000]),
        waiting=np.array([[0, 0], [2, 4], [0, 0]], dtype=np.int32),
        running=np.array([[0, 0], [1, 1], [0, 1]], dtype=np.int32),
        blocks_used=np.array([[0, 0], [50, 100], [0, 10]], dtype=np.int32),
        total_blocks=100,
        outside_instances=np.array([0, 3, 0], dtype=np.int32),
        arrived=np.array([1, 5, 5]),
        ended=np.array([0, 2, 4]),
    )
    return msgspec.structs.replace(
        results_of(FIVE, 2_000_000),
        tenant=np.array([1, 1, 2, 2, 0]),
        tenants=("", "acme", "globex"),
        model=np.array([1, 1, 1, 1, 1]),
        models=("", "llama"),
        slo_class=np.array([0, 0, 1, 2, 0]),
        slo_classes=("", "batch", "sheddable"),
        wasted_tokens=np.array([0, 0, 12, 0, 6]),
        instances=tuple(totals),
        samples=samples,
    )


@pytest.fixture
def make() -> Callable[[tuple[Row, ...], int], Results]:
    return results_of


@pytest.fixture
def sketch_of() -> Callable[..., QuantileSketch]:
    return gaps_of


@pytest.fixture
def five() -> Results:
    return results_of(FIVE, 2_000_000)


@pytest.fixture
def preempting() -> Results:
    return results_of(PREEMPTING, 2_000_000)


@pytest.fixture
def none() -> Results:
    return results_of((), 0)


@pytest.fixture
def five_rows() -> tuple[Row, ...]:
    return FIVE
