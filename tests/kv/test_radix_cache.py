"""The radix cache: examples, and random use compared with a naive twin."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_models import DEEPEST, LONGEST, PATHS, RANKS, Listener, NaiveLock, NaiveTree, Path, block_hashes, touch

from maitred.core.errors import ConfigError, InvariantError
from maitred.kv import EVICTIONS, RadixCache
from maitred.kv.radix_cache import RadixLock

BLOCKS = 12


def tree_with(*chains: list[int], eviction: str = "lru") -> RadixCache:
    cache = RadixCache(block_size=16, eviction=EVICTIONS.get(eviction)())
    for one in chains:
        cache.insert(one)
    return cache


def test_where_two_prompts_part_the_run_is_split() -> None:
    cache = tree_with([1, 2, 3, 4])
    assert cache.insert([1, 2, 8]) == 2
    (shared,) = cache.root.children.values()
    assert shared.block_hashes == [1, 2]
    assert [child.block_hashes for child in shared.children.values()] == [[3, 4], [8]]
    assert cache.evictable == 5
    cache.check()


def test_looking_splits_nothing_and_touching_does() -> None:
    cache = tree_with([1, 2, 3, 4])
    assert (cache.num_cached_blocks([1, 2]), cache.num_unreferenced([1, 2]), cache.contains(3)) == (2, 2, True)
    assert len(cache.root.children[1].block_hashes) == 4
    assert touch(cache, [1, 2]) == 2
    assert len(cache.root.children[1].block_hashes) == 2


def test_what_is_locked_is_never_evicted_and_the_rest_of_its_run_may_be() -> None:
    cache = tree_with([1, 2, 3, 4], [7])
    lock = cache.lock([1, 2, 9])
    assert (lock.num_committed, cache.referenced, cache.evictable, cache.num_unreferenced([1, 2, 3])) == (2, 2, 3, 1)
    assert cache.evict(100) == 3
    assert cache.num_cached_blocks([1, 2, 3]) == 2
    cache.release(lock)
    assert (cache.evict(1), cache.evictable) == (2, 0)  # whole runs go


def test_a_lock_survives_the_split_of_its_run() -> None:
    cache = tree_with([1, 2, 3])
    lock = cache.lock([1, 2, 3])
    cache.insert([1, 8])
    assert (cache.referenced, cache.evictable) == (3, 1)
    cache.release(lock)
    assert (cache.referenced, cache.evictable) == (0, 4)
    cache.check()


def test_what_two_computed_at_the_same_time_is_kept_once() -> None:
    cache = RadixCache(block_size=16, total=8)
    locks = [cache.lock([1, 2, 3]) for _ in range(2)]
    for lock in locks:
        cache.reserve(4)
        cache.assign(lock, 4)
    assert cache.free == 0
    for lock in locks:
        cache.commit_blocks(lock, [1, 2, 3])
    assert (cache.free, cache.referenced) == (3, 3)
    for lock in locks:
        cache.release(lock)
    assert (cache.free, cache.evictable) == (8, 3)


def test_reserving_evicts_at_the_next_observation() -> None:
    cache, listener = RadixCache(block_size=16, total=5), Listener()
    cache.subscribe(listener)
    cache.insert([1, 2])
    cache.insert([7, 8])
    touch(cache, [1, 2])
    cache.reserve(2)
    assert listener.log == ["+1", "+2", "+7", "+8"]
    assert not cache.contains(7)
    assert listener.log[4:] == ["-8", "-7"]
    cache.insert([5, 6, 9])  # 3 blocks are free, and two of them are those of [1, 2]
    assert (cache.num_cached_blocks([5, 6, 9]), cache.num_cached_blocks([1, 2])) == (3, 0)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", [30, 10, 20]),  # used last: 30, then 10, then 20
        ("mru", [20, 10, 30]),
        ("fifo", [10, 20, 30]),
        ("filo", [30, 20, 10]),
        ("lfu", [30, 20, 10]),  # published 3, 2 and 1 times
        ("slru", [30, 10, 20]),  # 30 is published once; of the others, 10 was used first
        ("priority", [20, 30, 10]),  # priorities 2, 0, 1
    ],
)
def test_each_policy_evicts_in_its_own_order(policy: str, order: list[int]) -> None:
    cache, listener = RadixCache(block_size=16, eviction=EVICTIONS.get(policy)()), Listener()
    cache.subscribe(listener)
    for key, priority in [(10, 0), (20, 0), (30, 1), (10, 2), (10, 0), (20, 0)]:
        cache.insert([key], priority=priority)
    while cache.evict(1):
        pass
    assert listener.log[3:] == [f"-{key}" for key in order]


def test_lfu_counts_an_owner_once_and_a_split_keeps_the_count() -> None:
    cache, listener = RadixCache(block_size=16, eviction=EVICTIONS.get("lfu")()), Listener()
    cache.subscribe(listener)
    in_pieces = cache.lock([])
    cache.reserve(3)
    cache.assign(in_pieces, 3)
    cache.commit_blocks(in_pieces, [30, 31])
    cache.commit_blocks(in_pieces, [32])
    cache.release(in_pieces)
    for prompt in [[1, 2]] * 3 + [[1, 8]] + [[5]] * 3 + [[7]]:
        cache.insert(prompt)
    told = len(listener.log)
    cache.evict(100)
    assert listener.log[told:] == ["-32", "-31", "-30", "-8", "-7", "-2", "-5", "-1"]  # 1, 1, 1, 1, 3, 3 and 4 times


def test_slru_protects_what_enough_owners_published() -> None:
    for threshold, left in ((2, 1), (3, 7)):
        cache = RadixCache(block_size=16, eviction=EVICTIONS.get("slru")(protected_threshold=threshold))
        for key in (1, 1, 7):
            cache.insert([key])
        cache.evict(1)
        assert cache.contains(left)


def test_a_scratch_tree_finds_equal_prompts_within_one_batch() -> None:
    scratch = RadixCache(block_size=1)
    prompts = [[1, 2, 3], [1, 2, 4], [9]]
    assert [scratch.insert(prompt) for prompt in prompts] == [0, 2, 0]


def test_keys_that_do_not_stand_for_their_whole_prefix_are_refused() -> None:
    for second in ([7, 2], [7, 2, 3], [1, 5, 5], [2, 5], [1, 2, 3, 3], [5, 6, 2]):
        cache = tree_with([1, 2, 3])
        with pytest.raises(ConfigError, match="stands for two different prefixes"):
            cache.insert(second)


def test_what_cannot_be_is_refused_by_the_tree() -> None:
    cache = RadixCache(block_size=16, total=2)
    lock = cache.lock([])
    with pytest.raises(ValueError, match="3 blocks are to be reserved, 2 are free"):
        cache.reserve(3)
    with pytest.raises(ValueError, match="1 blocks are to be assigned, 0 are reserved"):
        cache.assign(lock, 1)
    with pytest.raises(ValueError, match="1 blocks are to be full, 0 are private"):
        cache.commit_blocks(lock, [1])
    cache.release(lock)
    with pytest.raises(KeyError):
        cache.release(lock)
    with pytest.raises(ValueError, match="at least one block"):
        RadixCache(0)
    with pytest.raises(ConfigError, match="protected_threshold is 0"):
        EVICTIONS.get("slru")(protected_threshold=0)


def test_a_tree_out_of_balance_is_reported() -> None:
    cache = tree_with([1, 2])
    cache.root.children[1].num_locks = 1
    with pytest.raises(InvariantError, match="other leaves"):
        cache.check()


class LazyTree(RuleBasedStateMachine):
    """Evictions are applied late; the twin evicts at once. No call can tell the difference, under any policy."""

    def __init__(self) -> None:
        super().__init__()
        self.listener = Listener()
        self.running: list[tuple[RadixLock, NaiveLock]] = []
        self.unassigned: list[tuple[RadixLock, int]] = []

    @initialize(policy=st.sampled_from(sorted(RANKS)), total=st.sampled_from([BLOCKS, 1000]))
    def build(self, policy: str, total: int) -> None:
        self.tree, self.twin = RadixCache(16, total, EVICTIONS.get(policy)()), NaiveTree(total, policy)
        self.tree.subscribe(self.listener)

    @rule(path=PATHS, priority=st.integers(0, 2))
    def begin(self, path: Path, priority: int) -> None:
        lock, naive = self.tree.lock(block_hashes(path), priority=priority), self.twin.lock(path, priority)
        assert lock.num_committed == len(naive.path)
        self.running.append((lock, naive))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), blocks=st.integers(1, 4))
    def run(self, data: st.DataObject, blocks: int) -> None:
        lock, naive = data.draw(st.sampled_from(self.running))
        blocks = min(blocks, self.twin.free)
        self.tree.reserve(blocks)
        self.unassigned.append((lock, blocks))
        self.twin.grow(naive, blocks)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), path=PATHS)
    def commit(self, data: st.DataObject, path: Path) -> None:
        self.assign_all()
        lock, naive = data.draw(st.sampled_from(self.running))
        steps = path[: min(naive.num_private, DEEPEST - len(naive.path))]
        if naive.path:
            steps = tuple(step % 2 + (naive.path[0] & 2) for step in steps)
        done = len(naive.path)
        self.tree.commit_blocks(lock, block_hashes(naive.path + steps)[done:])
        self.twin.commit(naive, steps)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.assign_all()
        ended = data.draw(st.sampled_from(self.running))
        self.running.remove(ended)
        self.tree.release(ended[0])
        self.twin.release(ended[1])

    @rule(path=PATHS, priority=st.integers(0, 2))
    def insert(self, path: Path, priority: int) -> None:
        before = self.tree.insert(block_hashes(path), priority=priority)
        naive = self.twin.lock(path, priority)
        assert before == len(naive.path)
        room = min(len(path) - before, self.twin.free)
        self.twin.grow(naive, room)
        self.twin.commit(naive, path[before : before + room])
        self.twin.release(naive)

    @rule(path=PATHS)
    def touch(self, path: Path) -> None:
        assert touch(self.tree, block_hashes(path)) == self.twin.num_cached(path)
        self.twin.touch(path)

    @rule(blocks=st.integers(0, 3))
    def evict(self, blocks: int) -> None:
        assert self.tree.evict(blocks) == self.twin.evict(blocks)

    @rule()
    def look(self) -> None:
        for path in LONGEST:
            assert self.tree.num_cached_blocks(block_hashes(path)) == self.twin.num_cached(path)
            assert self.tree.num_unreferenced(block_hashes(path)) == self.twin.num_unreferenced(path)
        assert self.listener.cached == self.twin.cached_hashes()
        assert all(self.tree.contains(key) for key in self.listener.cached)
        assert self.tree.evictable == self.twin.size - self.twin.referenced
        self.tree.check()

    @invariant()
    def as_much_is_free(self) -> None:
        if hasattr(self, "tree"):
            assert (self.tree.free, self.tree.referenced) == (self.twin.free, self.twin.referenced)

    def assign_all(self) -> None:
        for lock, blocks in self.unassigned:
            self.tree.assign(lock, blocks)
        self.unassigned.clear()

    def teardown(self) -> None:
        if hasattr(self, "tree"):
            self.look()


LazyTree.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_lazy_tree_is_eager = LazyTree.TestCase
