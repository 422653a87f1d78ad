"""Scenarios recorded from SMG 1.13.0 over HTTP (its numbers kept as names), as timelines of the core.

Facts copied by hand: what was sent when, and what came of it. Answers of the engine are `release`s at the times at which the
recorded engine ended. Where SMG has a defect, the wanted outcome stands here, and the test says so.
"""

from __future__ import annotations

import itertools

from admission_timeline import BULK, DEFAULT, INTERACTIVE, SYSTEM, Timeline

from maitred.admission import ReleaseReason


def test_s04_a_full_class_queue_rejects() -> None:
    t = Timeline(1, default={"queue_size": 1})

    assert t.submit(0, "held") == ["held admit slot_free"]
    assert t.submit(0.02, "queued") == ["queued queue no_slot"]
    assert t.submit(0.32, "overflow") == ["overflow reject queue_full"]
    assert t.release(0.34, "held") == ["queued admit slot_free"]


def test_s06_a_timeout_frees_the_place_in_the_queue_at_once() -> None:
    t = Timeline(1, default={"queue_size": 1, "queue_timeout_secs": 1})

    t.submit(0, "held")
    assert t.submit(0.02, "timed_out") == ["timed_out queue no_slot"]
    assert t.next_deadline() == 1.02
    assert t.advance(1.019999) == []
    assert t.advance(1.02) == ["timed_out reject queue_timeout"]
    assert t.submit(1.03, "next") == ["next queue no_slot"]
    assert t.advance(2.03) == ["next reject queue_timeout"]
    assert t.release(2.04, "held") == []


def test_s14_the_reservation_of_a_higher_class_is_held_back_from_bulk() -> None:
    t = Timeline(4, interactive={"reserved_floor": 2})

    assert t.submit(0, "b0", BULK) == ["b0 admit slot_free"]
    assert t.submit(0, "b1", BULK) == ["b1 admit slot_free"]
    assert t.submit(0, "b2", BULK) == ["b2 queue held_by_reservation"]
    assert t.submit(0, "b3", BULK) == ["b3 queue behind_queue"]
    assert t.submit(0, "b4", BULK) == ["b4 queue behind_queue"]
    assert t.submit(0.5, "i0", INTERACTIVE) == ["i0 admit slot_free"]
    assert t.release(0.6, "i0") == []
    assert t.submit(0.6, "i1", INTERACTIVE) == ["i1 admit slot_free"]
    assert t.release(0.7, "i1") == []
    # each bulk request takes 1.5 s: two at a time end at 1.5, 1.5, 3.0, 3.0 and 4.5 s
    assert t.release(1.5, "b0") == ["b2 admit slot_free"]
    assert t.release(1.5, "b1") == ["b3 admit slot_free"]
    assert t.release(3.0, "b2") == ["b4 admit slot_free"]
    assert t.release(3.0, "b3") == []
    assert t.release(4.5, "b4") == []


def test_s16_a_reserved_share_rounds_up() -> None:
    """ceil(0.25 x 10) = 3 for interactive, so bulk gets 7."""
    t = Timeline(10, interactive={"reserved_per_slot": 0.25}, bulk={"queue_size": 20})

    said = [t.submit(0, f"b{n}", BULK) for n in range(12)]

    assert said[:7] == [[f"b{n} admit slot_free"] for n in range(7)]
    assert said[7] == ["b7 queue held_by_reservation"]
    assert said[8:] == [[f"b{n} queue behind_queue"] for n in range(8, 12)]


def test_s17_strict_order_of_classes_and_first_come_first_served_inside() -> None:
    t = Timeline(1)
    t.submit(0, "held")
    t.submit(0.02, "bulk0", BULK)
    t.submit(0.12, "bulk1", BULK)
    t.submit(0.22, "default2", DEFAULT)
    t.submit(0.32, "interactive3", INTERACTIVE)
    t.submit(0.42, "system4", SYSTEM)
    t.submit(0.52, "default5", DEFAULT)

    order = ["held", "system4", "interactive3", "default2", "default5", "bulk0", "bulk1"]
    for n, (ended, following) in enumerate(itertools.pairwise(order)):
        assert t.release(0.65 + 0.05 * n, ended) == [f"{following} admit slot_free"]


