"""What one scheduling pass costs the policies that order by the prefix cache, and that it hardly grows with those who wait.

    python bench/queueing.py [--rounds 7] [--only lpm]

n requests wait (128, 1,000 and 10,000), of 32 families: prompts of 1,024 tokens, of which a family shares the first 768, in
blocks of 16. Half the families' prefixes are cached, and 4,096 blocks of requests that are gone.

`pass`: it begins, admits 8, publishes their blocks, and evicts the 128 blocks least recently used (which the same number of
    arrivals follows, outside of the figure: n stays).
`arrival`: one of them, its 64 keys and what is cached of them included.
`family`: a pass after which a family loses the end of its prefix, or finds it again: n / 32 requests move, which is no
    scheduling pass's usual lot.

Rounds are interleaved: each runs every case at every size, beside a calibration loop (plain Python, no work of ours). CPU time,
medians over the rounds; the collector is set as `maitred serve` sets it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from time import process_time

import msgspec

from maitred.core.contracts import PrefixCacheListener
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.queueing import SCHEDULERS
from measuring import CALIBRATION_LOOPS, calibrate

SIZES = (128, 1_000, 10_000)
POLICIES = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
FAMILIES, BLOCK, SHARED, OWN = 32, 16, 48, 16
ADMITTED, EVICTED = 8, 128
PASSES = 20
"""In a round."""
AIMS = {"pass": 1_000.0, "arrival": 20.0, "family": 0.0}
"""µs; 0: none."""


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys`: blocks of the family, then its own."""

    family: int
    number: int

    def block_keys(self, block_size: int) -> list[int]:
        first, own = (1 + self.family) * SHARED, (1_000 + self.number) * OWN
        return [*range(first, first + SHARED), *range(own, own + OWN)]


class Cache:
    """A prefix cache that costs next to nothing: the blocks, least recently used first."""

    def __init__(self) -> None:
        self.block_size = BLOCK
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self.watchers: list[PrefixCacheListener] = []

    def block_hashes(self, request: Request) -> Sequence[int]:
        assert request.prefix is not None
        return request.prefix.block_keys(BLOCK)

    def contains(self, key: int) -> bool:
        return key in self.blocks

    def num_cached_blocks(self, chain: Sequence[int]) -> int:
        return next((depth for depth, key in enumerate(chain) if key not in self.blocks), len(chain))

    def num_cached_tokens(self, request: Request) -> int:
        raise NotImplementedError("who keeps a chain needs no match")

    def subscribe(self, watcher: PrefixCacheListener) -> None:
        self.watchers.append(watcher)

    def use(self, chain: Sequence[int]) -> None:
        """All of them are cached, and the end of the chain goes first."""
        missing = [key for key in chain if key not in self.blocks]
        for key in reversed(chain):
            self.blocks[key] = None
            self.blocks.move_to_end(key)
        for watcher in self.watchers:
            for key in missing:
                watcher.on_stored(key)

    def evict(self, blocks: int) -> None:
        self.forget([key for key, _ in zip(self.blocks, range(blocks), strict=False)])

    def forget(self, keys: Sequence[int]) -> None:
        for key in keys:
            del self.blocks[key]
            for watcher in self.watchers:
                watcher.on_removed(key)


class Step:
    step_index = 0
    running = 0
    free_blocks = 1_000_000

    def running_routing_keys(self) -> dict[str, int]:
        return {}


