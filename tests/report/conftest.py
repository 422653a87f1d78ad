from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from result_rows import FIVE, PREEMPTING, Row, results_of

from maitred.core.histogram import QuantileSketch
from maitred.sim import InstanceTotals, Results, Samples


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