def test_s22_floors_above_the_capacity_shrink_in_proportion() -> None:
    """Two floors of 3 on 4 slots: 3 x 4 / 6 = 2 each, and system gives one up to leave one unreserved."""
    t = Timeline(4, system={"reserved_floor": 3}, interactive={"reserved_floor": 3, "can_preempt": False})

    assert t.reserved() == {"system": 1, "interactive": 2, "default": 0, "bulk": 0}
    assert t.submit(0, "b", BULK) == ["b admit slot_free"]
    assert t.submit(0.3, "i0", INTERACTIVE) == ["i0 admit slot_free"]
    assert t.submit(0.3, "i1", INTERACTIVE) == ["i1 admit slot_free"]
    assert t.submit(0.3, "i2", INTERACTIVE) == ["i2 queue held_by_reservation"]
    assert t.release(1.0, "b") == ["i2 admit slot_free"]


def test_s23_more_capacity_drains_the_queue_at_once() -> None:
    t = Timeline(1)
    t.submit(0, "r0")
    for name in ("r1", "r2", "r3"):
        t.submit(0.1, name)

    assert t.resize(0.5, 3) == ["r1 admit slot_free", "r2 admit slot_free"]


def test_s24_less_capacity_stops_no_request_and_admits_none_until_enough_have_ended() -> None:
    t = Timeline(4)
    for name in ("r0", "r1", "r2", "r3"):
        assert t.submit(0, name) == [f"{name} admit slot_free"]
        t.first_byte(0.1, name)

    assert t.resize(0.5, 2) == []
    assert t.core.view("m").in_flight == 4
    assert t.submit(0.9, "after", INTERACTIVE) == ["after queue no_slot"]
    assert t.release(2.5, "r0") == []
    assert t.release(2.5, "r1") == []
    assert t.release(2.5, "r2") == ["after admit slot_free"]
    assert t.release(2.5, "r3") == []


def test_s25_a_client_that_leaves_the_queue_frees_its_place_and_is_counted_once() -> None:
    t = Timeline(1, default={"queue_size": 1, "queue_timeout_secs": 2})
    t.submit(0, "held")

    assert t.submit(0.02, "ghost") == ["ghost queue no_slot"]
    assert t.release(0.52, "ghost", ReleaseReason.CLIENT_GONE) == ["ghost cancel client_gone"]
    assert t.release(0.53, "ghost", ReleaseReason.CLIENT_GONE) == []
    assert t.submit(0.82, "probe1") == ["probe1 queue no_slot"]
    assert t.advance(2.82) == ["probe1 reject queue_timeout"]
    assert t.submit(5.32, "probe2") == ["probe2 queue no_slot"]
    assert t.advance(7.32) == ["probe2 reject queue_timeout"]
    assert t.release(7.4, "held") == []
    assert t.submit(7.5, "probe3") == ["probe3 admit slot_free"]

    seen = t.core.view("m").classes[DEFAULT]
    assert (seen.admitted, seen.queue_timeout, seen.cancelled) == (2, 2, 1)


def test_s28_a_stream_holds_its_slot_to_the_last_byte() -> None:
    t = Timeline(1)

    assert t.submit(0, "stream", INTERACTIVE) == ["stream admit slot_free"]
    assert t.submit(0.02, "next", INTERACTIVE) == ["next queue no_slot"]
    assert t.first_byte(0.3, "stream")
    assert t.advance(1.4) == []
    assert t.release(1.5, "stream") == ["next admit slot_free"]


def test_s44_no_class_is_locked_out_of_an_idle_pool() -> None:
    """One floor of 100 on 4 slots. SMG reserves all 4 and lets bulk time out; wanted: one slot stays within reach."""
    t = Timeline(4, interactive={"reserved_floor": 100}, bulk={"queue_timeout_secs": 2})

    assert t.reserved()["interactive"] == 3
    assert t.submit(0, "b", BULK) == ["b admit slot_free"]
    assert t.release(0.1, "b") == []
    assert t.submit(0.2, "i", INTERACTIVE) == ["i admit slot_free"]
