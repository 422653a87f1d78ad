"""Keys stand for whole prefixes: equal as long as the prompts are, in one namespace."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.request import Request
from maitred.kv import PromptTokenIds, apply_namespace, extend_block_hashes, request_block_hashes

tokens = st.lists(st.integers(0, 1), max_size=12).map(tuple)


@given(tokens, tokens, st.integers(1, 4))
def test_first_n_keys_of_tokens_are_equal_if_and_only_if_the_first_n_blocks_are(
    one: tuple[int, ...], other: tuple[int, ...], size: int
) -> None:
    mine, yours = PromptTokenIds(one).block_keys(size), PromptTokenIds(other).block_keys(size)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    assert (len(mine), len(yours)) == (len(one) // size, len(other) // size)
    assert sum(a == b for a, b in zip(mine, yours, strict=False)) == alike // size
    assert len(set(mine)) == len(mine)


@given(tokens, tokens, st.integers(1, 4))
def test_an_answer_continues_the_chain_of_its_prompt(prompt: tuple[int, ...], answer: tuple[int, ...], size: int) -> None:
    prompt = prompt[: len(prompt) // size * size]
    before = PromptTokenIds(prompt).block_keys(size)
    assert [*before, *extend_block_hashes(before, answer, size)] == PromptTokenIds(prompt + answer).block_keys(size)


def test_a_namespace_has_keys_of_its_own() -> None:
    request = Request(id=0, arrival=0, prompt_tokens=4, prefix=PromptTokenIds((1, 2, 3, 4)))
    here = Request(id=1, arrival=0, prompt_tokens=4, prefix=PromptTokenIds((1, 2, 3, 4)), cache_namespace="lora-7")
    assert request_block_hashes(request, 2) == PromptTokenIds((1, 2, 3, 4)).block_keys(2)
    assert set(request_block_hashes(here, 2)).isdisjoint(request_block_hashes(request, 2))
    assert request_block_hashes(here, 2) == apply_namespace(request_block_hashes(request, 2), "lora-7")
    assert request_block_hashes(Request(id=2, arrival=0, prompt_tokens=4), 2) == ()


def test_a_block_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        PromptTokenIds((1,)).block_keys(0)
