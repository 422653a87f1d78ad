"""The block pool: examples, and random use compared with a naive twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_models import DEEPEST, LONGEST, PATHS, Listener, NaivePool, block_hashes, touch

from maitred.compat.blis.block_pool import BlisPool
from maitred.core.errors import InvariantError
from maitred.kv import BlockPool, PrefixCache, block_pool
from maitred.kv.block_runs import RunLock
from maitred.kv.key_ranges import key_ranges


def pool_with(*chains: list[int], total: int = 8) -> BlockPool:
    pool = BlockPool(total, 16)
    for one in chains:
        pool.insert(one)
    return pool


def test_a_prompt_computed_once_is_found_by_the_next() -> None:
    pool = BlockPool(total=10, block_size=16)
    first = pool.lock([1, 2, 3])
    pool.reserve(4)
    pool.assign(first, 4)
    pool.commit_blocks(first, [1, 2, 3])
    assert (first.num_committed, first.num_private, pool.free, pool.referenced) == (3, 1, 6, 3)

    second = pool.lock([1, 2, 9])  # while the first still runs: the blocks are shared
    assert (second.num_committed, pool.free) == (2, 6)
    pool.release(first)
    assert (pool.free, pool.referenced, pool.evictable) == (8, 2, 1)
    pool.release(second)
    assert (pool.free, pool.num_cached_blocks([1, 2, 3, 4])) == (10, 3)
    pool.check()


def test_the_end_of_a_sequence_goes_before_its_beginning_and_old_ones_before_recent_ones() -> None:
    pool, listener = BlockPool(total=5, block_size=16), Listener()
    pool.subscribe(listener)
    pool.insert([1, 2, 3])
    pool.insert([7, 8])
    pool.reserve(4)
    pool.apply_evictions()
    assert listener.log == ["+1", "+2", "+3", "+7", "+8", "-3", "-2", "-1", "-8"]


def test_locking_costs_unreferenced_blocks() -> None:
    pool = pool_with([1, 2])
    assert pool.num_unreferenced([1, 2, 3]) == 2
    held = pool.lock([1])
    assert pool.num_unreferenced([1, 2, 3]) == 1
    pool.release(held)


def test_looking_changes_nothing_and_touching_does() -> None:
    looked_at, touched = pool_with([1, 2], [7], total=3), pool_with([1, 2], [7], total=3)
    assert looked_at.num_cached_blocks([1, 2]) == looked_at.num_unreferenced([1, 2]) == touch(touched, [1, 2]) == 2
    looked_at.reserve(1)
    touched.reserve(1)
    assert (looked_at.num_cached_blocks([1, 2]), looked_at.contains(7)) == (1, True)
    assert (touched.num_cached_blocks([1, 2]), touched.contains(7)) == (2, False)
    touched.reserve(1)
    assert touched.num_cached_blocks([1, 2]) == 1  # its end goes first again


def test_of_two_copies_the_other_answers_when_one_is_evicted() -> None:
    pool = BlockPool(total=4, block_size=16)
    listener = Listener()
    pool.subscribe(listener)
    first, second, third = [pool.lock([5]) for _ in range(3)]  # all miss, all compute
    for lock in (first, second, third):
        pool.reserve(1)
        pool.assign(lock, 1)
        pool.commit_blocks(lock, [5])
    assert pool.referenced == 3
    pool.release(first)
    pool.reserve(2)  # the blank one and the first copy
    assert pool.contains(5)
    pool.release(second)
    assert pool.num_unreferenced([5]) == 1  # the second answers now, though the third is in use
    pool.check()
    pool.release(third)
    pool.reserve(2)
    assert not pool.contains(5)
    assert listener.log == ["+5", "-5"]


@pytest.mark.parametrize(("kind", "left"), [(BlockPool, 2), (BlisPool, 0)])
def test_blocks_without_content_are_used_again_first_and_in_blis_in_turn(kind: type[PrefixCache[Any]], left: int) -> None:
    pool = kind(4, 16)  # type: ignore[call-arg]
    pool.insert([1, 2])
    lock = pool.lock([])
    pool.reserve(2)
    pool.assign(lock, 2)
    pool.release(lock)
    pool.reserve(2)
    assert pool.num_cached_blocks([1, 2]) == left


def test_in_blis_the_last_copy_answers_and_evicting_any_forgets_it() -> None:
    pool = BlisPool(total=3, block_size=16)
    locks = [pool.lock([]) for _ in range(2)]
    for lock in locks:
        pool.reserve(1)
        pool.assign(lock, 1)
        pool.commit_blocks(lock, [5])
    pool.release(locks[0])
    assert pool.num_unreferenced([5]) == 0  # the second answers, which is in use
    pool.reserve(2)  # the blank one and the first copy
    assert not pool.contains(5)
    pool.check()


def test_sharing_a_part_of_a_run_splits_it_under_its_holders() -> None:
    pool = BlockPool(total=9, block_size=16)
    first = pool.lock([])
    pool.reserve(5)
    pool.assign(first, 5)
    pool.commit_blocks(first, [1, 2, 3, 4, 5])
    second = pool.lock([1, 2, 8])
    third = pool.lock([1, 2, 3, 9])
    pool.release(first)
    assert (pool.evictable, pool.referenced, pool.free) == (2, 3, 6)
    pool.release(third)
    pool.reserve(4 + 2)
    assert (pool.num_cached_blocks([1, 2, 3, 4, 5]), pool.referenced) == (3, 2)
    pool.check()
    pool.release(second)
    pool.check()


def test_who_computes_the_same_more_slowly_copies_what_is_in_the_middle_of_anothers_run() -> None:
    pool, listener = BlockPool(total=9, block_size=16), Listener()
    pool.subscribe(listener)
    fast, slow = pool.lock([]), pool.lock([])
    pool.reserve(6)
    for lock in (fast, slow):
        pool.assign(lock, 3)
    pool.commit_blocks(fast, [1, 2, 3])
    pool.commit_blocks(slow, [1])
    pool.commit_blocks(slow, [2, 3])
    assert listener.log == ["+1", "+2", "+3"]
    pool.release(fast)
    pool.reserve(6)
    assert (pool.num_cached_blocks([1, 2, 3]), listener.log) == (3, ["+1", "+2", "+3"])  # the copies answer
    pool.check()


def test_the_first_reservation_evicts_though_a_block_is_released_before_an_observation() -> None:
    pool = BlockPool(2, 16)
    pool.insert([1])
    lock = pool.lock([])
    pool.reserve(1)
    pool.assign(lock, 1)
    pool.reserve(1)
    pool.release(lock)
    assert not pool.contains(1)


def test_what_a_sequence_decoded_is_taken_at_once_and_claimed_when_it_ends() -> None:
    pool = pool_with([1, 2, 3], total=5)
    running = [pool.lock([]) for _ in range(2)]
    pool.reserve(4)  # a thousand steps of both, in one call
    assert pool.free == 1
    assert pool.num_cached_blocks([1, 2, 3]) == 1  # made real by this look
    pool.assign(running[0], 1)
    pool.release(running[0])
    pool.assign(running[1], 3)
    pool.check()
    assert pool.free == 2


def test_insert_caches_as_much_as_there_is_room_for() -> None:
    pool = pool_with([1, 2, 3, 4], total=3)
    assert pool.num_cached_blocks([1, 2, 3, 4]) == 3
    assert pool.insert([1, 2]) == 2


def test_what_cannot_be_is_refused() -> None:
    pool = BlockPool(total=2, block_size=16)
    with pytest.raises(ValueError, match="3 blocks are to be reserved, 2 are free"):
        pool.reserve(3)
    lock = pool.lock([])
    with pytest.raises(ValueError, match="1 blocks are to be assigned, 0 are reserved"):
        pool.assign(lock, 1)
    with pytest.raises(ValueError, match="1 blocks are to be full, 0 are private"):
        pool.commit_blocks(lock, [1])
    pool.release(lock)
    with pytest.raises(KeyError):
        pool.release(lock)
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0, 16)


def test_books_that_do_not_balance_are_reported() -> None:
    pool = BlockPool(total=2, block_size=16)
    lock = pool.lock([])
    pool.reserve(1)
    pool.assign(lock, 1)
    lock.num_private = 2
    with pytest.raises(InvariantError, match="1 free"):
        pool.check()


def prompts_as_lists() -> list[Sequence[int]]:
    return [[hash((prompt // 2 if at < 6 else prompt, at)) for at in range(12)] for prompt in range(4)]


def prompts_as_ranges() -> list[Sequence[int]]:
    shared = [[range(100 * family, 100 * family + 4), range(100 * family + 10, 100 * family + 12)] for family in range(2)]
    return [key_ranges([*shared[prompt // 2], range(1000 * (1 + prompt), 1000 * (1 + prompt) + 6)]) for prompt in range(4)]


@pytest.mark.parametrize("make_prompts", [prompts_as_lists, prompts_as_ranges])
@pytest.mark.parametrize("many_runs", [1, 4])
@pytest.mark.parametrize("seed", range(8))
def test_many_sequences_compute_the_same_each_at_its_own_pace(
    seed: int, many_runs: int, make_prompts: Callable[[], list[Sequence[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few long prompts, so that runs are copied, split in the middle and merged, beside the twin."""
    monkeypatch.setattr(block_pool, "_MANY_RUNS", many_runs)  # without effect where it is compiled
    draw = Random(seed)
    pool, twin, listener = BlockPool(60, 16), NaivePool(60), Listener()
    pool.subscribe(listener)
    prompts = make_prompts()
    running: list[tuple[RunLock, list[int], Sequence[int]]] = []
    for _ in range(150):
        prompt = draw.choice(prompts)
        if draw.random() < 0.3:
            begins = prompt[: draw.randrange(13)]
            running.append((pool.lock(begins), twin.lock(begins), prompt))
        elif running and draw.random() < 0.3:
            lock, blocks, _ = running.pop(draw.randrange(len(running)))
            pool.release(lock)
            twin.release(blocks)
        elif running:
            lock, blocks, prompt = draw.choice(running)
            done = lock.num_committed
            keys = prompt[done : done + draw.randrange(1 + min(4, pool.free))]
            pool.reserve(len(keys))
            pool.assign(lock, len(keys))
            pool.commit_blocks(lock, keys)
            twin.grow(blocks, len(keys))
            twin.content.update(zip(blocks[done:], keys, strict=True))
        for prompt in prompts:
            copies = twin.copies(prompt)
            assert pool.num_cached_blocks(prompt) == len(copies)
            assert pool.num_unreferenced(prompt) == sum(block in twin.free for block in copies)
        pool.apply_evictions()
        assert listener.cached == set(twin.content.values())
        assert pool.free == len(twin.free)
        pool.check()


