"""Learned slots in front of a small engine: what is found, how fast, and what it costs beside the best number by hand."""

from __future__ import annotations

import statistics
from itertools import pairwise
from random import Random

import pytest
from engine_model import Engine, Gateway, Sequence, World, told

from maitred.admission.learned_slots import (
    NO_DEMAND,
    EngineReading,
    LearnedLimit,
    OwnLoad,
    OwnRequests,
    PoolDemand,
    SlotController,
    SlotReason,
    SlotState,
)
from maitred.admission.learned_slots.model_shares import share_slots
from maitred.core.request import Request
from maitred.core.units import MILLISECOND, SECOND

WANTED = PoolDemand(wanted=True)


def learned(limit: int, secs: float = 40.0, **keys: object) -> Gateway:
    engine = Engine(limit)
    gateway = Gateway(engine, **keys)  # type: ignore[arg-type]
    World(engine, gateway).run(secs)
    return gateway


@pytest.mark.parametrize("has_metrics", [True, False])
@pytest.mark.parametrize("limit", [8, 16, 128])
def test_the_limit_is_found_and_as_good_as_the_number_by_hand(limit: int, has_metrics: bool) -> None:
    load = {"clients": 3 * limit, "chats_per_sec": limit / 10}
    gateway, best = learned(limit, has_metrics=has_metrics, **load), told(limit, limit, 40, **load)
    found = next(at for at, slots in gateway.slots_at if abs(slots - limit) <= max(1, 0.1 * limit))
    assert found < 10 * SECOND
    assert abs(statistics.median(gateway.slots_between(10, 40)) - limit) <= max(1, 0.1 * limit)
    assert gateway.bulk_tokens(5, 40) >= 0.97 * best.bulk_tokens(5, 40)
    # Without metrics a queue in the engine shows only when first tokens are late.
    assert gateway.ttft(0.5, since=5) <= (1.3 if has_metrics else 4.0) * best.ttft(0.5, since=5) + 5
    assert gateway.most_beyond <= 0, "no request is let in beyond what was believed"


def test_a_fixed_64_is_worse_on_both_sides() -> None:
    small, large = {"clients": 100, "chats_per_sec": 1.6}, {"clients": 400, "chats_per_sec": 13.0}
    assert told(16, 64, 40, **small).ttft(0.5, since=5) > 10 * learned(16, **small).ttft(0.5, since=5)
    assert told(128, 64, 40, **large).bulk_tokens(5, 40) < 0.75 * learned(128, **large).bulk_tokens(5, 40)


@pytest.mark.parametrize("has_metrics", [True, False])
def test_a_restart_with_another_limit_is_followed(has_metrics: bool) -> None:
    engine = Engine(64)
    gateway = Gateway(engine, clients=400, chats_per_sec=5, has_metrics=has_metrics)
    world = World(engine, gateway)
    for limit in (64, 32, 128, 16):
        world.restart(limit)
        began = world.now
        world.run(20)
        found = next(at for at, slots in gateway.slots_at if at > began and abs(slots - limit) <= max(1, 0.1 * limit))
        assert found - began < 3 * SECOND
        median = statistics.median(gateway.slots_between(began / SECOND + 5, began / SECOND + 20))
        assert abs(median - limit) <= max(1, 0.1 * limit)


def test_a_smaller_limit_without_a_word_is_followed_too() -> None:
    engine = Engine(64)
    gateway = Gateway(engine, clients=200)
    world = World(engine, gateway)
    world.run(10)
    engine.limit = 32
    world.run(15)
    assert abs(statistics.median(gateway.slots_between(15, 25)) - 32) <= 3


@pytest.mark.parametrize("limit", [32, 64, 128])
def test_what_another_controller_had_learned_is_the_limit_until_looks_say_another(limit: int) -> None:
    """Of an engine that has started anew meanwhile it is wrong, and nothing says so."""
    controller, engine = SlotController(), Engine(limit)
    controller.recall(LearnedLimit(64, is_trusted=True), 0)
    assert (controller.slots, controller.limit, controller.state) == (64, 64, SlotState.TRUSTED)
    gateway = Gateway(engine, controller=controller, clients=400)
    World(engine, gateway).run(30)
    assert abs(statistics.median(gateway.slots_between(20, 30)) - limit) <= max(1, 0.1 * limit)


