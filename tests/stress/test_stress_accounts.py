"""What clients saw against what the gateway counted: which differences are contradictions, and which are not."""

from __future__ import annotations

from stress_accounts import GatewayAccount, contradictions, reconcile
from stress_crowd import ClassSeen

NOTHING = dict.fromkeys(("admitted", "preempted", "rejected_queue_full", "rejected_queue_timeout", "client_cancelled"), 0)


def account(outcomes: dict[str, int], **other: int) -> GatewayAccount:
    return GatewayAccount.parse(
        "".join(
            [f'maitred_scheduler_admit_total{{class="bulk",outcome="{name}"}} {number}\n' for name, number in outcomes.items()]
            + [f'maitred_scheduler_{name}{{class="bulk"}} {number}\n' for name, number in other.items()]
        )
    )


def test_what_the_clients_saw_is_what_was_counted() -> None:
    seen = ClassSeen(sent=10, whole=5, preempted=1, queue_full=3, queue_timeout=1)
    counted = {**NOTHING, "admitted": 5, "preempted": 1, "rejected_queue_full": 2, "rejected_queue_timeout": 1}
    counted["rejected_tenant_queue_full"] = 1
    assert list(contradictions({"bulk": seen}, account(counted))) == []


def test_one_that_left_may_have_been_counted_as_anything_or_never_have_arrived() -> None:
    seen = ClassSeen(sent=8, whole=4, left=4)
    reconciled, problems = reconcile(seen, {**NOTHING, "admitted": 5, "rejected_queue_full": 1, "client_cancelled": 1})
    assert problems == []
    assert reconciled.left_before_arrival == 1
    assert reconciled.left_after == {"whole": 1, "queue_full": 1, "client_cancelled": 1}


def test_an_answer_that_was_never_counted() -> None:
    seen = ClassSeen(sent=2, whole=2)
    problems = reconcile(seen, {**NOTHING, "admitted": 1, "rejected_queue_full": 1})[1]
    assert any("1 more were seen as whole than were counted" in problem for problem in problems)


def test_an_outcome_that_no_client_saw() -> None:
    seen = ClassSeen(sent=2, whole=2)
    assert reconcile(seen, {**NOTHING, "admitted": 2, "preempted": 1})[1] != []
    assert reconcile(seen, {**NOTHING, "admitted": 2, "client_cancelled": 1})[1] != []


def test_a_request_that_the_gateway_never_had_though_its_client_waited() -> None:
    assert reconcile(ClassSeen(sent=3, whole=2), {**NOTHING, "admitted": 2})[1] != []


def test_a_slot_that_was_never_given_back() -> None:
    leaking = account({**NOTHING, "admitted": 1}, inflight=1, queue_depth=2)
    assert any("1 still in flight and 2 waiting" in problem for problem in contradictions({}, leaking))
    assert leaking.arrivals == 4
