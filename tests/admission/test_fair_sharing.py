"""Start-time fair queueing: how far apart two waiting tenants can get, and what must not put a tenant ahead or behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.admission.terms.tenants import TenantAccount
from maitred.admission.terms.ticket import Ticket
from maitred.admission.waiting.queues import LaneQueue, SequenceNumbers
from maitred.core.request import PriorityClass

BULK = PriorityClass.BULK


def queued_ticket(number: int, submitted_at: int, queued_at: int, tenant: str = "", cost: int = 1) -> Ticket:
    ticket = Ticket(number, "m", BULK, tenant, cost)
    ticket.submitted_at, ticket.queued_at = submitted_at, queued_at
    return ticket


class QueueTimeline:
    """One queue driven by hand."""

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self.queue = LaneQueue(SequenceNumbers(), {"w": 1.0} if weights is None else weights)
        self.count = 0

    def push(self, tenant: str, cost: int = 1, *, back: bool = False, account: TenantAccount | None = None) -> None:
        self.count += 1
        ticket = queued_ticket(self.count, self.count, self.count, tenant, cost)
        ticket.tenant_account = account
        if back:
            self.queue.push_front(ticket)
        else:
            self.queue.push(ticket)

    def serve(self, count: int = 1) -> str:
        order = ""
        for _ in range(count):
            head = self.queue.peek()
            assert head is not None
            self.queue.serve(head)
            order += head.tenant
        return order


tenants = st.sampled_from("abc")
weights = st.sampled_from((1e-6, 0.3, 1.0, 2.0, 7.0, 1e6))
costs = st.integers(1, 1000)


@given(
    st.dictionaries(tenants, weights, min_size=1),
    st.lists(st.tuples(tenants, costs), min_size=20, max_size=80),
    st.integers(0, 60),
)
@settings(max_examples=100, deadline=None)
def test_two_tenants_that_both_wait_are_served_alike_but_for_one_request_each(
    given_weights: dict[str, float], pushed: list[tuple[str, int]], first: int
) -> None:
    """In every interval in which both wait: |served a / weight a - served b / weight b| ≤ largest a / weight a + largest b /
    weight b (Goyal, Vin and Cheng 1996)."""
    line = QueueTimeline(given_weights)
    left: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    served = dict.fromkeys("abc", 0.0)
    largest = dict.fromkeys("abc", 0.0)
    since: dict[tuple[str, str], float] = {}
    todo = [*pushed]
    for n in range(2 * len(pushed)):
        if todo and (n < first or not any(left.values()) or n % 2):
            tenant, cost = todo.pop(0)
            line.push(tenant, cost)
            left[tenant].append(cost)
            largest[tenant] = max(largest[tenant], cost / given_weights.get(tenant, 1.0))
        else:
            tenant = line.serve()
            served[tenant] += left[tenant].pop(0) / given_weights.get(tenant, 1.0)
        for one, other in ("ab", "bc", "ac"):
            if not (left[one] and left[other]):
                since.pop((one, other), None)
                continue
            gap = served[one] - served[other]
            began = since.setdefault((one, other), gap)
            assert abs(gap - began) <= (largest[one] + largest[other]) * (1 + 1e-9)


def test_a_small_step_counts_however_far_the_others_are() -> None:
    """In floats 1e12 + 1e-6 is 1e12: there w and o would take turns, whatever their weights."""
    line = QueueTimeline({"l": 1e-6, "w": 1e6, "o": 1e5})
    for _ in range(3):
        line.push("l", 1_000_000)
    line.serve(2)
    for _ in range(10):
        line.push("w")
        line.push("o")

    assert line.serve(10) == "wowwwwwwww"


def test_a_request_that_costs_nothing_counts_as_one() -> None:
    line = QueueTimeline()
    for _ in range(10):
        line.push("f", cost=0)
        line.push("o")

    assert line.serve(6).count("o") == 3


def test_a_request_that_comes_back_moves_neither_its_tenant_nor_the_clock() -> None:
    """a is far ahead, by one large request; one of its requests comes back and goes first. c joins then, not behind b."""
    line = QueueTimeline()
    line.push("a", cost=100)
    line.push("a")
    for _ in range(20):
        line.push("b")
    assert line.serve() == "a"
    line.push("a", back=True)
    assert line.serve() == "a"
    for _ in range(3):
        line.push("c")

    assert line.serve(6) == "bcbcbc"


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    line = QueueTimeline()
    for _ in range(20):
        line.push("a")
    line.serve(10)
    for _ in range(4):
        line.push("b")

    assert line.serve(6) == "bababa"


def test_an_answer_that_was_longer_than_expected_puts_what_waits_of_its_tenant_behind() -> None:
    line = QueueTimeline()
    line.push("a")
    for _ in range(3):
        line.push("a")
        line.push("b")
    first = line.queue.peek()
    assert first is not None
    line.queue.serve(first)
    line.queue.settle(first, 3)

    assert line.serve(6) == "bbbaaa"


def test_what_tenants_owe_is_kept_of_so_many_of_them() -> None:
    """A flood of tenants with one request each leaves no trace of each of them."""
    line = QueueTimeline()
    line.push("stays", cost=10**9)
    line.push("stays")
    line.serve()
    for n in range(5000):
        line.push(f"ip:{n}")
        line.serve()

    assert len(line.queue._idle_virtual_times) <= 1024


def test_the_oldest_is_found_though_it_joined_late() -> None:
    queue = LaneQueue(SequenceNumbers())
    prompt = queued_ticket(1, 10, 10)
    late = queued_ticket(2, 0, 50)
    queue.push(prompt)
    queue.push(late)

    assert queue.oldest() is late
    assert queue.peek() is prompt
    queue.remove(late)
    assert queue.oldest() is prompt


def test_a_number_that_is_used_again_is_not_taken_for_its_former_request() -> None:
    queue = LaneQueue(SequenceNumbers())
    before = queued_ticket(7, 0, 5)
    queue.push_front(before)
    queue.remove(before)
    queue.push(queued_ticket(1, 6, 6))
    queue.push(queued_ticket(7, 8, 8))

    assert queue.oldest() is not before


def test_a_request_that_comes_back_at_once_owes_what_it_was_just_given() -> None:
    line = QueueTimeline()
    for _ in range(20):
        line.push("a")
    line.push("b", cost=10)
    assert line.serve(2) == "ab"
    line.push("b")

    assert line.serve(11) == "a" * 9 + "ba"


@pytest.mark.parametrize("num_looks", [0, 1])
def test_looks_do_not_change_the_order_of_tenants_that_are_at_their_limits(num_looks: int) -> None:
    """The queue of a tenant at its limit is passed over at a look. Below the limit, it is where it was: before b."""
    line = QueueTimeline()
    account = TenantAccount("a", max_in_flight=1)
    account.in_flight = 1
    line.push("a", account=account)
    line.push("b")
    for _ in range(num_looks):
        head = line.queue.peek()
        assert head is not None
        assert head.tenant == "b"
    account.in_flight = 0
    line.queue.put_back_tenant("a")

    assert line.serve(2) == "ab"