def test_a_limit_that_was_searched_for_anew_is_where_the_search_goes_on() -> None:
    one, other = SlotController(), SlotController(most=20)
    assert one.learned is None
    for at in range(3):
        own = OwnLoad(in_flight=30, most_in_flight=30, unanswered=6)
        one.on_reading(EngineReading(24, 6, progress=at), own, WANTED, at * SECOND)
    assert one.learned == LearnedLimit(24, is_trusted=True)
    one.forget(3 * SECOND)
    assert one.learned == LearnedLimit(24, is_trusted=False)
    decision = other.recall(one.learned, SECOND)
    assert decision is not None
    assert (decision.slots, decision.reason, decision.state) == (20, SlotReason.RECALLED, SlotState.EXPLORING)
    assert other.recall(LearnedLimit(1, is_trusted=True), SECOND) is not None
    assert (other.slots, other.limit) == (2, 2)


@pytest.mark.parametrize("limit", [16, 128])
def test_there_is_no_oscillation_but_probes_that_become_rare(limit: int) -> None:
    gateway = learned(limit, 120, clients=3 * limit, chats_per_sec=limit / 10)
    late = gateway.slots_between(60, 120)
    assert statistics.pstdev(late) <= max(2.0, 0.15 * limit)
    beyond = [slots > 1.1 * limit + 2 for slots in late]
    assert sum(beyond) <= 0.1 * len(late)
    assert sum(now and not before for before, now in pairwise(beyond)) <= 3, "a probe each 4 s would be 12"


def test_kv_memory_bounds_the_slots_before_the_engine_evicts() -> None:
    engine = Engine(256, kv_tokens=12_000)
    gateway = Gateway(engine, clients=200, chats_per_sec=5, output=(100, 300))
    World(engine, gateway).run(60)
    # In the long run a request holds 150 tokens of prompt and 108 of its answer: 46 requests hold 12,000.
    assert 36 <= statistics.median(gateway.slots_between(20, 60)) <= 46
    unbounded = Engine(256, kv_tokens=12_000)
    World(unbounded, Gateway(unbounded, slots=80, clients=200, chats_per_sec=5, output=(100, 300))).run(60)
    assert engine.preemptions < 0.1 * unbounded.preemptions


def test_two_gateways_share_an_engine() -> None:
    engine = Engine(64)
    one, two = Gateway(engine, 1, clients=200), Gateway(engine, 2, clients=200)
    World(engine, one, two).run(60)
    shares = [statistics.mean(gateway.slots_between(20, 60)) for gateway in (one, two)]
    assert one.controller is not None
    assert one.controller.state is SlotState.SHARED
    assert 0.7 < shares[0] / shares[1] < 1.4
    assert 60 <= sum(shares) <= 90
    best = told(64, 64, 60, clients=200)
    assert max(one.ttft(0.5, 20), two.ttft(0.5, 20)) < 1.6 * best.ttft(0.5, 20) + 5


class OtherClient:
    """A client that keeps `count` requests in the engine, past the gateway."""

    def __init__(self, engine: Engine, count: int) -> None:
        self.engine, self.count, self.rng, self.slots_at = engine, count, Random(9), []

    def advance(self, now: int) -> None:
        there = sum(seq.gateway is None for seq in (*self.engine.running, *self.engine.queue))
        for number in range(self.count - there):
            request = Request(id=now + number, arrival=now, prompt_tokens=100)
            self.engine.queue.append(Sequence(None, request, self.rng.randint(30, 90), None, 100))


@pytest.mark.parametrize(("count", "least", "most"), [(32, 26, 48), (200, 50, 64)])
def test_another_client_gets_its_part_and_does_not_starve_us(count: int, least: int, most: int) -> None:
    engine = Engine(64)
    gateway = Gateway(engine, clients=200, chats_per_sec=3)
    World(engine, gateway, OtherClient(engine, count)).run(60)  # type: ignore[arg-type]
    assert least <= statistics.mean(gateway.slots_between(30, 60)) <= most


def test_light_load_leaves_the_slots_alone_and_a_flood_finds_the_limit() -> None:
    engine = Engine(128)
    gateway = Gateway(engine, clients=3, chats_per_sec=0.5)
    world = World(engine, gateway)
    world.run(20)
    assert set(gateway.slots_between(0, 20)) == {8}
    gateway.clients += 400
    world.run(10)
    assert abs(gateway.slots - 128) <= 13


@pytest.mark.parametrize("poll", [SECOND, 5 * SECOND])
def test_slow_readings_are_filled_by_our_own_streams(poll: int) -> None:
    gateway = learned(16, 60, clients=60, chats_per_sec=1.6, poll=poll)
    assert abs(statistics.median(gateway.slots_between(10, 60)) - 16) <= 2


