"""What one scheduling pass costs the policies that order by the prefix cache, and that it hardly grows with those who wait.

    python bench/queueing.py [--rounds 7] [--only lpm]

n requests wait (128, 1,000 and 10,000), of 32 families: prompts of 1,024 tokens, of which the family shares the first 768, in
blocks of 16. The prefixes of half the families are cached. A pass begins, admits 8, locks, takes and publishes their blocks in
a `BlockPool`, lets them go, and evicts 128 blocks, the least recently used; what the pool itself costs is measured beside it
(`the pool alone`) and included. 8 others arrive between passes (`arrival`: µs each, with the keys of their prompt).
`family` is a pass in which a whole family loses its prefix too, and finds it again by the next: n / 32 requests move twice.

Rounds are interleaved: each runs every case at every size, beside a calibration loop (plain Python, no work of ours). CPU time,
medians over the rounds; the collector is set as `maitred serve` sets it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Iterator
from itertools import count
from random import Random
from time import process_time

import msgspec

from maitred.contracts import Seq, WaitQueue
from maitred.kv import BlockPool
from maitred.queueing import SCHEDULERS
from maitred.request import Request
from measuring import CALIBRATION_LOOPS, calibrate

SIZES = (128, 1_000, 10_000)
POLICIES = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
FAMILIES, BLOCK, SHARED, OWN = 32, 16, 48, 16
ADMITTED, EVICTED = 8, 128
PASSES = 20
"""In a round, of each kind."""
POOL_BLOCKS = FAMILIES * SHARED + 4_096


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys`: blocks of the family, then its own."""

    family: int
    number: int

    def keys(self, block_size: int) -> list[int]:
        first, own = self.family * SHARED, (1_000 + self.number) * OWN
        return [*range(first, first + SHARED), *range(own, own + OWN)]


class Step:
    number = 0
    running = 0
    free_blocks = POOL_BLOCKS

    def running_routing_keys(self) -> dict[str, int]:
        return {}


class Room:
    """A pool, a queue (or none) that looks at it, and n who wait."""

    def __init__(self, policy: str | None, n: int) -> None:
        self.random = Random(n)
        self.numbers = count()
        self.pool = BlockPool(POOL_BLOCKS, BLOCK)
        for family in range(0, FAMILIES, 2):
            self.pool.insert(Prompt(family, 0).keys(BLOCK)[:SHARED])
        for number in range(4_096 // OWN):
            self.pool.insert(Prompt(0, -1 - number).keys(BLOCK)[SHARED:])
        self.queue: WaitQueue | None = None if policy is None else SCHEDULERS.get(policy)().queue(self.pool, Random(0))
        self.line: list[Seq] = []
        for _ in range(n):
            self.arrive(self.next())

    def next(self) -> Seq:
        number = next(self.numbers)
        prompt = Prompt(self.random.randrange(FAMILIES), number)
        request = Request(id=number, arrival=number, prompt_tokens=(SHARED + OWN) * BLOCK, prefix=prompt)
        return Seq(request, number, request.prompt_tokens)

    def arrive(self, seq: Seq) -> None:
        if self.queue is None:
            self.line.append(seq)
        else:
            self.queue.add(seq, seq.request.arrival)

    def admitted(self) -> Iterator[Seq]:
        """Those of a pass, while the pool changes under it."""
        queue = self.queue
        if queue is None:
            taken, self.line = self.line[:ADMITTED], self.line[ADMITTED:]
            yield from taken
            return
        queue.begin(Step(), 0)
        for _ in range(ADMITTED):
            if queue.peek() is not None:
                yield queue.pop()

    def go(self) -> None:
        """One pass."""
        pool, queue = self.pool, self.queue
        for seq in self.admitted():
            chain = pool.chain(seq.request)
            lock = pool.lock(chain[:-1])
            cached = lock.published
            pool.take(len(chain) - cached)
            pool.claim(lock, len(chain) - cached)
            pool.publish(lock, chain[cached:])
            pool.unlock(lock)
            if queue is not None:
                queue.served(seq, (len(chain) - cached) * BLOCK, 0, 0)
                queue.left(seq, 0)
        pool.evict(EVICTED)

    def lose_a_family(self) -> None:
        """Everything goes, and all but one family's prefix and the end of what was there comes back."""
        keys = Prompt(2 * self.random.randrange(FAMILIES // 2), 0).keys(BLOCK)[:SHARED]
        if self.queue is not None:
            for key in reversed(keys):
                self.pool._watchers.evicted([key])
