"""What holds for learned slots whatever they are told, and that a log of it runs again to the same bytes."""

from __future__ import annotations

import msgspec
import pytest
from engine_model import Engine, Gateway, World
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.admission.learned_slots import (
    NO_DEMAND,
    EngineReading,
    LearnedLimit,
    OwnLoad,
    PoolDemand,
    SlotController,
    SlotState,
)
from maitred.core.decisions import DecisionLog
from maitred.core.units import SECOND
from maitred.replay import replay

COUNTS = st.integers(0, 600)
READINGS = st.builds(
    EngineReading, running=COUNTS, waiting=COUNTS, kv_usage=st.floats(0, 1), kv_preemptions=COUNTS, progress=st.none() | COUNTS
)
LOADS = st.builds(
    OwnLoad,
    in_flight=COUNTS,
    most_in_flight=COUNTS,
    answered=COUNTS,
    unanswered=COUNTS,
    overdue=COUNTS,
    silent=COUNTS,
    unstreamed=COUNTS,
    held_tokens=st.integers(0, 10**6),
    mean_prompt=st.floats(0, 10_000),
    output_age=st.floats(0, 10_000),
    longest_output=COUNTS,
    ended=COUNTS,
    failed=COUNTS,
    ended_per_sec=st.floats(0, 1000),
    service_time=st.integers(0, 100 * SECOND),
    token_gap=st.integers(0, SECOND),
    ttft_excess=st.integers(0, SECOND),
)
DEMANDS = st.builds(PoolDemand, wanted=st.booleans(), held=COUNTS)
INPUTS = st.lists(st.tuples(st.integers(1, 3 * SECOND), st.none() | READINGS, LOADS, DEMANDS, st.booleans()), max_size=40)


def drive(controller: SlotController, inputs: list[tuple[int, EngineReading | None, OwnLoad, PoolDemand, bool]]) -> None:
    now = 0
    for pause, reading, own, demand, is_down in inputs:
        now += pause
        before = controller.slots
        if is_down and reading is None:
            controller.forget(now)
        elif is_down and not demand.wanted:
            controller.recall(LearnedLimit(max(1, own.in_flight), is_trusted=own.failed % 2 == 0), now)
            before = max(2, own.in_flight)
        elif reading is None:
            controller.on_tick(own, demand, now)
        else:
            controller.on_reading(reading, own, demand, now)
        assert isinstance(controller.slots, int)
        controller.check()
        assert 2 <= controller.slots <= 4096
        assert demand.wanted or controller.slots <= before
        assert isinstance(controller.state, SlotState)


@given(INPUTS)
def test_slots_stay_in_bounds_and_never_grow_unasked(
    inputs: list[tuple[int, EngineReading | None, OwnLoad, PoolDemand, bool]],
) -> None:
    drive(SlotController(), inputs)


@given(INPUTS)
def test_a_log_runs_again_to_the_same_bytes(inputs: list[tuple[int, EngineReading | None, OwnLoad, PoolDemand, bool]]) -> None:
    lines: list[bytes] = []
    drive(SlotController(32, 4096, 2, backend=3, log=DecisionLog(lines.append)), inputs)
    again: list[bytes] = []
    replay(lines, DecisionLog(again.append))
    assert again == lines


def test_a_log_without_its_beginning_cannot_be_run() -> None:
    lines: list[bytes] = []
    controller = SlotController(32, 4096, 2, backend=0, log=DecisionLog(lines.append))
    controller.forget(5)
    assert [msgspec.json.decode(line).get("input") for line in lines] == [None, "open", "forget"]
    with pytest.raises(ValueError, match="does not say how this core was made: slots 0"):
        replay(lines[2:], DecisionLog(lambda _: None))


@given(st.integers(0, 40))
def test_empty_observations_change_nothing(count: int) -> None:
    controller = SlotController()
    for at in range(count):
        controller.on_reading(EngineReading(0, 0), OwnLoad(), NO_DEMAND, at * SECOND)
        controller.on_tick(OwnLoad(), NO_DEMAND, at * SECOND + 500_000)
    assert (controller.slots, controller.limit) == (8, None)


@given(st.integers(2, 2000), st.integers(1, 500), st.floats(0, 900))
def test_what_runs_while_something_waits_twice_is_the_limit(limit: int, excess: int, rate: float) -> None:
    controller, lead = SlotController(), int(rate / 200)
    waiting = lead + limit // 50 + excess
    own = OwnLoad(in_flight=limit + waiting, most_in_flight=limit + waiting, unanswered=waiting, ended_per_sec=rate)
    for at in range(3):
        controller.on_reading(EngineReading(limit, waiting, progress=at), own, PoolDemand(wanted=True), at * 200_000)
    assert controller.limit == limit
    # Slots that were fewer grow to it only when a request waits for them, which one does here.
    assert controller.slots == limit + lead


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 90), st.integers(2, 300), st.integers(0, 99), st.booleans())
def test_a_limit_is_reached_from_any_start(limit: int, start: int, seed: int, has_metrics: bool) -> None:
    engine = Engine(limit)
    gateway = Gateway(
        engine, seed, controller=SlotController(start), clients=3 * limit + 20, chats_per_sec=0.5, has_metrics=has_metrics
    )
    World(engine, gateway).run(25)
    assert gateway.controller is not None
    gateway.controller.check()
    settled = sorted(gateway.slots_between(12, 25))
    assert abs(settled[len(settled) // 2] - limit) <= 1 + 0.1 * limit
    assert gateway.most_beyond <= 0


@settings(max_examples=10, deadline=None)
@given(st.integers(8, 80), st.integers(0, 99))
def test_a_restart_with_half_the_limit_is_followed(limit: int, seed: int) -> None:
    engine = Engine(limit)
    gateway = Gateway(engine, seed, clients=3 * limit, chats_per_sec=0.5)
    world = World(engine, gateway)
    world.run(10)
    world.restart(limit // 2)
    world.run(10)
    settled = sorted(gateway.slots_between(14, 20))
    assert abs(settled[len(settled) // 2] - limit // 2) <= 1 + 0.1 * limit / 2