def test_metrics_that_stand_still_for_half_a_minute() -> None:
    engine = Engine(32)
    gateway = Gateway(engine, clients=100)
    world = World(engine, gateway)
    world.run(10)
    page, engine.is_frozen = engine.page, True
    world.run(30)
    assert engine.page is page
    assert abs(statistics.median(gateway.slots_between(10, 40)) - 32) <= 4


def test_the_first_search_sends_little_too_much() -> None:
    """From 8 slots by half at a time: what waits in the engine before the limit is known stays few."""
    for limit in (16, 128):
        gateway = learned(limit, 3, clients=3 * limit, chats_per_sec=limit / 10)
        assert max(gateway.slots_between(0, 3)) <= 1.5 * 1.5 * limit, "a third of the slots is reserved"
        assert abs(gateway.slots - limit) <= 1


def test_answers_that_are_not_streamed() -> None:
    gateway = learned(16, 60, clients=60, streams=False)
    assert abs(statistics.median(gateway.slots_between(10, 60)) - 16) <= 2


# One look at a time.


def own(in_flight: int, **keys: int) -> OwnLoad:
    return OwnLoad(in_flight=in_flight, most_in_flight=in_flight, **{"answered": in_flight, **keys})


def test_one_look_confirms_nothing_and_a_second_that_stands_still_does() -> None:
    slots = SlotController(32)
    full = own(32, unanswered=16, answered=16)
    assert slots.on_reading(EngineReading(9, 23, progress=1), full, WANTED, 0) is None
    assert slots.on_reading(EngineReading(16, 16, progress=2), full, WANTED, 200_000) is None, "still filling"
    decision = slots.on_reading(EngineReading(16, 16, progress=3), full, WANTED, 400_000)
    assert decision is not None
    assert (decision.slots, decision.before, decision.reason, decision.state) == (16, 32, SlotReason.CONFIRMED, "trusted")
    assert (slots.slots, slots.limit, slots.changed_at) == (16, 16, 400_000)


def test_the_lead_covers_five_milliseconds_of_completions() -> None:
    slots, busy = SlotController(32), OwnLoad(in_flight=40, most_in_flight=40, unanswered=24, ended_per_sec=700.0)
    for at in range(3):
        slots.on_reading(EngineReading(16, 24, progress=at), busy, WANTED, at * 200_000)
    assert slots.slots == 16 + 3


def test_slots_grow_while_the_engine_has_no_queue_and_only_once_it_runs_what_was_sent() -> None:
    slots = SlotController(32)
    assert slots.on_reading(EngineReading(0, 0, progress=1), own(32), WANTED, 0) is None, "0/0 while all is on its way"
    decision = slots.on_reading(EngineReading(32, 0, progress=2), own(32), WANTED, SECOND)
    assert decision is not None
    assert (decision.slots, decision.reason) == (48, SlotReason.RAISED)


def test_slots_never_grow_while_no_request_waits_for_one() -> None:
    slots = SlotController(32)
    for at in range(5):
        assert slots.on_reading(EngineReading(32, 0, progress=at), own(32), NO_DEMAND, at * SECOND) is None


def confirmed(limit: int = 16) -> SlotController:
    slots = SlotController(32)
    for at in range(3):
        slots.on_reading(EngineReading(limit, 9, progress=at), own(limit + 9, unanswered=9), WANTED, at * 200_000)
    assert slots.slots == limit
    return slots


