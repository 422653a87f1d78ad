"""What a trace repeats, as `bench/prefix_reuse.py` counts it, by hand, and by both caches with more memory than they need."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.kv import BlockPool, PromptTokenIds, RadixCache
from maitred.workload.trace import open_trace

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from prefix_reuse import prefix_reuse

HEAD = Path(__file__).parent.parent / "vectors" / "mooncake_conversation_head.jsonl.gz"
TINY = Path(__file__).parent.parent / "samples" / "mooncake_tiny.jsonl"


def requests(path: Path) -> list[Request]:
    with open_trace(str(path)) as trace:
        return [job.request for job in trace]


def test_a_full_block_that_an_earlier_prompt_began_with_is_found() -> None:
    """1024 tokens of blocks 7, 8; then 700 of 7, 9, the second partial; then one of 10."""
    counts = prefix_reuse(requests(TINY), 512)
    assert (counts.requests, counts.blocks, counts.found, counts.rate) == (3, 5, 1, 0.2)
    assert prefix_reuse(requests(TINY), 16).found == 32


def test_token_ids_and_block_ids_count_alike() -> None:
    prompts = [tuple(range(40)), tuple(range(32)) + (7,) * 8, tuple(range(40))]
    asked = [Request(id=0, arrival=0, prompt_tokens=len(tokens), prefix=PromptTokenIds(tokens)) for tokens in prompts]
    counts = prefix_reuse(asked, 16)
    assert (counts.blocks, counts.found) == (9, 4)


def test_namespaces_and_unknown_content_find_nothing() -> None:
    tokens = PromptTokenIds(tuple(range(32)))
    asked = [Request(id=number, arrival=0, prompt_tokens=32, prefix=tokens, cache_namespace=str(number)) for number in range(2)]
    assert prefix_reuse(asked, 16).found == 0
    assert prefix_reuse([Request(id=0, arrival=0, prompt_tokens=32)] * 2, 16).rate == 0.0
    assert prefix_reuse([], 16).rate == 0.0


def test_the_head_of_a_recorded_trace_counted_from_its_file() -> None:
    seen: set[int] = set()
    blocks = found = 0
    with gzip.open(HEAD, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            full = row["hash_ids"][: row["input_length"] // 512]
            while full and full[0] in seen:
                found += 1
                full = full[1:]
            seen.update(full)
            blocks += len(row["hash_ids"])
    counts = prefix_reuse(requests(HEAD), 512)
    assert (counts.blocks, counts.found) == (blocks, found) == (11_349, 1_525)


@pytest.mark.parametrize("block_size", [512, 64])
def test_caches_that_never_evict_find_all_that_is_repeated(block_size: int) -> None:
    asked = requests(HEAD)
    best = prefix_reuse(asked, block_size).found
    pool, tree = BlockPool(1 << 40, block_size), RadixCache(block_size)
    assert sum(pool.insert(pool.block_hashes(request)) for request in asked) == best
    assert sum(tree.insert(tree.block_hashes(request)) for request in asked) == best
    assert pool.evictable == tree.evictable
    assert (
        pool.num_cached_tokens(asked[-1])
        == tree.num_cached_tokens(asked[-1])
        == asked[-1].prompt_tokens // block_size * block_size
    )
    pool.check()
    tree.check()


def test_a_cache_that_must_evict_finds_less_and_stays_in_balance() -> None:
    asked = requests(HEAD)
    best = prefix_reuse(asked, 512).found
    for cache in (BlockPool(2_000, 512), RadixCache(512, 2_000)):
        found = sum(cache.insert(cache.block_hashes(request)) for request in asked)
        cache.check()
        assert 0 < found < best


def test_a_block_size_at_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="divisor of 512"):
        prefix_reuse(requests(TINY), 48)
