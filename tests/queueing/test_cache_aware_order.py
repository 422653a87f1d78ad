"""Policies that order by the prefix cache: their orders, worked out by hand, and how many lookups a pass makes."""

from __future__ import annotations

from random import Random

import pytest
from fake_cache import FakeCache, IdleStep, seq

from maitred.core.contracts import SortKey, WaitQueue
from maitred.core.errors import ConfigError
from maitred.core.sequence import SequenceState
from maitred.queueing import SCHEDULERS, QueueingConfig
from maitred.queueing.base import KeyPolicy
from maitred.queueing.prefix_index import PrefixIndex
from maitred.queueing.prefix_orders import CacheAwarePolicy, LongestPrefixMatch

CACHE_AWARE = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")


def queue(name: str, cache: FakeCache, *seqs: SequenceState) -> WaitQueue:
    waiting = SCHEDULERS.get(name)().make_queue(cache, Random(0))
    for each in seqs:
        waiting.add(each, 0)
    return waiting


def drained(waiting: WaitQueue) -> list[int]:
    waiting.on_step_start(IdleStep(), 0)
    return [waiting.pop().arrival_index for _ in range(len(waiting))]


def test_lpm_goes_by_what_is_cached_then_by_arrival() -> None:
    cache = FakeCache()
    cache.store("abc", "x")
    waiting = queue("lpm", cache, seq(0, "uv"), seq(1, "xy"), seq(2, "abcd"), seq(3, "xz"), seq(4, "ab"))
    assert drained(waiting) == [2, 4, 1, 3, 0]


def test_lpm_follows_the_cache_from_pass_to_pass() -> None:
    cache = FakeCache()
    waiting = queue("lpm", cache, seq(0, "abcd"), seq(1, "wxyz"), seq(2, "w"))
    cache.store("ab", "w")
    assert first(waiting) == 0
    cache.store("wxy")
    head = waiting.peek()
    assert head is not None
    assert head.arrival_index == 0, "nothing moves within a pass"
    assert first(waiting) == 1
    cache.evict("w")  # blocks behind the gap are of no use
    assert drained(waiting) == [0, 1, 2]


def first(waiting: WaitQueue) -> int:
    """Start a pass, and return the number of the head."""
    waiting.on_step_start(IdleStep(), 0)
    head = waiting.peek()
    assert head is not None
    return head.arrival_index


def test_what_comes_back_closes_the_gap() -> None:
    cache = FakeCache()
    cache.store("abcd", "x")
    waiting = queue("lpm", cache, seq(0, "x"), seq(1, "abcde"))
    cache.evict("ab")
    assert first(waiting) == 0
    cache.store_block(int.from_bytes(b"ab"))  # c and d are still there
    assert first(waiting) == 1


def test_one_token_must_be_left_to_compute() -> None:
    cache = FakeCache()
    cache.store("ab", "xy")
    whole, longer = seq(0, "ab", extra=0), seq(1, "xyz")  # 32 tokens cached of each, but only 31 count of the first
    assert drained(queue("lpm", cache, whole, longer)) == [1, 0]


def test_shortest_prefill_first_counts_what_is_left_to_compute() -> None:
    cache = FakeCache()
    cache.store("abcdef")
    long_cached, short, middle = seq(0, "abcdefg"), seq(1, "u", extra=8), seq(2, "vw")  # 20, 24 and 36 tokens left
    assert drained(queue("shortest-prefill-first", cache, middle, long_cached, short)) == [0, 1, 2]


def test_shortest_prefill_first_counts_what_a_preempted_one_had_emitted() -> None:
    cache = FakeCache()
    preempted, fresh = seq(0, "a"), seq(1, "b", extra=8)
    preempted.num_tokens_to_prefill += 10  # 30 tokens against 24
    assert drained(queue("shortest-prefill-first", cache, preempted, fresh)) == [1, 0]


def test_hrrn_lets_a_long_one_pass_when_its_turn_has_come() -> None:
    cache = FakeCache()
    long = seq(0, "abcdefg", extra=8)  # 120 tokens
    waiting = queue("hrrn", cache, long)
    waiting.on_served(long, 120, 0, 0)
    waiting.add(seq(1, "x", extra=4), 0)  # 20 tokens
    assert order_after(waiting, 20) == [0, 1]  # 140/120 against 20/20
    assert order_after(waiting, 4) == [0, 1]  # 144/120 = 24/20: the first to arrive
    assert order_after(waiting, 1) == [1, 0]  # 145/120 < 25/20
    cache.store("abcdef")
    assert order_after(waiting, 0) == [0, 1]  # 145/24 > 25/20


def order_after(waiting: WaitQueue, prefilled: int) -> list[int]:
    """Return the order after so many tokens more have been prefilled. The requests go on waiting, and keep their age."""
    waiting.on_served(seq(-1, ""), prefilled, 0, 0)
    waiting.on_step_start(IdleStep(), 0)
    taken = [waiting.pop() for _ in range(len(waiting))]
    for each in taken:
        waiting.add(each, 0, front=True)
    return [each.arrival_index for each in taken]


