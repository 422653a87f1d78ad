"""Without classes: one limit for all, a rate, or nothing; and changes of the mode while requests are there."""

from __future__ import annotations

from typing import Any

import pytest
from admission_timeline import BULK, DEFAULT, INTERACTIVE, SYSTEM, Timeline

from maitred.admission import SHARED_POOL, AdmissionConfig, Reason, ReleaseReason


def legacy(**said: Any) -> dict[str, Any]:
    return {"mode": "legacy", "legacy": said}


def test_it_is_the_mode_one_gets() -> None:
    assert AdmissionConfig().mode == "legacy"


def test_l01_one_limit_one_queue_for_all_classes_and_models() -> None:
    t = Timeline(64, legacy(max_concurrent_requests=1, queue_size=1, queue_timeout_secs=1))
    t.resize(0, 64, pool="other")

    assert t.submit(0, "held", BULK) == ["held admit slot_free"]
    assert t.submit(0.02, "queued", SYSTEM, pool="other") == ["queued queue no_slot"]
    assert t.submit(0.22, "overflow", INTERACTIVE) == ["overflow reject queue_full"]
    assert t.advance(1.02) == ["queued reject queue_timeout"]
    assert t.core.pool_names == [SHARED_POOL]
    assert t.of(SYSTEM, SHARED_POOL).queue_timeout == 1
    assert t.of(INTERACTIVE, SHARED_POOL).queue_full == 1


def test_without_classes_first_come_is_first_served_and_no_request_is_preempted() -> None:
    t = Timeline(1, legacy(max_concurrent_requests=1))
    t.submit(0, "held", BULK)
    t.submit(1, "b", BULK)
    assert t.submit(2, "s", SYSTEM) == ["s queue behind_queue"]

    assert t.release(3, "held") == ["b admit slot_free"]
    assert t.release(4, "b") == ["s admit slot_free"]


@pytest.mark.parametrize("said", [legacy(), legacy(max_concurrent_requests=0), {"mode": "off"}])
def test_without_a_limit_every_request_enters(said: dict[str, Any]) -> None:
    t = Timeline(1, said)

    assert all(t.submit(0, f"r{n}") == [f"r{n} admit slot_free"] for n in range(50))


def test_l04_a_rate_lets_so_many_in_at_once_and_so_many_per_second() -> None:
    """Burst 3, 2 per second, 1 may wait: of six at once four are served."""
    t = Timeline(1, legacy(max_concurrent_requests=3, rate_limit_tokens_per_second=2, queue_size=1))
    first = [t.submit(0, f"r{n}")[0].split()[1:] for n in range(6)]

    assert first == [["admit", "slot_free"]] * 3 + [["queue", "no_slot"]] + [["reject", "queue_full"]] * 2
    for n in range(3):
        assert t.release(0.1, f"r{n}") == []  # their slots are free, the bucket is empty
    assert t.next_deadline() == 0.5
    assert t.advance(0.5) == ["r3 admit slot_free"]
    assert t.submit(0.6, "r6") == ["r6 queue rate_limit"]
    assert t.advance(1.0) == ["r6 admit slot_free"]


def test_s29_with_classes_the_rate_is_a_gate_in_front() -> None:
    t = Timeline(8, {"legacy": {"max_concurrent_requests": 3, "rate_limit_tokens_per_second": 2}})

    said = [t.submit(0, f"r{n}", SYSTEM)[0] for n in range(6)]

    assert said == [f"r{n} admit slot_free" for n in range(3)] + [f"r{n} reject rate_limited" for n in range(3, 6)]
    assert t.last[0].retry_after == 1_000_000  # at least a second, though the next token comes in half of one
    assert (t.of(SYSTEM).arrived, t.of(SYSTEM).rate_limited) == (3, 3)
    assert t.submit(0.5, "later", SYSTEM) == ["later admit slot_free"]