def test_an_idle_reservation_is_intact_while_the_limit_is_trusted_and_lent_for_a_probe() -> None:
    slots = confirmed()

    def look(at: int, in_flight: int, held: int) -> int:
        demand = PoolDemand(wanted=True, held=held)
        slots.on_reading(EngineReading(min(16, in_flight), 0, progress=at), own(in_flight), demand, at * SECOND // 10)
        return slots.slots

    assert look(10, 12, 4) == 16
    # A quarter is held back, rounded up, of what is lent as well: until 17 are in flight, one more than the limit.
    assert [look(50, 12, 4), look(51, 15, 6), look(52, 17, 6)] == [21, 23, 23]
    assert slots.last_reason is SlotReason.PROBE


def test_a_probe_lends_no_more_than_can_be_seen_where_what_is_held_back_does_not_grow() -> None:
    """With adaptive reservations, one slot is kept of 8 as of 12: 11 requests would stand in an engine that runs 8."""
    slots, held = confirmed(8), PoolDemand(wanted=True, held=1)
    decision = slots.on_reading(EngineReading(7, 0, progress=10), own(7), held, 5 * SECOND)
    assert decision is not None
    assert (decision.reason, decision.slots) == (SlotReason.PROBE, 8 + 1 + 1), "one more than runs, and the one held back"
    assert slots.on_reading(EngineReading(8, 1, progress=11), own(9), held, 5 * SECOND + 50_000) is None


def test_a_probe_that_finds_no_more_running_confirms_the_limit_and_one_that_does_begins_a_search() -> None:
    def probe(*running: int) -> SlotController:
        slots = confirmed()
        slots.on_reading(EngineReading(16, 0, progress=9), own(16), WANTED, 5 * SECOND)
        assert (slots.slots, slots.state) == (17, SlotState.PROBING)
        for look, count in enumerate(running):
            slots.on_reading(EngineReading(count, 0, progress=10 + look), own(17), WANTED, 5 * SECOND + (look + 1) * 200_000)
        return slots

    assert probe(16, 15).state is SlotState.PROBING, "what was lent may be on its way"
    ended = probe(16, 15, 16)
    assert (ended.slots, ended.state, ended.last_reason) == (16, SlotState.TRUSTED, SlotReason.PROBE_ENDED)
    ended.on_reading(EngineReading(16, 0, progress=99), own(16), WANTED, 11 * SECOND)
    assert ended.state is SlotState.TRUSTED, "left alone for 8 s now"
    more = probe(17)
    assert (more.slots, more.state) == (18, SlotState.EXPLORING)


def test_a_page_that_stands_still_while_answers_end_is_no_reading() -> None:
    slots, page = SlotController(32), EngineReading(16, 16, 0.5, 0, 7)
    for ended in range(1, 6):
        slots.on_reading(page, own(32, unanswered=16, ended=ended), WANTED, ended * 200_000)
    assert slots.slots == 32


def test_two_looks_at_one_long_step_are_one_look() -> None:
    slots, full = SlotController(32), own(32, unanswered=30, answered=2)
    for at in range(5):
        slots.on_reading(EngineReading(2, 30, progress=7), full, WANTED, at * 200_000)
    assert (slots.slots, slots.limit) == (32, None)
    slots.on_reading(EngineReading(28, 4, progress=9), own(32, unanswered=4, answered=28), WANTED, SECOND)
    assert slots.limit is None, "still filling"


def test_the_page_of_another_engine_is_no_reading() -> None:
    slots = confirmed(16)
    for at in range(6):
        slots.on_reading(EngineReading(2, 5, progress=20 + at), own(16, answered=16), WANTED, SECOND * (at + 1))
    assert slots.slots == 16


def test_a_page_without_anything_running_while_streams_answer_is_not_believed() -> None:
    """A gauge that is never set. Readings while hardly anything answers say nothing either way."""
    slots = SlotController(8)
    for at in range(1, 12):
        now = at * 200 * MILLISECOND
        answered = (8, 1)[at % 2]
        slots.on_reading(EngineReading(0, 0, progress=at), own(8, answered=answered, unanswered=8 - answered), WANTED, now)
    assert slots.distrusts_page
    for at in range(60):
        now = 3 * SECOND + at * 100 * MILLISECOND
        slots.on_reading(EngineReading(0, 0, progress=20 + at), own(8, answered=8), WANTED, now)
        running = min(16, slots.slots)
        slots.on_tick(own(slots.slots, answered=running, overdue=slots.slots - running), WANTED, now)
    assert (slots.state, slots.limit) == (SlotState.BLIND, 16)
    slots.on_reading(EngineReading(16, 1, progress=99), own(17, answered=16, unanswered=1), WANTED, 10 * SECOND)
    assert not slots.distrusts_page
    assert slots.state is SlotState.TRUSTED


def test_one_engine_that_shows_all_that_answers_is_believed() -> None:
    slots = SlotController(8)
    for at in range(1, 20):
        slots.on_reading(EngineReading((0, 8)[at % 2], 0, progress=at), own(8, answered=8), NO_DEMAND, at * SECOND)
        assert not slots.distrusts_page


def test_a_counter_that_goes_back_is_a_restart() -> None:
    slots = confirmed()
    slots.on_reading(EngineReading(8, 0, progress=1), own(16), WANTED, SECOND)
    assert (slots.limit, slots.slots, slots.state) == (None, 16, SlotState.EXPLORING)


def test_slots_stay_within_their_bounds() -> None:
    slots = SlotController(start=10, most=12, least=2)
    for at in range(9):
        slots.on_reading(EngineReading(slots.slots, 0, progress=at), own(slots.slots), WANTED, at * SECOND)
    assert slots.slots == 12
    for at in range(9, 20):
        slots.on_reading(EngineReading(1, 9, progress=at), own(10, unanswered=9, answered=1), WANTED, at * SECOND)
    assert slots.slots == 2
    with pytest.raises(ValueError, match="in order"):
        SlotController(start=13, most=12)


def test_looks_are_close_while_slots_are_short_and_cease_while_nothing_is_in_flight() -> None:
    slots = SlotController(32)
    due = [slots.reading_due_in(count, wanted=wanted) for count, wanted in ((0, True), (3, False), (3, True), (30, False))]
    assert due == [None, SECOND, SECOND // 20, SECOND // 20], "closest while the limit is searched for"
    known = confirmed(16)
    due = [known.reading_due_in(count, wanted=wanted) for count, wanted in ((0, True), (3, False), (3, True), (15, False))]
    assert due == [None, SECOND, SECOND // 5, SECOND // 5]


def test_without_metrics_and_streams_the_number_is_a_guess_until_a_stream_comes() -> None:
    slots = SlotController()
    assert slots.on_tick(own(8, answered=0, unstreamed=8), WANTED, SECOND) is None, "a reading may be on its way"
    decision = slots.on_tick(own(8, answered=0, unstreamed=8), WANTED, 2 * SECOND)
    assert decision is not None
    assert (decision.slots, decision.reason, decision.state) == (32, SlotReason.GUESSED, SlotState.GUESSED)
    slots.on_tick(own(8, answered=1, unstreamed=7), WANTED, 3 * SECOND)
    assert slots.state is SlotState.BLIND
    known = confirmed(16)
    for at in range(2, 5):
        known.on_tick(own(16, answered=0, unstreamed=16), WANTED, at * 2 * SECOND)
    assert (known.slots, known.state) == (16, SlotState.BLIND), "what was learned stays"


def test_evicted_streams_shrink_the_slots_without_metrics() -> None:
    slots = SlotController(32)
    for at in range(1, 4):
        slots.on_tick(own(32, answered=20, silent=12, token_gap=20_000), WANTED, at * SECOND)
    assert slots.slots < 20
    assert slots.last_reason is SlotReason.SILENT


# Our own requests.


def test_the_gap_between_tokens_and_what_is_late() -> None:
    requests = OwnRequests()
    streams = [requests.add(100, True, 0) for _ in range(4)]
    late = requests.add(1000, True, 0)
    whole = requests.add(50, False, 0)
    requests.summary(0, is_reading=True)
    for token in range(1, 11):
        for stream in streams:
            requests.note_pieces(stream, token, token * 20 * MILLISECOND)
        if token in (5, 10):
            load = requests.summary(token * 20 * MILLISECOND, is_reading=False)
    assert load.token_gap == 20 * MILLISECOND
    # 200 ms old: later than 10 + 2 · 20 and than 20 + (6 + 1000 / 1000) · 20 ms. An answer that comes whole is never overdue.
    assert (load.in_flight, load.answered, load.unanswered, load.overdue, load.unstreamed) == (6, 4, 2, 1, 1)
    assert load.held_tokens == 4 * 110
    silent = requests.summary(500 * MILLISECOND, is_reading=False)
    assert (silent.silent, silent.answered) == (4, 0)
    for request in (*streams, late, whole):
        requests.remove(request, SECOND, completed=request in streams)
    ended = requests.summary(SECOND, is_reading=False)
    assert (ended.in_flight, ended.ended, ended.service_time, ended.output_age) == (0, 6, SECOND, 5.0)


# Models that share an engine.


@pytest.mark.parametrize(
    ("asked", "shares"),
    [
        ({"base": 40, "a": 3, "b": 0}, {"base": 13, "a": 3, "b": 1}),
        ({"base": 40, "a": 40}, {"base": 8, "a": 8}),
        ({"base": 0, "a": 0}, {"base": 16, "a": 16}),
        ({"base": 2, "a": 3}, {"base": 13, "a": 14}),
        ({"a": 99, "b": 99, "c": 99}, {"a": 6, "b": 5, "c": 5}),
    ],
)
def test_models_share_the_slots_of_an_engine(asked: dict[str, int], shares: dict[str, int]) -> None:
    assert share_slots(16, asked) == shares
