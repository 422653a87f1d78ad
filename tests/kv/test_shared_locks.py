"""What would be free if several owners of shared blocks gave them back at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.compat.blis.block_pool import BlisPool
from maitred.kv import BlockPool, PrefixCache, RadixCache

KINDS: list[Any] = [lambda: BlockPool(100, 16), lambda: RadixCache(16, 100), lambda: BlisPool(100, 16)]


def hold(cache: PrefixCache[Any], hashes: list[int]) -> Any:
    """Return a lock on all blocks of a prompt, computed as far as they are not cached."""
    lock = cache.lock(hashes)
    missing = len(hashes) - lock.num_committed
    cache.reserve(missing)
    cache.assign(lock, missing)
    cache.commit_blocks(lock, hashes[lock.num_committed :])
    return lock


@pytest.mark.parametrize("make", KINDS)
def test_a_shared_block_is_free_when_its_last_holder_lets_go(make: Any) -> None:
    cache = make()
    long, short, other = hold(cache, [1, 2, 3, 4]), hold(cache, [1, 2]), hold(cache, [1, 7])
    assert cache.num_held_by_alone([long]) == 2  # 3 and 4
    assert cache.num_held_by_alone([short]) == 0
    assert cache.num_held_by_alone([long, short]) == 3  # 2, 3 and 4: the third one holds 1
    assert cache.num_held_by_alone([long, short, other]) == 5
    assert cache.num_held_by_alone([]) == 0


@pytest.mark.parametrize("make", KINDS)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=8),
    let_go=st.sets(st.integers(0, 7)),
)
def test_what_is_foretold_is_what_a_release_frees(make: Any, prompts: list[list[int]], let_go: set[int]) -> None:
    cache = make()
    locks = [hold(cache, [hash(tuple(prompt[: end + 1])) for end in range(len(prompt))]) for prompt in prompts]
    chosen = [lock for number, lock in enumerate(locks) if number in let_go]
    foretold, free = cache.num_held_by_alone(chosen), cache.free
    for lock in chosen:
        cache.release(lock)
    assert cache.free == free + foretold
