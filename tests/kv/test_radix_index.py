"""The index of a radix tree finds blocks in ranges as it finds those in lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.errors import ConfigError
from maitred.kv.key_ranges import key_ranges
from maitred.kv.radix_cache import RadixCache
from maitred.kv.radix_index import NodeIndex
from maitred.kv.radix_node import RadixNode

BLOCKS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), min_size=1, max_size=3).map(
    lambda pairs: [range(first, first + count) for first, count in pairs]
)


@given(st.lists(st.tuples(BLOCKS, st.booleans(), st.integers(0, 3)), max_size=12))
def test_a_block_is_in_the_node_that_has_it(steps: list[tuple[list[range], bool, int]]) -> None:
    index, expected = NodeIndex(), dict[int, RadixNode]()
    nodes: list[RadixNode] = []
    for ranges, as_ranges, removed in steps:
        plain = [key for each in ranges for key in each]
        node = RadixNode(None, key_ranges(ranges) if as_ranges else plain, len(plain), 0)
        is_new = len(set(plain)) == len(plain) and expected.keys().isdisjoint(plain)
        assert index.add(node.block_hashes, node) is is_new
        if is_new:
            expected.update(dict.fromkeys(plain, node))
            nodes.append(node)
        if removed < len(nodes):
            gone = nodes.pop(removed)
            index.remove(gone.block_hashes)
            expected = {key: each for key, each in expected.items() if each is not gone}
        assert index.by_hash() == expected
        assert [index.get(key) for key in range(50)] == [expected.get(key) for key in range(50)]


def test_ranges_that_stand_for_two_prefixes_are_refused() -> None:
    cache = RadixCache(16, 100)
    cache.insert(key_ranges([range(10), range(40, 50)]))
    with pytest.raises(ConfigError, match="two different prefixes"):
        cache.insert(key_ranges([range(20, 30), range(40, 60)]))
    with pytest.raises(ConfigError, match="two different prefixes"):
        cache.insert(key_ranges([range(5), range(70, 75), range(5, 10)]))
