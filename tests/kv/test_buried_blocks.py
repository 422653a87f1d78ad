"""Private blocks that are full when they are released: only counted, and evicted in their turn as if they were committed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.kv import BlockPool, RadixCache

A, B = [11, 12], [21, 22]


def held(cache: BlockPool | RadixCache, chain: list[int], private: int):  # type: ignore[no-untyped-def]
    """Return a lock on `chain`, committed as far as it was not cached, and on `private` blocks more."""
    lock = cache.lock(chain)
    missing = len(chain) - lock.num_committed
    cache.reserve(missing + private)
    cache.assign(lock, missing + private)
    cache.commit_blocks(lock, chain[lock.num_committed :])
    return lock


def test_they_are_evicted_after_what_was_let_go_before_them_and_before_what_is_let_go_later() -> None:
    cache = BlockPool(6, 1)
    cache.release(held(cache, A, 0))
    cache.release_private(held(cache, [], 2), 2)
    cache.release(held(cache, B, 0))
    assert (cache.free, cache.free_uncached, cache.evictable) == (6, 0, 4)

    cache.reserve(2)
    assert (cache.num_cached_blocks(A), cache.num_cached_blocks(B)) == (0, 2)
    cache.reserve(2)
    assert cache.num_cached_blocks(B) == 2
    cache.reserve(1)
    assert cache.num_cached_blocks(B) == 1


def test_a_block_that_is_not_full_goes_first_as_always() -> None:
    cache = BlockPool(4, 1)
    cache.release(held(cache, A, 0))
    cache.release_private(held(cache, [], 2), 1)

    assert cache.free_uncached == 1
    cache.reserve(1)
    assert cache.num_cached_blocks(A) == 2


def test_one_cannot_bury_more_than_one_has() -> None:
    cache = BlockPool(4, 1)
    with pytest.raises(ValueError, match="2 blocks are to be full, 1 are private"):
        cache.release_private(held(cache, A, 1), 2)


requests = st.lists(st.tuples(st.sampled_from([A, B, [*A, 13], []]), st.integers(0, 3), st.integers(0, 1)), max_size=30)


@pytest.mark.parametrize("make", [lambda: BlockPool(9, 1), lambda: RadixCache(1, 9)])
@given(requests)
def test_buried_is_as_good_as_named(make, asked) -> None:  # type: ignore[no-untyped-def]
    """Two caches, the same requests: one releases as private what the other commits under hashes that no request asks for."""
    named, buried = make(), make()
    for number, (chain, full, partial) in enumerate(asked):
        own = [1000 * (number + 1) + block for block in range(full)]
        lock = held(named, chain, full + partial)
        named.commit_blocks(lock, own)
        named.release(lock)
        buried.release_private(held(buried, chain, full + partial), full)
        for one in (A, B, [*A, 13]):
            assert named.num_cached_blocks(one) == buried.num_cached_blocks(one)
        assert named.free == buried.free
        named.check()
        buried.check()


def test_an_answer_of_any_length_is_one_leaf_without_hashes() -> None:
    cache = RadixCache(1, 10_000)
    for private in (3, 5_000):
        cache.release_private(held(cache, A, private), private)
    (prompt,) = cache.root.children.values()
    assert [(leaf.is_private, leaf.block_hashes) for leaf in prompt.children.values()] == [
        (True, range(3)),
        (True, range(5_000)),
    ]
    assert (cache.evictable, cache.evict(1), cache.evict(1), cache.num_cached_blocks(A)) == (5_005, 3, 5_000, 2)
    cache.check()
