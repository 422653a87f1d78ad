"""KV memory: its blocks, and what they hold of earlier prompts.

KV memory is cut into blocks of a fixed number of tokens. As long as nothing reads their content, blocks are counts
(`BlockManager`). A `PrefixCache` remembers what they held, in one of two ways:

* `BlockPool`: block by block, as vLLM does; the least recently used block is evicted first.
* `RadixCache`: in a tree of runs, as SGLang does; evicted a leaf at a time, by one of the `EVICTIONS`.

    block_manager.py         BlockManager: how many blocks are free, now and after k more steps
    prefix_block_manager.py  PrefixBlockManager: which cached blocks a sequence finds, fills and leaves behind
    prefix_cache.py          PrefixCache: what both caches promise; block_hashes.py: the names of blocks
    block_pool.py            BlockPool, whose blocks are kept in runs: block_runs.py, key_ranges.py
    host_tier.py             evicted blocks in the memory of the host; radix_host_tier.py: under a tree, as SGLang keeps them
    radix_cache.py           RadixCache, of radix_node.py, found by radix_index.py; eviction.py: which leaf goes first
"""

from __future__ import annotations

from maitred.kv.block_hashes import (
    PromptTokenIds,
    apply_namespace,
    extend_block_hashes,
    request_block_hashes,
    sequence_block_hashes,
)
from maitred.kv.block_manager import BlockManager
from maitred.kv.block_pool import BlockPool
from maitred.kv.eviction import EVICTIONS, EvictionPolicy
from maitred.kv.prefix_block_manager import PrefixBlockManager
from maitred.kv.prefix_cache import NO_HIT, CacheLock, PrefixCache, PrefixHit
from maitred.kv.radix_cache import RadixCache

__all__ = [
    "EVICTIONS",
    "NO_HIT",
    "BlockManager",
    "BlockPool",
    "CacheLock",
    "EvictionPolicy",
    "PrefixBlockManager",
    "PrefixCache",
    "PrefixHit",
    "PromptTokenIds",
    "RadixCache",
    "apply_namespace",
    "extend_block_hashes",
    "request_block_hashes",
    "sequence_block_hashes",
]
