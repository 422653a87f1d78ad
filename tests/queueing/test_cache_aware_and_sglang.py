"""On a list that no pass has sorted yet, our policies order as SGLang's do: there, ties go by arrival for both."""

from __future__ import annotations

from random import Random

import pytest
from fake_cache import FakeCache, IdleStep, LetterPrompt
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.queueing import SCHEDULERS

STEMS = ("", "a", "aaab", "aaabbb", "bbbb")


def prompts(random: Random, count: int, block: int) -> list[SequenceState]:
    seqs = []
    for order in range(count):
        letters = random.choice(STEMS) + "".join(random.choices("ab", k=random.randrange(6)))
        request = Request(
            id=order,
            client_id=f"r{order:04}",  # SGLang's hrrn breaks ties by id
            arrival=order,
            prompt_tokens=block * len(letters) + random.randrange(1, 3 * block),
            prefix=LetterPrompt(letters),
        )
        seqs.append(SequenceState(request, order, request.prompt_tokens))
    return seqs


@pytest.mark.parametrize("name", ["lpm", "hrrn", "shortest-prefill-first"])
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    block=st.sampled_from([1, 4]),
    count=st.integers(0, 40),
    check=st.integers(-1, 12),
    shared=st.integers(1, 4),
)
def test_the_first_pass_is_sglangs(name: str, seed: int, block: int, count: int, check: int, shared: int) -> None:
    orders = []
    for spelling in (name, f"sglang({name}"):
        random, cache = Random(seed), FakeCache(block)
        brackets = "(" if spelling == name else ", "
        thresholds = f"check={check}, deprioritize={shared * block})"
        waiting = SCHEDULERS.get(spelling + brackets + thresholds)().make_queue(cache, Random(0))
        for seq in prompts(random, count, block):
            waiting.add(seq, seq.request.arrival)
            waiting.on_served(seq, random.randrange(20), 0, seq.request.arrival)
            if random.random() < 0.3:
                cache.store("".join(random.choices("ab", k=random.randrange(1, 8))))
            if random.random() < 0.1:
                cache.evict("".join(random.choices("ab", k=random.randrange(1, 4))))
        waiting.on_step_start(IdleStep(), count)
        orders.append([waiting.pop().arrival_index for _ in range(count)])
    assert orders[0] == orders[1]
