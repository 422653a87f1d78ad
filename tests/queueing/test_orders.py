"""The order of each policy that does not look at the cache, in small scenes with numbers worked out by hand."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import ClassVar

from fake_cache import FakeCache, LetterPrompt
from queue_samples import Step, drained, queue, seq, started

from maitred.core.contracts import PrefixCacheView, SortKey, WaitQueue
from maitred.core.request import PriorityClass
from maitred.core.sequence import SequenceState
from maitred.core.units import SECOND
from maitred.queueing import SCHEDULERS
from maitred.queueing.base import KeyPolicy


def filled(spelling: str, *seqs: object) -> WaitQueue:
    waiting = queue(spelling)
    for s in seqs:
        waiting.add(s, now=s.request.arrival)  # type: ignore[attr-defined,arg-type]
    return waiting


def test_lof_serves_the_request_that_allows_the_longest_answer() -> None:
    waiting = filled("lof", *(seq(n, max_output_tokens=most) for n, most in enumerate([50, None, 200, 50])))
    assert drained(waiting) == [1, 2, 0, 3]


def test_edf_serves_the_earliest_deadline_and_those_without_one_last() -> None:
    waiting = filled("edf", *(seq(n, deadline=due) for n, due in enumerate([None, 900, 500, None, 500])))
    assert drained(waiting) == [2, 4, 1, 0, 3]


def test_random_depends_on_the_seed_and_the_step_and_on_nothing_before() -> None:
    def order(seed: int, steps: list[int]) -> list[int]:
        waiting = queue("random", seed)
        for number in range(30):
            waiting.add(seq(number), now=0)
        for step in steps:
            waiting.on_step_start(Step(step), now=step)
            waiting.peek()
        return drained(waiting)

    assert order(1, [1, 2, 3, 4, 5]) == order(1, [5])
    assert order(1, [5]) != order(1, [6])
    assert order(1, [5]) != order(2, [5])


def test_random_gives_all_requests_the_same_chance() -> None:
    heads = Counter[int]()
    waiting = queue("random")
    for number in range(4):
        waiting.add(seq(number), now=0)
    for step in range(4000):
        waiting.on_step_start(Step(step), now=step)
        head = waiting.peek()
        assert head is not None
        heads[head.arrival_index] += 1
    assert all(900 < heads[number] < 1100 for number in range(4))


def test_routing_key_serves_the_keys_that_run_most_and_the_rest_by_arrival() -> None:
    keys = ["z", "a", "", "b", "a", "b", "c"]
    waiting = filled("routing-key", *(seq(n, routing_key=key) for n, key in enumerate(keys)))
    started(waiting, keys={"a": 2, "b": 3, "c": 2, "x": 9})
    assert drained(waiting) == [3, 5, 1, 4, 6, 0, 2]


def test_routing_key_without_running_keys_is_the_order_of_arrival_with_the_preempted_first() -> None:
    waiting = filled("routing-key", *(seq(n, routing_key=key) for n, key in enumerate("ba")))
    waiting.add(seq(9, routing_key="c"), now=50, front=True)
    waiting.add(seq(8), now=50, front=True)
    assert drained(started(waiting)) == [8, 9, 0, 1]


def test_by_priority_uses_the_inner_policy_among_equals_only() -> None:
    requests = [(1, 30), (2, 50), (1, 10), (2, 40), (-0.5, 1)]
    high = filled("by-priority(sjf)", *(seq(n, prompt, priority=float(p)) for n, (p, prompt) in enumerate(requests)))
    low = filled("by-priority(sjf, low-first)", *(seq(n, prompt, priority=float(p)) for n, (p, prompt) in enumerate(requests)))
    assert drained(high) == [3, 1, 2, 0, 4]
    assert drained(low) == [4, 2, 0, 3, 1]


def test_by_priority_keeps_few_of_the_idle_subqueues() -> None:
    waiting = queue("by-priority")
    for number in range(500):
        s = seq(number, priority=float(number))
        waiting.add(s, now=number)
        assert waiting.pop() is s
        waiting.on_sequence_end(s, now=number)
    assert len(waiting.subqueues._subqueues) == 64  # type: ignore[attr-defined]
    waiting.add(seq(600, priority=0.0), now=600)
    assert drained(waiting) == [600]


class Recording(KeyPolicy):
    """Records the start of each step."""

    passes: ClassVar[list[int]] = []

    def key(self, seq: SequenceState) -> SortKey:
        return (seq.arrival_index,)

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        waiting = super().make_queue(prefix, rng)
        waiting.on_step_start = lambda step, now: self.passes.append(now)  # type: ignore[method-assign]
        return waiting


def test_a_step_starts_once_in_a_subqueue_and_only_if_it_is_looked_at() -> None:
    waiting = queue("by-priority(test_orders:Recording)")
    for number in range(6):
        waiting.add(seq(number, priority=float(number // 3)), now=0)
    for now in (1, 2):
        started(waiting, now)
        assert [waiting.peek(), waiting.pop()]
    assert Recording.passes == [1, 2]
    waiting.pop()
    waiting.pop()  # of the other subqueue
    assert Recording.passes == [1, 2, 2]


# slo: a class is worth seconds of waiting


def test_slo_lets_a_lower_class_go_first_when_it_has_waited_for_the_head_start() -> None:
    """interactive is worth 30 s and bulk nothing: a bulk request of 100 s goes before an interactive one of 131 s."""
    old = seq(0, seconds=100, priority_class=PriorityClass.BULK)
    before = seq(1, seconds=129, priority_class=PriorityClass.INTERACTIVE)
    after = seq(2, seconds=131, priority_class=PriorityClass.INTERACTIVE)
    system = seq(3, seconds=200, priority_class=PriorityClass.SYSTEM)
    assert drained(started(filled("slo", old, before, after, system), 200 * SECOND)) == [3, 1, 0, 2]


def test_slo_serves_a_request_earlier_whose_deadline_is_near() -> None:
    """Both default class; the one with a deadline at 50 s came 6 s later. From 40 s on it gains 3 s in a second: at 42 s it is
    level, and the other came first; a microsecond later it leads."""
    other, due = seq(0, seconds=10), seq(1, seconds=16, deadline=50 * SECOND)
    waiting = filled("slo", other, due)
    for now, head in [(17, 0), (41.9, 0), (42, 0), (42.000001, 1)]:
        started(waiting, round(now * SECOND))
        first = waiting.peek()
        assert first is not None
        assert first.arrival_index == head


def test_slo_says_when_its_head_may_change() -> None:
    waiting = filled("slo", seq(0, seconds=10), seq(1, seconds=16, deadline=50 * SECOND))
    started(waiting, 17 * SECOND)
    assert waiting.next_order_change(17 * SECOND) == 40 * SECOND  # from here on it is urgent
    started(waiting, 40 * SECOND)
    assert waiting.next_order_change(40 * SECOND) == 42 * SECOND
    started(waiting, 42 * SECOND + 1)
    assert waiting.next_order_change(42 * SECOND + 1) is None


# aged-sjf: on what is not in the cache


def test_aged_sjf_lets_age_outweigh_length() -> None:
    """1000 tokens of prompt are worth a second of waiting."""
    long, fresh, late = seq(0, 5000, seconds=1), seq(1, 100, seconds=5.8), seq(2, 100, seconds=6)
    assert drained(filled("aged-sjf", long, fresh, late)) == [1, 0, 2]
    assert drained(filled("aged-sjf(tokens_per_second=10)", long, fresh, late)) == [1, 2, 0]


def test_aged_sjf_counts_what_the_cache_lacks_and_follows_its_changes() -> None:
    cache = FakeCache(16)
    waiting = SCHEDULERS.get("aged-sjf")().make_queue(cache, Random(0))
    long, short = seq(0, 170, arrival=0, prefix=LetterPrompt("abcdefghij")), seq(1, 100, arrival=0)
    for s in (long, short):
        waiting.add(s, now=0)
    assert started(waiting).peek() is short
    cache.store("abcdefghij")
    assert started(waiting).peek() is long
    cache.evict("abcd")
    assert started(waiting).peek() is short


# srpt: what is known of answers


def taught(waiting: WaitQueue, **lengths: list[int]) -> WaitQueue:
    """Let `waiting` know that each tenant has had answers of these lengths, and return it."""
    for tenant, known in lengths.items():
        for number, length in enumerate(known):
            s = seq(1000 + number, tenant=tenant)
            s.num_output_tokens = length
            waiting.on_finished(s, now=0)
    return waiting


def test_srpt_expects_of_a_tenant_what_it_had_before() -> None:
    """The medians: 900, 40, and 70 of all twelve."""
    waiting = taught(queue("srpt"), long=[900] * 5, short=[10, 20, 30, 40, 50, 60, 70])
    for number, tenant in enumerate(["long", "unheard-of", "short"]):
        waiting.add(seq(number, tenant=tenant), now=0)
    assert drained(waiting) == [2, 1, 0]


def test_srpt_knows_programs_apart_and_keeps_to_what_the_client_allows() -> None:
    waiting = queue("srpt")
    for number in range(10):
        s = seq(100 + number, tenant="t", program="chatty" if number % 2 else "terse")
        s.num_output_tokens = 500 if number % 2 else 5
        waiting.on_finished(s, now=0)
    waiting.add(seq(0, tenant="t", program="chatty"), now=0)
    waiting.add(seq(1, tenant="t", program="terse"), now=0)
    waiting.add(seq(2, tenant="t", program="chatty", max_output_tokens=3), now=0)
    assert drained(waiting) == [2, 1, 0]


def test_srpt_counts_what_a_preempted_sequence_has_left() -> None:
    waiting = taught(queue("srpt(quantile(q=0.5))"), t=[100, 100, 100, 100, 500])
    half_done, beyond, far_beyond = (seq(number, tenant="t") for number in (0, 1, 3))
    half_done.num_output_tokens, beyond.num_output_tokens, far_beyond.num_output_tokens = 95, 300, 600
    waiting.add(far_beyond, now=0, front=True)  # none was so long: as much again, 600
    waiting.add(beyond, now=0, front=True)  # only one was longer than 300: 500, so 200 are left
    waiting.add(seq(2, tenant="t"), now=0)  # 100
    waiting.add(half_done, now=0, front=True)  # 5 are left
    assert drained(waiting) == [0, 2, 1, 3]


def test_srpt_that_knows_nothing_is_the_order_of_arrival() -> None:
    for spelling in ("srpt", "srpt(none)", "srpt(hint)"):
        waiting = queue(spelling)
        for number in (2, 0, 1):
            waiting.add(seq(number, prompt=100 - 10 * number), now=5)
        assert drained(waiting) == [0, 1, 2]


def test_srpt_by_hint_expects_the_median_without_a_hint() -> None:
    waiting = taught(queue("srpt(hint)"), t=[60] * 5)
    for number, allowed in enumerate([100, None, 20]):
        waiting.add(seq(number, max_output_tokens=allowed), now=0)
    assert drained(waiting) == [2, 1, 0]
