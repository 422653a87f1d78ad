"""BlockManager: its sums must be what counting the blocks of every sequence would give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.errors import InvariantError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.kv import BlockManager

SOMEBODY = SequenceState(Request(id=0, arrival=0, prompt_tokens=1), 0, 1)


def test_a_sequence_opens_a_block_when_its_last_one_is_full() -> None:
    blocks = BlockManager(total=10, block_size=4)
    blocks.reserve(blocks.blocks_for(6))  # 6 tokens: two blocks, the second half full
    blocks.start_decode(6)
    assert blocks.free == 8
    assert [blocks.decode_blocks(steps) for steps in (1, 2, 3, 6, 7)] == [0, 0, 1, 1, 2]  # its 9th and 13th token open one
    blocks.run_steps(3)
    assert blocks.free == 7
    blocks.release_decoding(SOMEBODY, 9)
    blocks.check(held=0)
    assert blocks.free == 10


def test_steps_free_stops_before_the_step_that_finds_no_block() -> None:
    blocks = BlockManager(total=3, block_size=4)
    blocks.reserve(2)
    blocks.start_decode(4)
    blocks.start_decode(4)  # both open a block in the next step, and one is free
    assert blocks.max_steps(100) == 0
    blocks.release_decoding(SOMEBODY, 4)
    assert blocks.max_steps(100) == 8  # two blocks, eight tokens
    assert blocks.max_steps(2) == 2


def test_books_that_do_not_balance_are_reported() -> None:
    blocks = BlockManager(total=3, block_size=4)
    blocks.reserve(1)
    with pytest.raises(InvariantError, match="0 held"):
        blocks.check(held=0)


@pytest.mark.parametrize(("total", "size"), [(0, 16), (4, 0)])
def test_an_instance_without_memory_is_refused(total: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockManager(total, size)


@given(
    size=st.integers(1, 9),
    free=st.integers(0, 60),
    held=st.lists(st.integers(1, 40), max_size=8),
    before=st.integers(0, 20),
    steps=st.integers(1, 50),
)
def test_sums_equal_counting_each_sequence(size: int, free: int, held: list[int], before: int, steps: int) -> None:
    blocks = BlockManager(total=10_000, block_size=size)
    for tokens in held:
        blocks.reserve(blocks.blocks_for(tokens))
        blocks.start_decode(tokens)
    blocks.run_steps(before)
    held = [tokens + before for tokens in held]

    def counted(more: int) -> int:
        return sum(blocks.blocks_for(tokens + more) - blocks.blocks_for(tokens) for tokens in held)

    blocks.check(sum(blocks.blocks_for(tokens) for tokens in held))
    assert blocks.decode_blocks(steps) == counted(steps)
    blocks.reserve(blocks.free - free)
    assert blocks.max_steps(steps) == max(k for k in range(steps + 1) if counted(k) <= free)


@given(
    size=st.integers(1, 9),
    actions=st.lists(st.tuples(st.sampled_from(["start", "run", "leave", "stop", "ask"]), st.integers(1, 40)), max_size=20),
)
def test_steps_count_whenever_somebody_asks(size: int, actions: list[tuple[str, int]]) -> None:
    """Sequences come and go while steps are not counted yet. One that stops keeps its blocks and opens no more."""
    blocks, decoding, stopped = BlockManager(total=10_000, block_size=size), list[int](), list[int]()
    for action, number in actions:
        if action == "start":
            blocks.reserve(blocks.blocks_for(number))
            blocks.start_decode(number)
            decoding.append(number)
        elif action == "run":
            blocks.run_steps(number)
            decoding = [tokens + number for tokens in decoding]
        elif action == "ask":
            held = sum(blocks.blocks_for(tokens) for tokens in decoding + stopped)
            later = held + sum(blocks.blocks_for(tokens + number) - blocks.blocks_for(tokens) for tokens in decoding)
            assert blocks.has_room(10_000 - later, number)
            assert not blocks.has_room(10_001 - later, number)
            blocks.check(held)
        elif decoding and action == "leave":
            blocks.release_decoding(SOMEBODY, decoding.pop(number % len(decoding)))
        elif decoding:
            stopped.append(decoding.pop(number % len(decoding)))
            blocks.stop_decode(stopped[-1])
    blocks.check(sum(blocks.blocks_for(tokens) for tokens in decoding + stopped))
