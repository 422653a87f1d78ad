"""Over the real prefix caches, which evict lazily: the order is by what they hold when the pass begins."""

from __future__ import annotations

from random import Random

import pytest
from fake_cache import IdleStep
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.kv import BlockPool, PrefixCache, PromptTokenIds, RadixCache
from maitred.queueing import SCHEDULERS

BLOCK, TOTAL = 4, 24


def pool() -> PrefixCache:
    return BlockPool(TOTAL, BLOCK)


def tree() -> PrefixCache:
    return RadixCache(BLOCK, total=TOTAL)


def random_seq(random: Random, order: int) -> SequenceState:
    tokens = [token for _ in range(random.randrange(1, 7)) for token in [random.randrange(2)] * BLOCK]
    tokens += [7] * random.randrange(1, 6)
    namespace = random.choice(["", "", "other"])
    request = Request(
        id=order, arrival=order, prompt_tokens=len(tokens), prefix=PromptTokenIds(tuple(tokens)), cache_namespace=namespace
    )
    return SequenceState(request, order, len(tokens))


def compute(cache: PrefixCache, seq: SequenceState) -> None:
    """Put the prompt of `seq` through the cache, if there is room; it stays cached as long as there is."""
    block_hashes = cache.block_hashes(seq.request)
    lock = cache.lock(block_hashes)
    rest = block_hashes[lock.num_committed :]
    if len(rest) <= cache.free:
        cache.reserve(len(rest))
        cache.assign(lock, len(rest))
        cache.commit_blocks(lock, rest)
    cache.release(lock)


@pytest.mark.parametrize("make", [pool, tree])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), events=st.integers(1, 80))
def test_lpm_is_by_what_is_cached_now(make: type[PrefixCache], seed: int, events: int) -> None:
    random, cache = Random(seed), make()
    waiting = SCHEDULERS.get("lpm(check=-1)")().make_queue(cache, Random(0))
    here: dict[int, SequenceState] = {}
    for order in range(events):
        here[order] = random_seq(random, order)
        waiting.add(here[order], order)
        if random.random() < 0.5:
            compute(cache, random_seq(random, order))
        if random.random() < 0.2:
            cache.evict(random.randrange(6))
        if random.random() < 0.4:
            waiting.on_step_start(IdleStep(), order)
            head = waiting.pop()
            expected = sorted(
                here.values(),
                key=lambda seq: (-min(cache.num_cached_tokens(seq.request), seq.num_tokens_to_prefill - 1), seq.arrival_index),
            )
            assert head is expected[0]
            compute(cache, here.pop(head.arrival_index))
    waiting.on_step_start(IdleStep(), events)
    expected = sorted(
        here.values(),
        key=lambda seq: (-min(cache.num_cached_tokens(seq.request), seq.num_tokens_to_prefill - 1), seq.arrival_index),
    )
    assert [waiting.pop().arrival_index for _ in expected] == [seq.arrival_index for seq in expected]
    cache.check()


def test_what_is_evicted_lazily_is_known_when_the_pass_begins() -> None:
    cache = BlockPool(4, BLOCK)
    cold, hot = (
        SequenceState(Request(id=i, arrival=i, prompt_tokens=9, prefix=PromptTokenIds((i,) * 9)), i, 9) for i in range(2)
    )
    cache.insert(cache.block_hashes(hot.request))
    waiting = SCHEDULERS.get("lpm")().make_queue(cache, Random(0))
    for seq in (cold, hot):
        waiting.add(seq, 0)
    waiting.on_step_start(IdleStep(), 0)
    assert waiting.peek() is hot
    cache.reserve(4)  # a sequence decodes, and no lookup follows
    waiting.on_step_start(IdleStep(), 0)
    assert waiting.peek() is cold
