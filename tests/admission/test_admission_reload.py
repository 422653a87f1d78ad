"""What a reload must not disturb: which request is newest, how much of a rate is used up, which tenant is next."""

from __future__ import annotations

from admission_timeline import BULK, INTERACTIVE, SYSTEM, Timeline

from maitred.admission import ReleaseReason

LIMITED = {"tenant_policies": {"auth:a": {"max_in_flight": 1}}}


def test_the_newest_was_admitted_last_and_need_not_have_arrived_last() -> None:
    t = Timeline(3, LIMITED)
    t.submit(0, "a0", BULK, tenant="auth:a")
    t.submit(1, "a1", BULK, tenant="auth:a")  # waits for a0, and is passed
    t.submit(2, "b", BULK)
    t.submit(3, "c", BULK)
    t.release(4, "a0")  # a1 enters last
    t.reconfigure(5, LIMITED)

    assert t.submit(6, "vip", INTERACTIVE)[0] == "a1 preempt higher_class vip"


def test_a_reload_refills_no_bucket() -> None:
    gate = {"legacy": {"max_concurrent_requests": 2, "rate_limit_tokens_per_second": 1}}
    t = Timeline(8, gate)
    t.submit(0, "a", SYSTEM)
    t.submit(0, "b", SYSTEM)

    t.reconfigure(0.1, gate)
    assert t.submit(0.2, "c", SYSTEM) == ["c reject rate_limited"]
    t.reconfigure(0.3, {"legacy": {"max_concurrent_requests": 3, "rate_limit_tokens_per_second": 1}})
    assert t.submit(0.4, "d", SYSTEM) == ["d admit slot_free"]  # another rate begins anew


def test_one_that_is_tried_again_goes_first_whatever_the_weights() -> None:
    said = {"on_preempt": "retry", "tenant_policies": {"auth:a": {"weight": 1}}}
    t = Timeline(1, said)
    t.submit(0, "held", BULK, tenant="auth:b")
    t.submit(0, "b", BULK, tenant="auth:b", cost=1000)
    t.release(1, "held")  # b is far ahead of its share now
    t.submit(2, "a", BULK, tenant="auth:a")
    t.submit(3, "vip", INTERACTIVE)
    t.release(3.01, "b", ReleaseReason.SLOT_PREEMPTED)

    assert t.release(4, "vip") == ["b admit slot_free"]
