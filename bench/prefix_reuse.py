"""How much of its prompts a trace repeats: the hit rate of a cache that never evicts, a property of the trace alone.

    python bench/prefix_reuse.py [--block-size 512] TRACE...

No cache can do better, so the hit rate of one that does evict is read against this. Traces are named as everywhere (`FILE`,
`FORMAT:FILE`), plain or gzipped. In blocks of 512 tokens, in which they were recorded, the Mooncake conversation trace repeats
37 % (105,592 of 288,500 blocks) and the synthetic one 64 % (77,740 of 121,877).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

import msgspec

from maitred.core.errors import MaitredError
from maitred.core.request import Request
from maitred.kv import request_block_hashes
from maitred.workload.trace import open_trace


class Reuse(msgspec.Struct):
    """Counts of a trace."""

    requests: int = 0
    blocks: int = 0
    """Blocks of prompt; a partial last one counts."""
    found: int = 0
    """Of these, the blocks with which an earlier prompt has begun; a partial one is never found."""

    @property
    def rate(self) -> float:
        """0..1; 0 without blocks."""
        return self.found / self.blocks if self.blocks else 0.0


def prefix_reuse(requests: Iterable[Request], block_size: int) -> Reuse:
    """Return what of `requests`, in their order, a cache without limits would find. Memory is in proportion to distinct blocks.

    Raises ConfigError for a block size at which the content of a prompt is not known.
    """
    seen: set[int] = set()
    counts = Reuse()
    for request in requests:
        block_hashes = request_block_hashes(request, block_size)
        counts.requests += 1
        counts.blocks += -(-request.prompt_tokens // block_size)
        first_new = (position for position, block_hash in enumerate(block_hashes) if block_hash not in seen)
        counts.found += next(first_new, len(block_hashes))
        seen.update(block_hashes)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="How much of its prompts a trace repeats.")
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--block-size", type=int, default=512, metavar="TOKENS")
    options = parser.parse_args()
    for name in options.traces:
        try:
            with open_trace(name) as trace:
                reused = prefix_reuse((job.request for job in trace), options.block_size)
        except MaitredError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{name}: {reused.rate:.1%} ({reused.found:,} of {reused.blocks:,} blocks of {reused.requests:,} prompts)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