def test_hrrn_keeps_the_age_of_a_preempted_one_and_forgets_one_that_is_gone() -> None:
    cache = FakeCache()
    old, new = seq(0, "ab", extra=8), seq(1, "x", extra=4)
    waiting = queue("hrrn", cache, old)
    assert waiting.pop() is old
    waiting.on_served(old, 40, 0, 0)
    waiting.add(new, 0)
    waiting.add(old, 0, front=True)
    assert order_after(waiting, 20) == [0, 1]  # 60/40 against 20/20: afresh it would be 20/40
    assert waiting.remove(0) is old
    waiting.on_sequence_end(old, 0)
    waiting.add(old, 0)
    assert order_after(waiting, 20) == [1, 0]


def test_dfs_weight_goes_where_most_wait_and_deepest_first() -> None:
    cache = FakeCache()
    cache.store("abc", "abd", "xy")
    seqs = [seq(0, "u"), seq(1, "xyz"), seq(2, "ab"), seq(3, "abcc"), seq(4, "abda"), seq(5, "abdb"), seq(6, "xz")]
    #    root: u | ab (4 wait): abd (2), abc (1), then ab itself | x (2): xy, then x itself
    assert drained(queue("dfs-weight", cache, *seqs)) == [4, 5, 3, 2, 1, 6, 0]


def test_dfs_weight_takes_the_weights_of_a_pass_at_its_beginning() -> None:
    cache = FakeCache()
    cache.store("a", "x")
    waiting = queue("dfs-weight", cache, *(seq(i, "ab") for i in range(3)), *(seq(i, "xy") for i in range(3, 5)))
    waiting.on_step_start(IdleStep(), 0)
    assert [waiting.pop().arrival_index for _ in range(3)] == [0, 1, 2], "although more wait at x after two of them"
    waiting.add(seq(5, "ac"), 0)
    assert drained(waiting) == [3, 4, 5]


def test_of_equal_branches_the_one_with_the_first_to_arrive_goes_first() -> None:
    cache = FakeCache()
    cache.store("a", "x")
    assert drained(queue("dfs-weight", cache, seq(0, "xy"), seq(1, "ab"), seq(2, "ac"), seq(3, "xz"))) == [0, 3, 1, 2]


@pytest.mark.parametrize("name", ["lpm", "hrrn", "shortest-prefill-first", "dfs-weight"])
def test_one_request_computes_what_several_begin_with(name: str) -> None:
    cache = FakeCache()
    waiting = queue(name, cache, *(seq(i, "abcd") for i in range(3)), seq(3, "xyzuvw"), seq(4, "abcx"))
    waiting.on_step_start(IdleStep(), 0)
    assert waiting.pop().arrival_index == 0
    assert drained(waiting)[0] == 3, "the others wait for it, even behind the longest"


def test_the_others_wait_until_the_beginning_is_stored() -> None:
    cache = FakeCache()
    waiting = queue("lpm", cache, seq(0, "abcd"), seq(1, "abce"), seq(2, "xyz"))
    waiting.on_step_start(IdleStep(), 0)
    leader = waiting.pop()
    assert first(waiting) == 2, "a chunk of the leader's prompt is computed, but not its first two blocks"
    cache.store("abc")
    assert first(waiting) == 1
    waiting.on_sequence_end(leader, 0)
    assert drained(waiting) == [1, 2]


def test_if_the_leader_is_gone_the_next_one_leads() -> None:
    cache = FakeCache()
    waiting = queue("lpm", cache, seq(0, "abcd"), seq(1, "abce"), seq(2, "xyz"), seq(3, "abcf"))
    waiting.on_step_start(IdleStep(), 0)
    waiting.on_sequence_end(waiting.pop(), 0)  # aborted
    assert drained(waiting) == [1, 2, 3]


def test_a_leader_that_is_preempted_leads_again() -> None:
    cache = FakeCache()
    waiting = queue("lpm", cache, seq(0, "abcd"), seq(1, "abce"), seq(2, "xyz"))
    waiting.on_step_start(IdleStep(), 0)
    waiting.add(waiting.pop(), 0, front=True)
    assert drained(waiting) == [0, 2, 1]


def test_the_thresholds_say_which_requests_are_deprioritized() -> None:
    def order(name: str, cached: str = "") -> list[int]:
        cache = FakeCache()
        cache.store(cached)
        return drained(queue(name, cache, seq(0, "abcd"), seq(1, "abxy"), seq(2, "u")))

    assert order("lpm") == [0, 2, 1]  # two blocks are 32 tokens
    assert order("lpm(deprioritize=33)") == [0, 1, 2]  # whole blocks: three
    assert order("lpm(check=-1)") == [0, 1, 2]
    assert order("lpm", cached="abc") == [0, 1, 2]  # 32 cached tokens each, but the beginning is cached
    assert order("lpm(check=0)", cached="a") == [0, 1, 2]


