"""Blocks and the prefix tree: the memory that queueing, batching and programs look at.

KV memory is cut into blocks of a fixed number of tokens. As long as nothing reads their content, blocks are counts
(`BlockCounts`). A `PrefixCache` remembers what they held, in one of two ways:

* `BlockPool`: block by block, as vLLM does; the least recently used goes first (`BlisPool`: as BLIS does, which may have main
  memory below it: `HostMemory`).
* `RadixCache`: in a tree of runs, as SGLang does; a leaf at a time, by one of the `EVICTIONS`.
"""

from __future__ import annotations

from maitred.kv.blis import BlisBlocks
from maitred.kv.blis_pool import BlisPool
from maitred.kv.blis_tiered import TieredBlocks
from maitred.kv.cache import Lock, PrefixCache
from maitred.kv.counts import BlockCounts
from maitred.kv.eviction import EVICTIONS, EvictionPolicy
from maitred.kv.finds import NOTHING
from maitred.kv.host import HostMemory
from maitred.kv.keys import TokenIds, chain_for, chain_of, extended, namespace_of, namespaced
from maitred.kv.pool import BlockPool
from maitred.kv.prefixed import PrefixedBlocks
from maitred.kv.radix import RadixCache
from maitred.kv.reuse import Reuse, reuse

__all__ = [
    "EVICTIONS",
    "NOTHING",
    "BlisBlocks",
    "BlisPool",
    "BlockCounts",
    "BlockPool",
    "EvictionPolicy",
    "HostMemory",
    "Lock",
    "PrefixCache",
    "PrefixedBlocks",
    "RadixCache",
    "Reuse",
    "TieredBlocks",
    "TokenIds",
    "chain_for",
    "chain_of",
    "extended",
    "namespace_of",
    "namespaced",
    "reuse",
]
