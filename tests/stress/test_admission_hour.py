"""A few minutes of the load of bench/admission_hour.py: no slot beyond the capacity, and nothing left."""

from __future__ import annotations

import pytest

from admission_hour import MODELS, Hour
from maitred.core.units import SECOND


@pytest.mark.parametrize("seed", [1, 2])
def test_no_slot_beyond_the_capacity_and_nothing_left(seed: int) -> None:
    hour = Hour(2_000, seed)
    hour.run(150 * SECOND)

    assert hour.most_over <= 0
    assert not hour.tickets
    assert all((view.in_flight, view.waiting) == (0, 0) for view in map(hour.core.view, MODELS))
    assert hour.outcomes["preempt higher_class"] > 5
