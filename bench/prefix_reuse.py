"""How much of its prompts a trace repeats: the hit rate of a cache that never evicts, a property of the trace alone.

    python bench/prefix_reuse.py [--block-size 512] TRACE...

Traces are named as everywhere (`FILE`, `FORMAT:FILE`), plain or gzipped. In blocks of 512 tokens, in which they were
recorded, the Mooncake conversation trace repeats 37 % (105,592 of 288,500 blocks) and the synthetic one 64 % (77,740 of
121,877).
"""

from __future__ import annotations

import argparse
import sys

from maitred.core.errors import MaitredError
from maitred.kv import reuse
from maitred.workload.trace import open_trace


def main() -> int:
    parser = argparse.ArgumentParser(description="How much of its prompts a trace repeats.")
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--block-size", type=int, default=512, metavar="TOKENS")
    options = parser.parse_args()
    for name in options.traces:
        try:
            with open_trace(name) as trace:
                reused = reuse((job.request for job in trace), options.block_size)
        except MaitredError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{name}: {reused.rate:.1%} ({reused.found:,} of {reused.blocks:,} blocks of {reused.requests:,} prompts)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
