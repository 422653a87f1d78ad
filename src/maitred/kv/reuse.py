"""Reuse: how much of its prompts a workload repeats, whatever serves it: the hit rate of a cache that never evicts.

No cache can do better, so the hit rate of one that does evict is read against this.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from maitred.core.request import Request
from maitred.kv.block_hashes import request_block_hashes


class Reuse(msgspec.Struct):
    requests: int = 0
    blocks: int = 0
    """Blocks of prompt; a partial last one counts."""
    found: int = 0
    """Of these, how many an earlier prompt had begun with; a partial one is never found."""

    @property
    def rate(self) -> float:
        """0..1; 0 without blocks."""
        return self.found / self.blocks if self.blocks else 0.0


def reuse(requests: Iterable[Request], block_size: int) -> Reuse:
    """What of `requests`, in their order, a cache without limits would find. Memory is in proportion to distinct blocks.

    Raises ConfigError for a block size at which the content of a prompt is not known.
    """
    seen: set[int] = set()
    counts = Reuse()
    for request in requests:
        chain = request_block_hashes(request, block_size)
        counts.requests += 1
        counts.blocks += -(-request.prompt_tokens // block_size)
        counts.found += next((position for position, key in enumerate(chain) if key not in seen), len(chain))
        seen.update(chain)
    return counts
