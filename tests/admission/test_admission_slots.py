"""The arithmetic of slots, against numbers worked out by hand and SMG's documented examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.admission.pool.slots import Slots, fit_reservations
from maitred.admission.terms.rules import LaneRules
from maitred.core.request import PriorityClass

BULK, DEFAULT, INTERACTIVE, SYSTEM = PriorityClass


def slots(capacity: int, *, system: int = 0, interactive: int = 0) -> Slots:
    made = Slots()
    made.capacity = capacity
    made.reserved = [0, 0, interactive, system]
    return made


def test_what_a_higher_class_reserves_is_held_back_while_it_is_idle() -> None:
    pool = slots(128, system=32)

    assert [pool.free(k) for k in (BULK, DEFAULT, INTERACTIVE, SYSTEM)] == [96, 96, 96, 128]


def test_a_reservation_that_is_used_holds_nothing_back() -> None:
    pool = slots(128, system=32)
    for _ in range(32):
        pool.take(SYSTEM)

    assert [pool.free(k) for k in (BULK, SYSTEM)] == [96, 96]
    pool.take(SYSTEM)
    assert [pool.free(k) for k in (BULK, SYSTEM)] == [95, 95]


def test_the_ceiling_of_a_class_is_what_higher_ones_do_not_hold_back() -> None:
    pool = slots(32, system=2, interactive=8)
    pool.take(BULK, 5)
    assert [pool.ceiling(k) for k in (BULK, INTERACTIVE, SYSTEM)] == [22, 30, 32]
    pool.take(INTERACTIVE, 12)
    assert [pool.ceiling(k) for k in (BULK, INTERACTIVE, SYSTEM)] == [30, 30, 32]
    pool.headroom = [0, 0, 0, 1]  # With `reserve: adaptive` less is held back, but for the floor.
    assert pool.ceiling(BULK) == 31
    pool.floors = [0, 0, 0, 2]
    assert pool.ceiling(BULK) == 30


def test_a_lower_class_cannot_reserve_against_a_higher_one() -> None:
    pool = slots(4)
    pool.reserved = [4, 0, 0, 0]

    assert pool.free(SYSTEM) == 4


def test_slots_of_four_with_two_for_system() -> None:
    """SMG: bulk gets 2, then system 2, then all are refused."""
    pool = slots(4, system=2)
    pool.take(BULK)
    pool.take(BULK)
    assert (pool.free(BULK), pool.free(SYSTEM)) == (0, 2)
    pool.take(SYSTEM)
    pool.take(SYSTEM)
    assert (pool.free(BULK), pool.free(SYSTEM)) == (0, 0)


def test_a_pool_above_its_capacity_has_nothing_free() -> None:
    pool = slots(50)
    for _ in range(50):
        pool.take(BULK)
    pool.capacity = 40

    assert (pool.free(BULK), pool.free(SYSTEM)) == (0, 0)


@pytest.mark.parametrize(
    ("floor", "share", "capacity", "wish"),
    [
        (0, 0.25, 10, 3),
        (0, 0.25, 8, 2),
        (128, 0.25, 800, 200),
        (128, 0.25, 256, 128),
        (0, 0.10, 256, 26),
        (0, 0.07, 100, 7),  # 0.07 × 100 is above 7 in binary
        (0, 0.05, 1, 1),
        (32, 0.0, 4, 32),  # more than there is: the clamp sees to it
        (0, 1.0, 4, 4),
        (2, 0.5, 0, 2),
    ],
)
def test_what_a_class_would_reserve(floor: int, share: float, capacity: int, wish: int) -> None:
    assert LaneRules(8, 1, reserved_floor=floor, reserved_share=share).wanted_slots(capacity) == wish


@pytest.mark.parametrize(
    ("capacity", "system", "interactive", "default", "reserved"),
    [
        # SMG 1.13.0, probed: (system, interactive, default) after the clamp
        (4, 3, 3, 0, (1, 2, 0)),
        (10, 10, 10, 0, (4, 5, 0)),
        (100, 32, 100, 0, (24, 75, 0)),
        (16, 16, 16, 2, (7, 7, 0)),
        (1, 1, 1, 0, (0, 0, 0)),
        # fits, and is left alone
        (256, 32, 128, 26, (32, 128, 26)),
        # exactly the capacity: SMG locks out bulk here, we leave one slot
        (4, 0, 4, 0, (0, 3, 0)),
        (2, 1, 1, 0, (0, 1, 0)),
        # a floor above the whole capacity (s44)
        (4, 0, 100, 0, (0, 3, 0)),
        (0, 0, 0, 0, (0, 0, 0)),
    ],
)
def test_reservations_that_do_not_fit(
    capacity: int, system: int, interactive: int, default: int, reserved: tuple[int, int, int]
) -> None:
    assert fit_reservations([0, default, interactive, system], capacity) == [0, reserved[2], reserved[1], reserved[0]]


@pytest.mark.parametrize(
    ("capacity", "interactive", "reserved"),
    [
        (4, 4, 4),  # as it is said: only starvation lets others in
        (4, 100, 3),  # said for a larger fleet: one slot stays within reach
        (4, 3, 3),
        (1, 1, 1),
    ],
)
def test_smg_keeps_reservations_that_fit_exactly(capacity: int, interactive: int, reserved: int) -> None:
    assert fit_reservations([0, 0, interactive, 0], capacity, keeps_exact_fit=True) == [0, 0, reserved, 0]


def test_with_tokens_a_whole_slot_stays_unreserved() -> None:
    """4 slots of 100 tokens, all wanted by system: a fourth of it is given up."""
    assert fit_reservations([0, 0, 0, 400], 400, unit=100) == [0, 0, 0, 300]
    assert fit_reservations([0, 0, 250, 100], 400, unit=100) == [0, 0, 250, 50]


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.integers(0, 50))
def test_a_slot_is_always_unreserved_and_no_class_gets_more_than_desired(wishes: list[int], capacity: int) -> None:
    reserved = fit_reservations(wishes, capacity)

    assert all(0 <= got <= wish for got, wish in zip(reserved, wishes, strict=True))
    assert sum(reserved) < capacity or capacity == 0
    if sum(wishes) < capacity:
        assert reserved == wishes
