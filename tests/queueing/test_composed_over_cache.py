"""Policies around cache-aware policies, and aged-sjf: their order follows the cache as that of a new queue would."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from fake_cache import FakeCache, LetterPrompt
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_samples import drained, seq, started

from maitred.core.sequence import SequenceState
from maitred.queueing import SCHEDULERS

COMPOSED = [
    "aged-sjf",
    "aged-sjf(tokens_per_second=100000)",
    "by-priority(lpm)",
    "by-priority(dfs-weight, low-first)",
    "vtc(lpm(check=-1))",
    "vtc(lpm(check=-1), slack=30)",
    "vtc(shortest-prefill-first)",
    "bounded(by-priority(lpm), max_wait=0.0004)",
    "bounded(hrrn, max_wait=0)",
]
PROMPTS = ["".join(letters) for count in (1, 2, 3) for letters in product("ab", repeat=count)]


@pytest.mark.parametrize("spelling", COMPOSED)
@settings(max_examples=30)
@given(seed=st.integers(0, 100_000), count=st.integers(1, 25))
def test_the_order_is_the_one_that_a_new_queue_would_have(spelling: str, seed: int, count: int) -> None:
    rng, cache = Random(seed), FakeCache()
    waiting, here, now = SCHEDULERS.get(spelling)().make_queue(cache, Random(0)), dict[int, SequenceState](), 0
    for number in range(count):
        now += rng.choice([0, 50, 300])
        letters = rng.choice(PROMPTS)
        here[number] = seq(
            number,
            16 * len(letters) + rng.randint(1, 20),
            arrival=now,
            prefix=LetterPrompt(letters),
            tenant=rng.choice("xyz"),
            priority=float(rng.choice([1, 2])),
        )
        waiting.add(here[number], now)
        if rng.random() < 0.5:
            cache.store(rng.choice(PROMPTS))
        if rng.random() < 0.5:
            cache.evict(rng.choice(PROMPTS))
        if rng.random() < 0.4:
            assert started(waiting, now).peek() is not None
        if rng.random() < 0.3 and (gone := rng.choice([None, *here])) is not None:
            assert waiting.remove(gone) is here[gone]
            waiting.on_sequence_end(here.pop(gone), now)
    made_now = SCHEDULERS.get(spelling)().make_queue(cache, Random(0))
    for s in here.values():
        made_now.add(s, s.request.arrival)
    assert drained(started(waiting, now)) == drained(started(made_now, now))


def test_subqueues_that_are_dropped_are_told_nothing() -> None:
    cache = FakeCache()
    waiting = SCHEDULERS.get("vtc(lpm)")().make_queue(cache, Random(0))
    for number in range(200):
        s = seq(number, 20, tenant=str(number), prefix=LetterPrompt("a"))
        waiting.add(s, now=number)
        assert started(waiting).pop() is s
        waiting.on_sequence_end(s, number)
    assert len(cache._listeners) == 1
    assert len(waiting.subqueues._listener.listeners) == 64  # type: ignore[attr-defined]


def test_one_match_with_the_cache_for_each_admitted_request() -> None:
    """vtc matches a request when it is admitted; the waiting ones are not matched again."""
    cache = FakeCache()
    cache.store("a" * 20)
    waiting = SCHEDULERS.get("vtc(lpm, slack=1000)")().make_queue(cache, Random(0))
    for number in range(300):
        waiting.add(seq(number, 400, tenant=str(number % 10), prefix=LetterPrompt("a" * 20)), now=0)
    started(waiting)
    cache.num_hash_requests = 0
    for _ in range(8):
        waiting.pop()
    assert cache.num_hash_requests == 8
