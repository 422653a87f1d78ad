"""Block ids of a trace become keys of any smaller block size, equal as far as the prompts are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.errors import ConfigError
from maitred.workload.prefix_keys import ChainedBlockIds

sizes = st.sampled_from([1, 2, 16, 64, 128, 512])


def test_a_partial_last_block_has_keys_for_its_full_small_blocks_only() -> None:
    assert len(ChainedBlockIds((1, 2), 512 + 40, 512).block_keys(16)) == 32 + 2


def test_prompts_that_part_after_the_first_block() -> None:
    one, other = ChainedBlockIds((1, 2), 1024, 512).block_keys(256), ChainedBlockIds((1, 3), 1024, 512).block_keys(256)
    assert list(one[:2]) == list(other[:2])
    assert one[2] != other[2]


@pytest.mark.parametrize("block_size", [0, 48, 768, -16])
def test_a_block_size_that_does_not_divide_is_refused_with_what_would(block_size: int) -> None:
    with pytest.raises(ConfigError, match="divisor of 512"):
        ChainedBlockIds((1,), 512, 512).block_keys(block_size)


@given(st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 5), max_size=4), sizes)
def test_first_n_keys_are_equal_if_and_only_if_the_first_n_blocks_are(one: list[int], other: list[int], size: int) -> None:
    """Two chains share their common ids times the number of small blocks in a large one."""
    mine = ChainedBlockIds(tuple(one), 512 * len(one), 512).block_keys(size)
    yours = ChainedBlockIds(tuple(other), 512 * len(other), 512).block_keys(size)
    assert _shared(mine, yours) == _shared(one, other) * (512 // size)
    assert len(set(ChainedBlockIds(tuple(set(one)), 512 * len(set(one)), 512).block_keys(size))) == len(set(one)) * (
        512 // size
    )


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
