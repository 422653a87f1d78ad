"""Flow control, one rule at a time. `max_concurrency: 1` over one instance makes it saturated by one request in flight."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from flow_timeline import FlowTimeline, flow_config

from maitred.admission import Admission, AdmissionConfig, ReleaseReason, Ticket, TicketState
from maitred.core.contracts import FleetLoad, InstanceLoad
from maitred.core.decisions import DecisionLog, decision_on
from maitred.core.request import PriorityClass, Request
from maitred.replay import replay

ONE: Any = {"saturation_detector": "concurrency", "max_concurrency": 1}


def test_a_request_that_finds_the_fleet_saturated_waits_until_another_has_left() -> None:
    t = FlowTimeline(**ONE)

    assert t.submit(0, "a") == ["a admit slot_free"]
    assert t.submit(1, "b") == ["b queue saturated"]
    assert t.due() is None  # only inputs change what is in flight: no timer is needed
    assert t.release(5, "a") == ["b admit slot_free"]
    assert t.release(9, "b") == []


def test_the_more_urgent_go_first_and_within_a_band_the_first_to_arrive() -> None:
    t = FlowTimeline(**ONE)
    t.submit(0, "a")
    for name, slo in (("b1", "batch"), ("s1", "standard"), ("s2", "standard"), ("c1", "critical"), ("x1", "sheddable")):
        t.submit(1, name, slo)

    order = [t.release(10 + i, name)[0].split()[0] for i, name in enumerate(("a", "c1", "s1", "s2", "b1"))]

    assert order == ["c1", "s1", "s2", "b1", "x1"]


def test_all_that_may_go_in_do_and_count_at_once_before_an_instance_shows_them() -> None:
    t = FlowTimeline(saturation_detector="concurrency", max_concurrency=2, instances=2)
    t.hidden = 4  # they are on their way for some time

    for name in "abcd":
        assert t.submit(0, name) == [f"{name} admit slot_free"]
    for name in "efg":
        assert t.submit(1, name) == [f"{name} queue saturated"]
    t.release(2, "a")
    t.reconfigure(3, flow_config(saturation_detector="concurrency", max_concurrency=3))

    assert t.core.view("m").in_flight == 6


def test_one_at_a_time_for_each_arrival_and_each_tick() -> None:
    """BLIS: at most one request per attempt, and an attempt at each arrival and every ms while requests wait."""
    t = FlowTimeline({"flavour": "blis"}, **ONE)
    t.submit(0, "a")
    t.submit(0.3, "b")
    t.submit(0.4, "c")

    assert t.due() == 1  # one ms after the first attempt, not after the first request that waits
    assert t.release(0.5, "a") == []  # a release is no attempt
    assert t.advance(1) == ["b admit slot_free"]
    assert t.advance(2) == []
    t.release(2.5, "b")
    assert t.submit(2.7, "d", "critical") == ["d admit slot_free"]  # an arrival is
    t.release(2.8, "d")
    assert t.advance(3) == ["c admit slot_free"]
    assert t.due() is None


def test_at_one_instant_arrivals_come_before_the_tick() -> None:
    t = FlowTimeline({"flavour": "blis"}, **ONE)
    t.submit(0, "a")
    t.submit(0.5, "b")
    t.release(0.7, "a")

    assert t.submit(1, "c", "critical") == ["c admit slot_free"]
    assert t.advance(1) == []
    t.release(1.2, "c")
    assert t.advance(2) == ["b admit slot_free"]


def test_the_queues_of_the_instances_are_looked_at_every_tick() -> None:
    """Utilisation of two instances at a threshold of 4: (4/4 + 5/4) / 2 is above 1; (2/4 + 5/4) / 2 is 7/8, and one more makes
    it 8/8."""
    t = FlowTimeline(saturation_detector="utilization", queue_depth_threshold=4, instances=2, dispatch_tick_interval_us=2000)
    t.waiting = [4, 5]

    assert t.submit(0, "a") == ["a queue saturated"]
    assert t.submit(1, "b") == ["b queue saturated"]
    assert t.due() == 2
    assert t.advance(2) == []
    t.waiting = [2, 5]
    t.hidden = 1
    assert t.advance(4) == ["a admit slot_free"]
    assert t.advance(6) == []
    t.hidden, t.waiting = 0, [3, 4]
    assert t.advance(8) == ["b admit slot_free"]
    assert (t.due(), t.looks) == (None, 4)


def test_no_instance_is_saturation_and_never_is_none() -> None:
    assert FlowTimeline(**ONE, instances=0).submit(0, "a") == ["a queue saturated"]
    assert FlowTimeline(saturation_detector="never", instances=0).submit(0, "a") == ["a admit slot_free"]


def test_below_a_usage_limit_of_1_the_less_urgent_leave_room() -> None:
    """Five bands and a limit of 0.6: from the most urgent, ceilings of 1, 0.9, 0.8, 0.7 and 0.6 of ten requests."""
    t = FlowTimeline(saturation_detector="concurrency", max_concurrency=10, usage_limit_threshold=0.6)
    for n in range(6):
        t.submit(n, f"b{n}", "background")

    assert t.submit(6, "b6", "background") == ["b6 queue saturated"]
    assert t.submit(7, "s", "sheddable") == ["s admit slot_free"]  # to seven
    assert t.submit(8, "s2", "sheddable") == ["s2 queue saturated"]
    assert t.submit(9, "b", "batch") == ["b admit slot_free"]  # to eight
    assert t.submit(10, "n", "standard") == ["n admit slot_free"]
    assert t.submit(11, "n2", "standard") == ["n2 queue saturated"]
    assert t.submit(12, "c", "critical") == ["c admit slot_free"]
    assert t.submit(13, "c2", "critical") == ["c2 queue saturated"]


def test_blis_knows_only_the_bands_that_it_has_seen() -> None:
    """The first class to come is the most urgent there is: no usage limit holds for it."""
    t = FlowTimeline({"flavour": "blis"}, saturation_detector="concurrency", max_concurrency=10, usage_limit_threshold=0.6)

    assert [t.submit(n, f"b{n}", "background")[0] for n in range(10)] == [f"b{n} admit slot_free" for n in range(10)]


def test_dispatch_order_fifo_is_by_arrival_over_all_bands_that_may_go_in() -> None:
    arrivals = (("b", "batch"), ("c", "critical"), ("s", "standard"))

    def order(flavour: str) -> list[str]:
        t = FlowTimeline({"flavour": flavour}, **ONE, dispatch_order="fifo", dispatch="all")
        t.submit(0, "a")
        for name, slo in arrivals:
            t.submit(1, name, slo)
        return [t.release(10 + i, name)[0].split()[0] for i, name in enumerate("abc" if flavour == "maitred" else "acs")]

    assert order("maitred") == ["b", "c", "s"]
    assert order("blis") == ["c", "s", "b"]  # whatever the order: bands by priority


def test_dispatch_order_slo_deadline_is_by_when_the_first_token_is_due() -> None:
    t = FlowTimeline(**ONE, dispatch_order="slo-deadline")
    t.submit(0, "a")
    t.submit(1, "late", "critical", target_ms=500)
    t.submit(2, "never", "critical")
    t.submit(3, "soon", "batch", target_ms=100)
    t.submit(4, "sooner", "standard", target_ms=98)

    order = [t.release(10 + i, name)[0].split()[0] for i, name in enumerate(("a", "sooner", "soon", "late"))]

    assert order == ["sooner", "soon", "late", "never"]  # due at 102, 103, 501 ms


def test_tenants_take_turns_with_round_robin() -> None:
    def order(policy: str) -> list[str]:
        t = FlowTimeline(**ONE, fairness_policy=policy)
        t.submit(0, "first", tenant="y")
        for name, tenant in (("x1", "x"), ("x2", "x"), ("x3", "x"), ("y1", "y"), ("z1", "z")):
            t.submit(1, name, tenant=tenant)
        went = ["first"]
        for ms in range(5):
            went.append(t.release(10 + ms, went[-1])[0].split()[0])
        return went[1:]

    assert order("round-robin") == ["z1", "x1", "y1", "x2", "x3"]
    assert order("global-strict") == ["x1", "x2", "x3", "y1", "z1"]


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_reload_leaves_the_turn_of_a_tenant_as_it_was(is_empty: bool) -> None:
    """x was served last, so y is next, and x is not served once more; also if nobody waited at the reload."""
    t = FlowTimeline(**ONE, fairness_policy="round-robin")
    t.submit(0, "x1", tenant="x")
    waiting = [("x2", "x"), ("y1", "y")]
    for name, tenant in [] if is_empty else waiting:
        t.submit(1, name, tenant=tenant)
    t.reconfigure(2, flow_config(**ONE, fairness_policy="round-robin"))
    for name, tenant in waiting if is_empty else []:
        t.submit(3, name, tenant=tenant)
    assert t.release(10, "x1")[0].split()[0] == "y1"


def test_a_full_queue_rejects_and_says_when_to_come_back() -> None:
    t = FlowTimeline(**ONE, max_gateway_queue_depth=3, per_band_capacity=2)
    t.submit(0, "a")
    for name, slo in (("s1", "standard"), ("s2", "standard"), ("b1", "batch")):
        t.submit(1, name, slo)

    assert t.submit(2, "s3") == ["s3 reject band_full"]
    assert t.submit(3, "c1", "critical") == ["c1 reject queue_full"]
    refused = t.core.view("m").classes
    assert sum(c.queue_full for c in refused.values()) == 1
    assert sum(sum(c.refused.values()) for c in refused.values()) == 1


def test_queue_shedding_makes_room_by_the_newest_of_the_lowest_that_can_be_shed() -> None:
    t = FlowTimeline(**ONE, max_gateway_queue_depth=4, queue_shedding=True)
    t.submit(0, "a")
    for name, slo in (("x1", "sheddable"), ("x2", "sheddable"), ("b1", "batch"), ("s1", "standard")):
        t.submit(1, name, slo)

    assert t.submit(2, "x3", "sheddable") == ["x3 reject queue_full"]  # no request is below it
    assert t.submit(3, "c1", "critical") == ["x2 reject displaced c1", "c1 queue saturated"]
    assert t.submit(4, "b2", "batch") == ["x1 reject displaced b2", "b2 queue saturated"]
    assert t.submit(5, "s2") == ["b2 reject displaced s2", "s2 queue saturated"]
    assert t.submit(6, "s3") == ["b1 reject displaced s3", "s3 queue saturated"]
    assert t.submit(7, "c2", "critical") == ["c2 reject queue_full"]  # the request that waits now cannot be shed
    assert t.release(8, "x2") == []  # it has left


def test_who_waits_too_long_is_rejected() -> None:
    t = FlowTimeline(**ONE, request_ttl_us=20_000)
    t.submit(0, "a")
    t.submit(5, "b")
    t.submit(7, "c", "critical")

    assert t.due() == 25
    assert t.advance(25) == ["b reject queue_timeout"]
    assert t.release(26, "a") == ["c admit slot_free"]
    assert (t.due(), t.advance(100)) == (None, [])


def test_who_leaves_the_queue_is_not_let_in() -> None:
    t = FlowTimeline(**ONE)
    t.submit(0, "a")
    t.submit(1, "b")
    t.submit(2, "c")

    assert t.release(3, "b", ReleaseReason.CLIENT_GONE) == ["b cancel client_gone"]
    assert t.release(4, "a") == ["c admit slot_free"]


def test_eviction_stops_the_last_of_the_lowest_for_one_that_cannot_be_shed() -> None:
    t = FlowTimeline(saturation_detector="concurrency", max_concurrency=4, in_flight_eviction=True)
    for name, slo in (("b1", "batch"), ("x1", "sheddable"), ("x2", "sheddable"), ("x3", "sheddable")):
        t.submit(0, name, slo)
    assert t.first_byte(1, "x3")

    assert t.submit(2, "b2", "batch") == ["b2 queue saturated"]  # it can be shed itself
    assert t.submit(3, "s1") == ["x2 preempt higher_class s1", "s1 queue saturated"]
    assert t.submit(4, "s2") == ["s2 queue saturated"]  # a slot is about to be free: one at a time
    assert t.release(5, "x2", ReleaseReason.SLOT_PREEMPTED) == ["s1 admit slot_free"]
    assert t.submit(6, "s3") == ["x1 preempt higher_class s2", "s3 queue saturated"]
    assert t.release(7, "x1", ReleaseReason.SLOT_PREEMPTED) == ["s2 admit slot_free"]


def test_a_victim_may_wait_again_and_is_left_alone_then() -> None:
    t = FlowTimeline({"on_preempt": "retry"}, **ONE, in_flight_eviction=True)
    t.submit(0, "b1", "batch")
    t.submit(1, "b2", "batch")
    t.submit(2, "s1")

    assert t.release(3, "b1", ReleaseReason.SLOT_PREEMPTED) == ["b1 queue to_be_retried", "s1 admit slot_free"]
    assert t.release(4, "s1") == ["b1 admit slot_free"]  # first of its band, as it was before
    assert t.submit(5, "s2") == ["s2 queue saturated"]


def test_a_reload_from_classes_and_back_loses_no_request() -> None:
    t = FlowTimeline(**ONE)
    for name in "abc":
        t.submit(0, name)

    assert t.reconfigure(1, AdmissionConfig(mode="priority")) == ["b admit slot_free", "c admit slot_free"]
    assert t.reconfigure(2, flow_config(**ONE)) == []
    t.submit(3, "d")
    assert [t.release(4, name) for name in "abc"] == [[], [], ["d admit slot_free"]]


def test_a_reload_from_slots_of_tokens_counts_each_request_as_one() -> None:
    tokens = msgspec.convert({"mode": "priority", "slot_cost": "tokens", "slot_tokens": 100}, AdmissionConfig)
    core = Admission(tokens, {"m": 1})
    held, waits = Ticket(0, "m", cost=100), Ticket(1, "m", cost=100)
    core.submit(held, 0)
    core.submit(waits, 0)

    core.reconfigure(flow_config(saturation_detector="never"), 1)
    assert (held.state, waits.state) == (TicketState.ADMITTED, TicketState.ADMITTED)
    assert (held.slot_units, waits.slot_units) == (1, 1)


def test_a_log_with_looks_runs_again_byte_for_byte() -> None:
    t = FlowTimeline(saturation_detector="utilization", request_ttl_us=9_000, max_gateway_queue_depth=2, queue_shedding=True)
    t.waiting = [5]
    for ms, (name, slo) in enumerate((("a", "batch"), ("b", "sheddable"), ("c", "critical"))):
        t.submit(ms, name, slo)
    t.advance(4)
    t.waiting = [4]
    t.advance(5)
    t.waiting = [9]
    t.advance(6)
    t.release(7, "c")
    t.advance(12)

    again: list[bytes] = []
    replay(t.log, DecisionLog(again.append))

    assert again == t.log
    assert sum(b'"look"' in line for line in again) == t.looks > 5


def test_a_victim_that_waits_again_alone_is_let_in_by_a_tick() -> None:
    t = FlowTimeline({"on_preempt": "retry"}, **ONE, dispatch="one", in_flight_eviction=True)
    t.submit(0, "b1", "batch")
    t.submit(1, "s1")
    t.release(1.2, "s1", ReleaseReason.CLIENT_GONE)

    assert t.release(5.5, "b1", ReleaseReason.SLOT_PREEMPTED) == ["b1 queue to_be_retried"]
    assert t.due() == 6.5
    assert t.advance(6.5) == ["b1 admit slot_free"]


def test_a_reload_while_a_preemptor_awaits_the_slot_of_a_victim() -> None:
    t = FlowTimeline({"mode": "priority"})
    t.reconfigure(0, AdmissionConfig(mode="priority"))
    t.core.resize("m", 1, 0)
    t.core.submit(Ticket(0, "m", PriorityClass.BULK), 0)
    assert decision_on(1, t.core.submit(Ticket(1, "m", PriorityClass.SYSTEM), 0)).reason == "victim_leaving"

    assert t.core.reconfigure(flow_config(saturation_detector="never"), 1)[-1].subject == 1
    assert not t.core.release(0, ReleaseReason.SLOT_PREEMPTED, 2)
    t.core.check()


def test_new_rules_that_are_due_in_the_past_act_at_the_instant_of_the_reload_and_in_a_log_run_again() -> None:
    t = FlowTimeline(saturation_detector="utilization", dispatch_tick_interval_us=10**9)
    t.waiting = [9]
    t.submit(0, "a")
    t.advance(5)  # nothing happens, and nothing is written
    t.reconfigure(5, flow_config(saturation_detector="utilization", dispatch_tick_interval_us=10))

    again: list[bytes] = []
    replay(t.log, DecisionLog(again.append))

    assert again == t.log
    assert t.looks == 2


def test_a_request_that_no_longer_waits_takes_no_room_until_its_timeout() -> None:
    t = FlowTimeline(**ONE, request_ttl_us=10**9)
    t.submit(0, "a")
    t.submit(0, "b")
    for n in range(1000):
        t.submit(1, str(n))
        t.release(1, str(n), ReleaseReason.CLIENT_GONE)

    pool: Any = t.core._pools.by_name["m"]
    assert len(pool._expiries) < 100


BY_DEADLINE: Any = {**ONE, "dispatch_order": "slo-deadline"}


def order(t: FlowTimeline, first: str, count: int) -> str:
    """Return which requests enter, one after another, when `first` and then each of them leaves."""
    names = [first]
    for ms in range(count):
        names.append(t.release(100 + ms, names[-1])[0].split()[0])
    return " ".join(names[1:])


def test_by_deadline_all_tenants_compete_but_in_blis_the_oldest_request_first_chooses_the_tenant() -> None:
    """BLIS: the flow whose head came first; within it, the request that is due first. y waits until x has no older request."""
    waiters = (("x1", "x", 90.0), ("y1", "y", 5.0), ("x2", "x", 20.0), ("y2", "y", None))
    orders = []
    for flavour in ("maitred", "blis"):
        t = FlowTimeline({"flavour": flavour}, **{**BY_DEADLINE, "dispatch": "all"})
        t.submit(0, "a")
        for ms, (name, tenant, target) in enumerate(waiters):
            t.submit(1 + ms, name, tenant=tenant, target_ms=target)
        orders.append(order(t, "a", 4))

    assert orders == ["y1 x2 x1 y2", "x2 x1 y1 y2"]


def test_when_a_tenant_has_no_request_left_the_next_has_its_turn_but_in_blis_the_first() -> None:
    orders = []
    for flavour in ("maitred", "blis"):
        t = FlowTimeline({"flavour": flavour}, **ONE, fairness_policy="round-robin", dispatch="all")
        t.submit(0, "a", tenant="z")
        for name in ("x1", "x2", "x3", "y1", "z1"):
            t.submit(1, name, tenant=name[0])
        orders.append(order(t, "a", 5))

    # both begin after z, with x, y; then y is empty
    assert orders == ["x1 y1 z1 x2 x3", "x1 y1 x2 z1 x3"]


def test_who_names_no_tenant_is_of_the_tenant_default() -> None:
    t = FlowTimeline(**ONE, fairness_policy="round-robin")
    t.submit(0, "a", tenant="zz")
    for name, tenant in (("b1", "b"), ("n1", ""), ("n2", "default"), ("e1", "e")):
        t.submit(1, name, tenant=tenant)

    assert order(t, "a", 4) == "b1 n1 e1 n2"


def test_in_blis_a_band_is_there_as_soon_as_a_request_was_rejected_from_it() -> None:
    """Its ceilings count the bands that there are: of three the middle one waits from 0.75 on, of two the lower from 0.5."""
    t = FlowTimeline(
        {"flavour": "blis"},
        saturation_detector="concurrency",
        max_concurrency=4,
        usage_limit_threshold=0.5,
        max_gateway_queue_depth=1,
    )
    for name in "abcd":
        t.submit(0, name, "critical")
    t.submit(1, "s1")
    assert t.submit(2, "x1", "batch") == ["x1 reject queue_full"]
    t.release(2.1, "a")
    t.release(2.1, "b")

    assert t.advance(3) == ["s1 admit slot_free"]


def test_what_is_said_of_another_detector_or_of_an_order_that_there_is_not_is_warned_of() -> None:
    def warnings(flavour: str = "maitred", **flow: Any) -> list[str]:
        return list(flow_config({"flavour": flavour}, **flow).policy_warnings())

    assert warnings(max_concurrency=3) == []
    assert warnings(saturation_detector="utilization", queue_depth_threshold=3, dispatch_order="fifo") == []
    assert warnings(saturation_detector="utilization", max_concurrency=3) == [], "for instances that report no load"
    assert warnings(saturation_detector="never", max_concurrency=3)[0] == (
        "max_concurrency has no effect: the saturation detector is never, not concurrency or utilization"
    )
    assert warnings("blis", max_concurrency=3) == [
        "max_concurrency has no effect: the saturation detector is never, not concurrency or utilization"
    ]
    assert warnings(kv_cache_util_threshold=0.5)[0].startswith("kv_cache_util_threshold has no effect")
    assert warnings("blis", dispatch_order="fifo") == [
        "dispatch_order: fifo has no effect with flavour: blis, where bands are served by priority"
    ]


def test_a_request_that_leaves_one_model_lets_in_one_of_another_on_the_same_instances() -> None:
    in_flight = 0
    core = Admission(flow_config(**ONE), {"m": 1, "n": 1}, lambda pool, now: FleetLoad((InstanceLoad(in_flight),)))
    in_flight = len(core.submit(Ticket(0, "m"), 0, FleetLoad((InstanceLoad(0),))))
    assert decision_on(1, core.submit(Ticket(1, "n"), 1, FleetLoad((InstanceLoad(in_flight),)))).action == "queue"

    in_flight = 0
    assert [(d.subject, d.action) for d in core.release(0, ReleaseReason.DRAINED, 2)] == [(1, "admit")]


def test_a_target_is_that_of_todays_class_and_an_unknown_class_is_standard() -> None:
    config = flow_config({"slo_targets": {"critical": 7, "standard": 9}, "slo_priorities": {"standard": 5}})
    core = Admission(config, {"m": 1})
    asked = [Request(id=n, arrival=0, prompt_tokens=1, slo_class=name) for n, name in enumerate(("realtime", "nonsense", ""))]

    assert [core.make_ticket(request, 1).slo_target for request in asked] == [7, None, 9]
    assert [core.make_ticket(request, 1).slo_priority for request in asked] == [4, 5, 5]


def test_places_in_a_flow_that_no_request_holds_are_dropped() -> None:
    t = FlowTimeline(**ONE)
    t.submit(0, "a")
    t.submit(0, "b")
    for n in range(500):
        t.submit(1, str(n))
        t.release(1, str(n), ReleaseReason.CLIENT_GONE)

    pool: Any = t.core._pools.by_name["m"]
    (line,) = (line for band in pool.bands._bands for line in band._flows.values())
    assert len(line._heap) < 100


def test_a_tick_without_waiting_requests_still_serves_an_arrival_at_its_instant() -> None:
    """A timer that rings at every deadline decides as one that rings late: it must not use the tick up."""
    for punctual in (True, False):
        t = FlowTimeline(saturation_detector="utilization", dispatch_tick_interval_us=3000)
        t.waiting = [5]
        t.submit(0, "a")
        t.release(2, "a", ReleaseReason.CLIENT_GONE)
        if punctual:
            t.advance(3)
        t.submit(3, "b")
        t.waiting = [0]

        assert t.due() == 3
        assert t.advance(3) == ["b admit slot_free"]