def test_the_runs_of_a_session_become_one() -> None:
    """Each turn adds a prompt, in two chunks, and an answer. A turn that branches off in the middle still finds its part, and
    what it leaves free goes from the end."""
    pool, listener = BlockPool(total=100, block_size=16), Listener()
    pool.subscribe(listener)
    blocks = key_ranges([range(1, 61)])
    for end in range(10, 61, 10):
        lock = pool.lock(blocks[: end - 10])
        pool.reserve(10)
        pool.assign(lock, 10)
        for part in (end - 6, end - 2, end):
            pool.commit_blocks(lock, blocks[lock.num_committed : part])
        pool.release(lock)
        pool.check()
    assert len(pool._runs_by_first_hash) <= 3  # of 6 turns
    branch = pool.lock(blocks[:25])
    assert (branch.num_committed, pool.referenced, pool.num_cached_blocks(blocks)) == (25, 25, 60)
    pool.reserve(40 + 34)
    assert pool.num_cached_blocks(blocks) == 26
    assert listener.log[-34:] == [f"-{block}" for block in range(60, 26, -1)]
    pool.check()


class LazyPool(RuleBasedStateMachine):
    """Blocks are assigned and committed late, many at once, and in the twin step by step. No call can tell the difference."""

    def __init__(self) -> None:
        super().__init__()
        self.build(5)
        self.running: list[tuple[RunLock, list[int]]] = []
        self.paths: dict[int, tuple[int, ...]] = {}
        """The committed prompt of each running sequence, by the id of its lock."""
        self.late: list[tuple[RunLock, int, list[int]]] = []
        """Blocks and their hashes that are still to be assigned and committed."""

    @initialize(total=st.sampled_from([5, 12, 30]))
    def build(self, total: int) -> None:
        self.pool, self.twin = BlockPool(total, 16), NaivePool(total)
        self.listener = Listener()
        self.pool.subscribe(self.listener)

    def catch_up(self, until: RunLock | None = None) -> None:
        """Assign and commit all that is late, or (`until`) only that of this lock and what was before."""
        last = max((at for at, (lock, _, _) in enumerate(self.late) if lock is until), default=-1)
        due = self.late if until is None else self.late[: last + 1]
        for lock, blocks, keys in due:
            self.pool.assign(lock, blocks)
            self.pool.commit_blocks(lock, keys)
        del self.late[: len(due)]

    @rule(path=PATHS)
    def begin(self, path: tuple[int, ...]) -> None:
        self.catch_up()
        lock, blocks = self.pool.lock(block_hashes(path)), self.twin.lock(block_hashes(path))
        assert lock.num_committed == len(blocks)
        self.running.append((lock, blocks))
        self.paths[id(lock)] = path[: len(blocks)]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), blocks=st.integers(0, 4), full=PATHS)
    def run(self, data: st.DataObject, blocks: int, full: tuple[int, ...]) -> None:
        lock, held = data.draw(st.sampled_from(self.running))
        blocks = min(blocks, len(self.twin.free))
        full = full[: min(blocks, DEEPEST - len(self.paths[id(lock)]))]
        if len(held) > len(self.paths[id(lock)]):
            full = ()  # a block without content in between
        self.pool.reserve(blocks)
        self.twin.grow(held, blocks)
        done = len(self.paths[id(lock)])
        path = self.paths[id(lock)] = self.paths[id(lock)] + full
        keys = block_hashes(path)[done:]
        self.twin.content.update(zip(held[done:], keys, strict=False))
        self.late.append((lock, blocks, keys))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = data.draw(st.sampled_from(self.running))
        self.running.remove(ended)
        self.catch_up(ended[0])
        self.pool.release(ended[0])
        self.twin.release(ended[1])

    @rule(path=PATHS)
    def touch(self, path: tuple[int, ...]) -> None:
        self.catch_up()
        touch(self.pool, block_hashes(path))
        self.twin.touch(block_hashes(path))

    @rule(blocks=st.integers(0, 3))
    def evict(self, blocks: int) -> None:
        self.catch_up()
        assert self.pool.evict(blocks) == self.twin.evict(blocks)

    @rule()
    def look(self) -> None:
        self.catch_up()
        for path in LONGEST:
            copies = self.twin.copies(block_hashes(path))
            assert self.pool.num_cached_blocks(block_hashes(path)) == len(copies)
            assert self.pool.num_unreferenced(block_hashes(path)) == sum(block in self.twin.free for block in copies)
        assert self.listener.cached == set(self.twin.content.values())
        assert all(self.pool.contains(key) for key in self.listener.cached)
        assert self.pool.evictable == sum(block in self.twin.content for block in self.twin.free)
        self.pool.check()

    @invariant()
    def as_much_is_free(self) -> None:
        assert self.pool.free == len(self.twin.free)

    def teardown(self) -> None:
        self.look()


LazyPool.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_lazy_is_eager = LazyPool.TestCase