@pytest.mark.parametrize("name", CACHE_AWARE)
def test_without_a_prefix_cache_it_is_fcfs_and_says_so(name: str) -> None:
    policy = SCHEDULERS.get(name)()
    assert isinstance(policy, CacheAwarePolicy)
    assert policy.fallback == "fcfs"
    waiting = policy.make_queue(None, Random(0))
    for order in (0, 1):
        waiting.add(seq(order, "a" * (9 - order)), 0)
    waiting.add(seq(2, "b"), 0, front=True)
    assert drained(waiting) == [2, 0, 1]


class ShortestUntilCached(LongestPrefixMatch):
    """Orders by the whole prompt where there is no prefix cache."""

    fallback = "sjf"


@pytest.mark.parametrize("wrap", ["{}", "bounded({}, max_wait=99)"])
def test_the_fallback_that_is_printed_is_the_one_that_orders(wrap: str) -> None:
    config = QueueingConfig(scheduler=wrap.format(f"{__name__}:ShortestUntilCached"))
    assert any("sjf takes the place of what needs it" in line for line in config.warnings(prefix_cache=False))
    waiting = config.policy().make_queue(None, Random(0))
    for order, prompt in enumerate(("aaa", "a", "aa")):
        waiting.add(seq(order, prompt), 0)
    assert drained(waiting) == [1, 2, 0]


class NamesNoFallback(KeyPolicy):
    """Says that it orders by the prefix cache, and not what it does without one."""

    about = LongestPrefixMatch.about

    def key(self, seq: SequenceState) -> SortKey:
        return (seq.arrival_index,)


def test_a_policy_that_names_no_fallback_has_none_printed() -> None:
    name = f"{__name__}:NamesNoFallback"
    warnings = QueueingConfig(scheduler=name).warnings(prefix_cache=False)
    assert warnings == [f"{name} orders by the prefix cache, which is off"]


@pytest.mark.parametrize("name", CACHE_AWARE)
def test_a_threshold_below_one_token_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="deprioritize must be at least 1 token"):
        SCHEDULERS.get(f"{name}(deprioritize=0)")


def letters(number: int) -> str:
    """Return a prompt of its own in one of eight families."""
    return chr(0x100 + number % 8) * 12 + chr(0x400 + number) * 4


@pytest.mark.parametrize("name", CACHE_AWARE)
@pytest.mark.parametrize("waiters", [100, 2_000])
def test_a_pass_looks_at_what_was_admitted_or_changed_however_many_wait(name: str, waiters: int) -> None:
    cache = FakeCache()
    cache.store(*(letters(family)[:12] for family in range(8)))
    waiting = queue(name, cache, *(seq(number, letters(number)) for number in range(waiters)))
    for number in range(waiters, waiters + 10):
        cache.num_lookups = cache.num_hash_requests = 0
        waiting.on_step_start(IdleStep(), 0)
        admitted = [waiting.pop() for _ in range(8)]
        for each in admitted:
            cache.store(letters(each.arrival_index))
            cache.evict(letters(each.arrival_index))
            waiting.on_served(each, 68, 0, 0)
            waiting.on_sequence_end(each, 0)
        waiting.add(seq(number, letters(number)), 0)
        waiting.on_step_start(IdleStep(), 0)
        assert waiting.peek() is not None
        assert cache.num_hash_requests == 1, "of the request that came"
        assert cache.num_lookups <= 2 + 17 + 8 * 17, "of the request that came, and where something was stored"


def test_a_prefix_that_is_stored_is_looked_up_once_for_a_whole_family() -> None:
    cache = FakeCache()
    waiting = queue("lpm", cache, *(seq(number, letters(number)) for number in range(800)))
    cache.num_lookups = 0
    cache.store(letters(3)[:12])
    waiting.on_step_start(IdleStep(), 0)
    assert cache.num_lookups <= 100 + 12 + 2, "the way of the family once, and what is beyond it for each of its 100"


def test_a_block_that_concerns_no_request_is_not_even_looked_up() -> None:
    cache = FakeCache()
    waiting = queue("lpm", cache, *(seq(number, letters(number)) for number in range(50)))
    cache.store("xyz", "uvw")
    cache.evict("xyz")
    cache.num_lookups = 0
    waiting.on_step_start(IdleStep(), 0)
    assert cache.num_lookups == 0


def test_the_tree_is_as_small_as_it_can_be() -> None:
    random = Random(1)
    cache = FakeCache()
    index = PrefixIndex(cache, 32, 32)
    here = []
    for number in range(600):
        here.append(index.add(seq(number, "".join(random.choices("ab", k=6)))))
        if number > 20:
            index.remove(here.pop(random.randrange(len(here))))
        cache.store("".join(random.choices("ab", k=5)))
        cache.evict("".join(random.choices("ab", k=random.randrange(1, 6))))
        index.apply_updates()
        index.tree.check()
    for waiter in here:
        index.remove(waiter)
    index.tree.check()
    assert not index.tree.root.children
