"""Blocks: the memory that queueing, batching and programs look at.

KV memory is cut into blocks of a fixed number of tokens. As long as nothing reads their content, blocks are counts
(`BlockCounts`); the prefix cache will put content behind the same counts.
"""

from __future__ import annotations

from maitred.kv.counts import BlockCounts

__all__ = ["BlockCounts"]
