"""What a reload must not disturb: which request is newest, how much of a rate is used up, which tenant is next."""

from __future__ import annotations

import pytest
from admission_timeline import BULK, INTERACTIVE, SYSTEM, Timeline

from maitred.admission import Admission, AdmissionConfig, ReleaseReason
from maitred.core.request import PriorityClass, Request

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


@pytest.mark.parametrize("mode", ["priority", "legacy", "flow-control"])
def test_a_model_is_removed_without_its_requests_and_not_before(mode: str) -> None:
    core = Admission(AdmissionConfig(mode=mode), {"a": 1, "b": 1})
    for number, model in enumerate("aab"):
        request = Request(id=number, arrival=0, prompt_tokens=1, max_output_tokens=1, model=model)
        core.submit(core.make_ticket(request, 1), 0)
    assert not core.is_unused("a")
    with pytest.raises(ValueError, match="the model 'a' has requests"):
        core.forget("a", 1)

    for number in (0, 1):
        core.release(number, ReleaseReason.DRAINED, 2)
    assert core.is_unused("a")
    core.forget("a", 3)
    core.check()
    with pytest.raises(KeyError):
        core.is_unused("a")
    view = core.class_views()[PriorityClass.DEFAULT]
    assert (view.arrived, view.in_flight + view.waiting) == (3, 1)

    core.reconfigure(AdmissionConfig(mode="off"), 4)
    assert core.class_views()[PriorityClass.DEFAULT].arrived == 3
    core.resize("a", 2, 5)
    core.release(2, ReleaseReason.DRAINED, 6)
    core.forget("b", 7)
    core.check()
    assert core.class_views()[PriorityClass.DEFAULT].arrived == 3