class Room:
    """A queue, the cache that it looks at, and n who wait."""

    def __init__(self, policy: str, n: int) -> None:
        self.random = Random(n)
        self.numbers = count()
        self.cache = Cache()
        for number in range(4_096 // OWN):
            self.cache.use(Prompt(0, -1 - number).block_keys(BLOCK)[SHARED:])
        for family in range(0, FAMILIES, 2):
            self.cache.use(Prompt(family, 0).block_keys(BLOCK)[:SHARED])
        self.queue = SCHEDULERS.get(policy)().make_queue(self.cache, Random(0))
        self.lost: list[int] = []
        for _ in range(n):
            self.arrive(self.next())

    def next(self) -> SequenceState:
        number = next(self.numbers)
        prompt = Prompt(self.random.randrange(FAMILIES), number)
        return SequenceState(
            Request(id=number, arrival=number, prompt_tokens=(SHARED + OWN) * BLOCK, prefix=prompt), number, 1_024
        )

    def arrive(self, seq: SequenceState) -> None:
        self.queue.add(seq, seq.request.arrival)

    def schedule(self) -> None:
        """One pass. What is admitted is computed and over at once."""
        queue, cache = self.queue, self.cache
        queue.on_step_start(Step(), 0)
        admitted = []
        for _ in range(ADMITTED):
            if queue.peek() is not None:
                admitted.append(queue.pop())
        for seq in admitted:
            chain = cache.block_hashes(seq.request)
            cached = sum(map(cache.contains, chain))
            cache.use(chain)
            queue.on_served(seq, (len(chain) - cached) * BLOCK, 0, 0)
            queue.on_sequence_end(seq, 0)
        cache.evict(EVICTED)

    def move_a_family(self) -> None:
        """The last 8 blocks of a family's prefix go, or those that went come back."""
        if self.lost:
            self.cache.use(self.lost)
            self.lost = []
            return
        keys = Prompt(2 * self.random.randrange(FAMILIES // 2), 0).block_keys(BLOCK)[SHARED - 8 : SHARED]
        self.lost = [key for key in keys if self.cache.contains(key)]
        self.cache.forget(self.lost[::-1])


def spent(events: int, work: Callable[[], None]) -> float:
    """CPU µs per event."""
    began = process_time()
    work()
    return (process_time() - began) / events * 1e6


def measure(room: Room) -> dict[str, float]:
    """The median of each kind, over one round."""
    figures: dict[str, list[float]] = {kind: [] for kind in AIMS}

    def arrivals() -> None:
        coming = [room.next() for _ in range(ADMITTED)]
        figures["arrival"].append(spent(ADMITTED, lambda: [room.arrive(seq) for seq in coming] and None))

    for _ in range(PASSES):
        figures["pass"].append(spent(1, room.schedule))
        arrivals()
    for _ in range(PASSES // 4):
        room.move_a_family()
        figures["family"].append(spent(1, room.schedule))
        arrivals()
    if room.lost:
        room.move_a_family()
        room.schedule()
        arrivals()
    return {kind: statistics.median(values) for kind, values in figures.items()}


def main(rounds: int, only: str) -> None:
    rooms = {(policy, n): Room(policy, n) for policy in POLICIES if only in policy for n in SIZES}
    for room in rooms.values():
        measure(room)  # warm up
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    loops: list[float] = []
    found: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in rooms}
    for _ in range(rounds):
        loops.append(calibrate())
        for case, room in rooms.items():
            found[case].append(measure(room))
    turn = statistics.median(loops) / CALIBRATION_LOOPS * 1e6
    print(f"calibration loop ({CALIBRATION_LOOPS:,} turns): {turn * CALIBRATION_LOOPS / 1e3:.1f} ms CPU")
    print(f"{'CPU µs, n waiting':<36}" + "".join(f"{f'n = {n:,}':>12}" for n in SIZES) + f"{'growth':>8}{'aim':>7}{'turns':>8}")
    for policy in dict.fromkeys(policy for policy, _ in rooms):
        for kind, aim in AIMS.items():
            medians = [statistics.median(each[kind] for each in found[policy, n]) for n in SIZES]
            print(f"{f'{policy}: {kind}':<36}" + "".join(f"{value:12.1f}" for value in medians), end="")
            print(f"{medians[-1] / medians[1]:8.2f}{f'{aim:.0f}' if aim else '-':>7}{medians[-1] / turn:8.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="policies whose name contains this")
    options = parser.parse_args()
    main(options.rounds, options.only)