def test_from_one_limit_to_classes_and_back_no_slot_or_place_is_lost() -> None:
    t = Timeline(2, legacy(max_concurrent_requests=2, queue_size=10, queue_timeout_secs=100))
    for name, k in (("b0", BULK), ("b1", BULK), ("b2", BULK), ("d", DEFAULT), ("i", INTERACTIVE)):
        t.submit(0, name, k)
    for name in ("b0", "b1"):
        t.first_byte(0.5, name)

    assert t.reconfigure(1) == []
    assert t.core.pool_names == ["m"]
    assert [t.of(k).waiting for k in (BULK, DEFAULT, INTERACTIVE)] == [1, 1, 1]
    assert t.release(2, "b0") == ["i admit slot_free"]
    assert t.reconfigure(3, legacy(max_concurrent_requests=2, queue_timeout_secs=100)) == []
    assert t.release(4, "b1") == ["b2 admit slot_free"]
    assert t.release(5, "i") == ["d admit slot_free"]
    assert t.reconfigure(6, {"mode": "off"}) == []


def test_a_victim_and_its_preemptor_survive_a_reload() -> None:
    t = Timeline(1)
    t.submit(0, "victim", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.reconfigure(1.01, interactive={"queue_size": 1}) == []
    assert not t.first_byte(1.02, "victim")
    assert t.release(1.03, "victim", ReleaseReason.SLOT_PREEMPTED) == ["vip admit victim_gone victim"]


def test_turning_classes_off_lets_the_preemptor_in_and_the_victim_is_gone_all_the_same() -> None:
    t = Timeline(1)
    t.submit(0, "victim", BULK)
    t.submit(1, "vip", INTERACTIVE)

    assert t.reconfigure(1.01, {"mode": "off"}) == ["vip admit slot_free"]
    assert not t.first_byte(1.02, "victim")
    assert t.release(1.03, "victim", ReleaseReason.SLOT_PREEMPTED) == []
    assert t.of(BULK, SHARED_POOL).ended[ReleaseReason.SLOT_PREEMPTED] == 1


def test_a_reload_keeps_the_order_of_retried_requests() -> None:
    retry = {"on_preempt": "retry"}
    t = Timeline(1, retry)
    t.submit(0, "victim", BULK)
    t.submit(0.1, "b", BULK)
    t.submit(1, "vip", INTERACTIVE)
    t.release(1.01, "victim", ReleaseReason.SLOT_PREEMPTED)
    for at in (2, 3):
        t.reconfigure(at, retry)

    assert t.release(4, "vip") == ["victim admit slot_free"]


def test_retry_after_follows_how_fast_the_queue_moves() -> None:
    """One leaves the queue every 2 s, four wait: come back in about 8 s."""
    t = Timeline(1, default={"queue_size": 4, "queue_timeout_secs": 60})
    t.submit(0, "r0")
    for n in range(1, 5):
        t.submit(0, f"r{n}")
    for n in range(3):
        t.release(2 * (n + 1), f"r{n}")
        t.submit(2 * (n + 1), f"new{n}")

    assert t.submit(6, "overflow") == ["overflow reject queue_full"]
    assert t.last[0].retry_after == 8_000_000
    # it keeps moving at that speed: the estimate was right to the microsecond
    for n, name in enumerate(("r3", "r4", "new0", "new1")):
        t.release(8 + 2 * n, name)
    errors = t.of(DEFAULT).retry_after_error
    assert (errors.count, errors.total) == (1, 0)


def test_an_hour_without_a_queue_says_nothing_of_its_speed() -> None:
    """Two moved in 2 s, long ago. Now one has moved in 3 s, and two wait: 6 s."""
    t = Timeline(1, default={"queue_size": 2, "queue_timeout_secs": 60})
    for n in range(3):
        t.submit(0, f"r{n}")
    for n in range(3):
        t.release(1 + n, f"r{n}")
    for n in range(3):
        t.submit(3600, f"s{n}")
    t.release(3603, "s0")
    t.submit(3603, "s3")

    assert t.submit(3603, "overflow") == ["overflow reject queue_full"]
    assert t.last[0].retry_after == 6_000_000


def test_retry_after_has_a_floor_and_a_ceiling() -> None:
    t = Timeline(1, default={"queue_size": 2, "queue_timeout_secs": 7}, bulk={"queue_size": 0})
    t.submit(0, "held")
    t.submit(0, "b", BULK)
    assert t.last[0].retry_after == 1_000_000  # none waits there: nothing is known
    t.submit(0, "d0")
    t.submit(0, "d1")
    t.submit(3, "d2")
    assert t.last[0].retry_after == 6_000_000  # two wait, and none has moved in 3 s: one of them every 3 s at best
    t.submit(6, "again")
    assert t.last[0].retry_after == 7_000_000  # and never more than one may wait
    t.release(6, "held")
    t.submit(6, "d3")
    for n in range(200):
        t.release(6 + n / 1000, f"d{n if n < 2 else n + 1}" if n < 3 else f"x{n - 3}")
        t.submit(6 + n / 1000, f"x{n}")
    assert t.submit(6.3, "over")[0].split()[1] == "reject"
    assert t.last[0].retry_after == 1_000_000


def test_smg_promises_two_seconds() -> None:
    t = Timeline(1, {"flavour": "smg"}, default={"queue_size": 0, "reserved_per_slot": 0})
    t.submit(0, "held")
    t.submit(0, "d")

    assert (t.last[0].reason, t.last[0].retry_after) == (Reason.QUEUE_FULL, 2_000_000)


def test_a_reload_does_not_fill_the_bucket() -> None:
    said = legacy(rate_limit_tokens_per_second=1)
    t = Timeline(1, said)
    assert t.submit(0, "r0") == ["r0 admit slot_free"]
    t.reconfigure(0.1, said)

    assert t.submit(0.1, "r1") == ["r1 queue rate_limit"]


def test_a_reload_keeps_what_is_known_of_the_queues_speed() -> None:
    """One per second leaves a queue of 2: after a reload, too, an estimate is about 2 s, and the score is kept."""
    t = Timeline(1, default={"queue_size": 2})
    for n in range(3):
        t.submit(100, f"r{n}")
    for n in range(3):
        t.release(101 + n, f"r{n}")
        t.submit(101 + n, f"r{n + 3}")
    t.submit(103, "full")
    assert t.last[0].retry_after == 2_000_000
    t.reconfigure(103, default={"queue_size": 2})
    t.submit(103, "full again")

    assert t.last[0].retry_after == 2_000_000
    for n in range(3, 5):
        t.release(101 + n, f"r{n}")
    assert t.of(DEFAULT).retry_after_error.count == 2


def test_a_queue_that_moved_over_from_another_mode_has_its_age_and_not_the_clocks() -> None:
    t = Timeline(1, legacy(max_concurrent_requests=1, queue_size=2))
    for n in range(3):
        t.submit(1000, f"r{n}")
    t.reconfigure(1001, default={"queue_size": 2})
    t.release(1002, "r0")
    t.submit(1002, "r3")
    t.submit(1002, "full")

    assert t.last[0].retry_after == 4_000_000  # 2 wait, one moved in 2 s


def test_promises_made_without_classes_are_scored_once() -> None:
    t = Timeline(1, legacy(max_concurrent_requests=1, queue_size=1))
    t.submit(0, "r0")
    t.submit(0, "r1")
    t.submit(0, "full")
    t.release(1, "r0")

    assert sum(view.retry_after_error.count for view in t.core.view(SHARED_POOL).classes.values()) == 1


def test_decisions_that_new_rules_bring_about_are_of_now() -> None:
    t = Timeline(1)
    t.submit(0, "held")
    t.submit(0, "waits")

    assert t.reconfigure(15, default={"queue_timeout_secs": 10}) == ["waits reject queue_timeout"]
    assert t.last[0].at == 15_000_000
    assert t.of(DEFAULT).queue_wait.total == 15_000_000


def test_the_durations_of_all_models_are_added_up_where_they_share_a_pool() -> None:
    t = Timeline(1, legacy(max_concurrent_requests=1))
    t.resize(0, 1, pool="other")
    t.submit(0, "r0", BULK)
    t.submit(0, "r1", BULK, pool="other")
    t.release(2, "r0")
    t.release(5, "r1")

    view = t.of(BULK, SHARED_POOL)
    assert (view.slot_hold.count, view.slot_hold.total) == (2, 5_000_000)
    assert (view.queue_wait.count, view.queue_wait.total) == (1, 2_000_000)
