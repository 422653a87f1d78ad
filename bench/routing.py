"""What one choice costs each router, and how that grows with the number of instances.

    python bench/routing.py [--rounds 5] [--only least-loaded] [--write docs/routing.md]

4, 64 and 256 instances are under steady load: five requests each are in flight, and for each one sent another ends, at
random. Prompts have 32 blocks of 16 tokens, of which 24 are those of one of 32 families; a session has ten requests.
The views are plain objects, so the figures are the router's own: what a look at a simulated instance or a backend costs
comes on top.

Rounds are interleaved: each runs every case once, beside a calibration loop (plain Python, no work of ours). CPU time
of `choose` and `on_request_end` together, medians over the rounds.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from time import process_time

import msgspec

from maitred.core.contracts import Router
from maitred.core.request import Request
from maitred.routing import RoutingConfig
from measuring import CALIBRATION_LOOPS, calibrate
from policies import write

SIZES = (4, 64, 256)
CHOICES = 2_000
"""Choices in a round."""
FAMILIES, SHARED, OWN, ROUNDS_OF_A_SESSION = 32, 24, 8, 10
CASES = (
    ("round-robin", ""),
    ("least-loaded", ""),
    ("power-of-two", ""),
    ("session-affinity", ""),
    ("consistent-hashing", ""),
    ("prefix-hash", ""),
    ("cache-aware", ""),
    ("least-loaded(load=effective)", ""),
    ("weighted", "active-requests:1"),
    ("weighted", "queue-depth:2, kv-utilization:2, load-balance:1"),
    ("weighted", "precise-prefix-cache:2, queue-depth:1, kv-utilization:1"),
    ("weighted", "prefix-affinity:1, active-requests:1"),
    ("weighted", "no-hit-lru:1, queue-depth:1"),
)


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt (`PrefixKeys`) of blocks of its family, then blocks of its own."""

    number: int

    def block_keys(self, block_size: int) -> list[int]:
        first, own = (1 + self.number % FAMILIES) * SHARED, (1_000 + self.number) * OWN
        return [*range(first, first + SHARED), *range(own, own + OWN)]


class View:
    def __init__(self, index: int, rng: Random) -> None:
        self.index, self.in_flight = index, 0
        self.waiting, self.running, self.kv_usage = rng.randrange(4), rng.randrange(9), rng.random()

    def cached_blocks(self, request: Request) -> int:
        return SHARED if (request.id + self.index) % 4 == 0 else 0


def requests(size: int) -> list[Request]:
    return [
        Request(id=n, arrival=n, prompt_tokens=512, program=f"p{n // ROUNDS_OF_A_SESSION}", prefix=Prompt(n))
        for n in range(5 * size + CHOICES)
    ]


def run(router: Router, size: int, sent: Sequence[Request]) -> float:
    """Return the µs for each request."""
    rng = Random(1)
    fleet = [View(index, rng) for index in range(size)]
    in_flight: list[tuple[Request, int]] = []
    for request in sent[: 5 * size]:
        chosen = router.choose(request, fleet, request.arrival).instance
        fleet[chosen].in_flight += 1
        in_flight.append((request, chosen))
    elapsed = 0.0
    for request in sent[5 * size :]:
        which = rng.randrange(len(in_flight))
        ended, instance = in_flight[which]
        fleet[instance].in_flight -= 1
        began = process_time()
        router.on_request_end(ended, instance, request.arrival)
        chosen = router.choose(request, fleet, request.arrival).instance
        elapsed += process_time() - began
        fleet[chosen].in_flight += 1
        in_flight[which] = request, chosen
    return elapsed / CHOICES * 1e6


def clock() -> float:
    """Return the µs that two readings of the clock take, which are part of what `run` measures."""
    elapsed = 0.0
    for _ in range(CHOICES):
        began = process_time()
        elapsed += process_time() - began
    return elapsed / CHOICES * 1e6


def table(figures: dict[tuple[str, str], dict[int, float]], calibration: float) -> Iterator[str]:
    loops = f"{CALIBRATION_LOOPS:,} turns of a plain loop took {calibration * 1e3:.0f} ms meanwhile"
    yield f"µs of CPU time for each request, choice and departure together; {loops}."
    yield ""
    yield "| policy | scorers |" + "".join(f" {size} instances |" for size in SIZES)
    yield "|---|---|" + "---:|" * len(SIZES)
    for (policy, scorers), by_size in figures.items():
        named = f"`{scorers}`" if scorers else ""
        yield f"| `{policy}` | {named} |" + "".join(f" {by_size[size]:.1f} |" for size in SIZES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="the policies with this in their name or scorers")
    parser.add_argument("--write", type=Path, help="put the table into this document")
    options = parser.parse_args()
    gc.disable()
    cases = [case for case in CASES if not options.only or options.only in " ".join(case)]
    sent = {size: requests(size) for size in SIZES}
    costs: dict[tuple[str, str], dict[int, list[float]]] = {case: {size: [] for size in SIZES} for case in cases}
    calibrations = []
    for _ in range(options.rounds):
        calibrations.append(calibrate())
        for case in cases:
            for size in SIZES:
                router = RoutingConfig(policy=case[0], scorers=case[1]).router(Random(0))
                costs[case][size].append(run(router, size, sent[size]) - clock())
    figures = {case: {size: statistics.median(runs) for size, runs in by.items()} for case, by in costs.items()}
    lines = list(table(figures, statistics.median(calibrations)))
    print("\n".join(lines))
    if options.write:
        write(options.write, "routing.py", "\n".join(lines))


if __name__ == "__main__":
    main()
