"""What one scheduling pass costs the cache-aware policies: it hardly grows with the number of waiting requests.

    python bench/queueing.py [--rounds 7] [--only lpm]

n requests wait (128, 1,000 and 10,000), of 32 families: prompts of 1,024 tokens, of which a family shares the first
768, in blocks of 16. Half the families' prefixes are cached, and 4,096 blocks of requests that are gone.

`pass`: it starts, admits 8, stores their blocks, and evicts the 128 blocks least recently used. The same number of arrivals
    follows, outside of the figure, so that n stays.
`arrival`: one of them, with its 64 block hashes and the lookup of what is cached of them.
`family`: a pass after which a family loses the end of its prefix, or finds it again: n / 32 requests move, many more than in
    a usual pass.

Rounds are interleaved: each runs every case at every size, beside a calibration loop (plain Python, no work of ours).
CPU time, medians over the rounds; the collector is set as `maitred serve` sets it.
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
"""Passes in a round."""
AIMS = {"pass": 1_000.0, "arrival": 20.0, "family": 0.0}
"""µs; 0 for no aim."""


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt (`PrefixKeys`) of blocks of its family, then blocks of its own."""

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
        self.listeners: list[PrefixCacheListener] = []

    def block_hashes(self, request: Request) -> Sequence[int]:
        assert request.prefix is not None
        return request.prefix.block_keys(BLOCK)

    def contains(self, key: int) -> bool:
        return key in self.blocks

    def num_cached_blocks(self, chain: Sequence[int]) -> int:
        return next((depth for depth, key in enumerate(chain) if key not in self.blocks), len(chain))

    def num_cached_tokens(self, request: Request) -> int:
        raise NotImplementedError("a queue that keeps the block hashes needs no match")

    def apply_evictions(self) -> None:
        pass

    def subscribe(self, listener: PrefixCacheListener) -> None:
        self.listeners.append(listener)

    def use(self, block_hashes: Sequence[int]) -> None:
        """Cache all of `block_hashes`; its end is evicted first."""
        missing = [key for key in block_hashes if key not in self.blocks]
        for key in reversed(block_hashes):
            self.blocks[key] = None
            self.blocks.move_to_end(key)
        for listener in self.listeners:
            for key in missing:
                listener.on_stored(key)

    def evict(self, blocks: int) -> None:
        self.forget([key for key, _ in zip(self.blocks, range(blocks), strict=False)])

    def forget(self, keys: Sequence[int]) -> None:
        for key in keys:
            del self.blocks[key]
            for listener in self.listeners:
                listener.on_removed(key)


class Step:
    step_index = 0
    running = 0
    free_blocks = 1_000_000

    def running_routing_keys(self) -> dict[str, int]:
        return {}


class Scene:
    """A queue, the cache that it looks at, and n waiting requests."""

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
        """Run one pass. What is admitted is computed and ends at once."""
        queue, cache = self.queue, self.cache
        queue.on_step_start(Step(), 0)
        admitted = []
        for _ in range(ADMITTED):
            if queue.peek() is not None:
                admitted.append(queue.pop())
        for seq in admitted:
            block_hashes = cache.block_hashes(seq.request)
            cached = sum(map(cache.contains, block_hashes))
            cache.use(block_hashes)
            queue.on_served(seq, (len(block_hashes) - cached) * BLOCK, 0, 0)
            queue.on_sequence_end(seq, 0)
        cache.evict(EVICTED)

    def move_a_family(self) -> None:
        """Evict the last 8 blocks of a family's prefix, or store those again that were evicted last."""
        if self.lost:
            self.cache.use(self.lost)
            self.lost = []
            return
        keys = Prompt(2 * self.random.randrange(FAMILIES // 2), 0).block_keys(BLOCK)[SHARED - 8 : SHARED]
        self.lost = [key for key in keys if self.cache.contains(key)]
        self.cache.forget(self.lost[::-1])


def cpu_us(events: int, work: Callable[[], None]) -> float:
    """Return the CPU time of `work` in µs per event."""
    began = process_time()
    work()
    return (process_time() - began) / events * 1e6


def measure(scene: Scene) -> dict[str, float]:
    """Return the median of each kind of event, over one round."""
    figures: dict[str, list[float]] = {kind: [] for kind in AIMS}

    def arrivals() -> None:
        coming = [scene.next() for _ in range(ADMITTED)]
        figures["arrival"].append(cpu_us(ADMITTED, lambda: [scene.arrive(seq) for seq in coming] and None))

    for _ in range(PASSES):
        figures["pass"].append(cpu_us(1, scene.schedule))
        arrivals()
    for _ in range(PASSES // 4):
        scene.move_a_family()
        figures["family"].append(cpu_us(1, scene.schedule))
        arrivals()
    if scene.lost:
        scene.move_a_family()
        scene.schedule()
        arrivals()
    return {kind: statistics.median(values) for kind, values in figures.items()}


def main(rounds: int, only: str) -> None:
    scenes = {(policy, n): Scene(policy, n) for policy in POLICIES if only in policy for n in SIZES}
    for scene in scenes.values():
        measure(scene)  # warm up
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    loops: list[float] = []
    rounds_of: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in scenes}
    for _ in range(rounds):
        loops.append(calibrate())
        for case, scene in scenes.items():
            rounds_of[case].append(measure(scene))
    turn = statistics.median(loops) / CALIBRATION_LOOPS * 1e6
    print(f"calibration loop ({CALIBRATION_LOOPS:,} turns): {turn * CALIBRATION_LOOPS / 1e3:.1f} ms CPU")
    print(f"{'CPU µs, n waiting':<36}" + "".join(f"{f'n = {n:,}':>12}" for n in SIZES) + f"{'growth':>8}{'aim':>7}{'turns':>8}")
    for policy in dict.fromkeys(policy for policy, _ in scenes):
        for kind, aim in AIMS.items():
            medians = [statistics.median(each[kind] for each in rounds_of[policy, n]) for n in SIZES]
            print(f"{f'{policy}: {kind}':<36}" + "".join(f"{value:12.1f}" for value in medians), end="")
            print(f"{medians[-1] / medians[1]:8.2f}{f'{aim:.0f}' if aim else '-':>7}{medians[-1] / turn:8.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="policies with this in their name")
    options = parser.parse_args()
    main(options.rounds, options.only)
