"""Over the real prefix caches, which evict lazily: the order is by what they hold when the pass begins."""

from __future__ import annotations

from random import Random

import pytest
from fake_cache import Idle
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.kv import BlockPool, PrefixCache, RadixCache, TokenIds
from maitred.queueing import SCHEDULERS
from maitred.request import Request
from maitred.seq import Seq

BLOCK, TOTAL = 4, 24


def pool() -> PrefixCache:
    return BlockPool(TOTAL, BLOCK)


def tree() -> PrefixCache:
    return RadixCache(BLOCK, total=TOTAL)


def asked(random: Random, order: int) -> Seq:
    tokens = [token for _ in range(random.randrange(1, 7)) for token in [random.randrange(2)] * BLOCK]
    tokens += [7] * random.randrange(1, 6)
    namespace = random.choice(["", "", "other"])
    request = Request(
        id=order, arrival=order, prompt_tokens=len(tokens), prefix=TokenIds(tuple(tokens)), cache_namespace=namespace
    )
    return Seq(request, order, len(tokens))


def compute(cache: PrefixCache, seq: Seq) -> None:
    """Its prompt goes through the cache, if there is room, and stays in it as long as there is."""
    chain = cache.chain(seq.request)
    lock = cache.lock(chain)
    rest = chain[lock.published :]
    if len(rest) <= cache.free:
        cache.take(len(rest))
        cache.claim(lock, len(rest))
        cache.publish(lock, rest)
    cache.unlock(lock)


@pytest.mark.parametrize("make", [pool, tree])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), events=st.integers(1, 80))
def test_lpm_is_by_what_is_cached_now(make: type[PrefixCache], seed: int, events: int) -> None:
    random, cache = Random(seed), make()
    waiting = SCHEDULERS.get("lpm(check=-1)")().queue(cache, Random(0))
    here: dict[int, Seq] = {}
    for order in range(events):
        here[order] = asked(random, order)
        waiting.add(here[order], order)
        if random.random() < 0.5:
            compute(cache, asked(random, order))
        if random.random() < 0.2:
            cache.evict(random.randrange(6))
        if random.random() < 0.4:
            waiting.begin(Idle(), order)
            head = waiting.pop()
            expected = sorted(here.values(), key=lambda seq: (-min(cache.match(seq.request), seq.target - 1), seq.order))
            assert head is expected[0]
            compute(cache, here.pop(head.order))
    waiting.begin(Idle(), events)
    expected = sorted(here.values(), key=lambda seq: (-min(cache.match(seq.request), seq.target - 1), seq.order))
    assert [waiting.pop().order for _ in expected] == [seq.order for seq in expected]
    cache.check()


def test_what_is_evicted_lazily_is_known_when_the_pass_begins() -> None:
    cache = BlockPool(4, BLOCK)
    cold, hot = (Seq(Request(id=i, arrival=i, prompt_tokens=9, prefix=TokenIds((i,) * 9)), i, 9) for i in range(2))
    cache.insert(cache.chain(hot.request))
    waiting = SCHEDULERS.get("lpm")().queue(cache, Random(0))
    for seq in (cold, hot):
        waiting.add(seq, 0)
    waiting.begin(Idle(), 0)
    assert waiting.peek() is hot
    cache.take(4)  # somebody decodes: nobody has looked since
    waiting.begin(Idle(), 0)
    assert waiting.peek() is cold
