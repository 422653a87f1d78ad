"""What a tick and a step cost the programs core with 4,000 and with 100,000 programs on 8 backends.

    python bench/programs.py [--rounds 5] [--only tick] [--sizes 4000]

Each case holds a core in a steady state and measures one kind of input there, in CPU time, beside a calibration loop (plain
Python, no work of ours); medians over the rounds. The collector is set as `maitred serve` sets it.

Ticks are measured where all programs are placed; where half of them wait and nothing is left; where half of them wait and
the tools of the others have taken so long that room is left for many; and, in the flavour `thunderagent`, where one tick
pauses half of all programs and the next one resumes them. ThunderAgent itself needed 17 s for the pause pass and 7 s for
the resume pass with 4,000 programs (measured on a loaded machine with two cores).

A step is the begin and the end of one request, with the deadline that a driver asks for after each. With over-subscribed
memory half of the programs wait; programs grow and shrink, and so are paused, marked and let in.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random
from time import process_time
from typing import Any, TypeAlias

import maitred.compat  # noqa: F401 - one case has the rules of another system
from maitred.core.request import RequestId
from maitred.core.units import MILLISECOND, Micros
from maitred.programs import ProgramAction, ProgramDecision, ProgramRequest, Programs, ProgramsConfig, Usage
from measuring import CALIBRATION_LOOPS, calibrate

SIZES = (4_000, 100_000)
NUM_BACKENDS = 8
MODEL = "m"
TOKENS = 5_000
"""Mean tokens of a program."""
STEPS_PER_ROUND = 1_000
KNOWN_SECS = {"pause half of them": 17.0, "resume them": 7.0}
"""What ThunderAgent needed with 4,000 programs."""

Measured: TypeAlias = Iterator[float]
"""Yields CPU seconds, one figure a round."""
Case: TypeAlias = Callable[[int], Measured]


class LoadedCore:
    """A core with `n` programs, each with a request under way or waiting; `fit` is the share of them that has a place."""

    def __init__(self, n: int, fit: float, **keys: Any) -> None:
        lasting = {
            "max_programs_per_tenant": 10**7,
            "max_waiting": 10**7,
            "max_wait_secs": 10**7,
            "displace_secs": 10**7,
            "program_ttl_secs": 10**7,
        }
        self.core = Programs(ProgramsConfig(**{"mode": "tr", "scheduler_interval_secs": 1000.0, **lasting, **keys}))
        self.rng = Random(1)
        self.now: Micros = 0
        self.granted: dict[RequestId, str] = {}
        """The requests under way, with their programs."""
        self._ids = count(1)
        self._names: dict[RequestId, str] = {}
        self.capacity = int(fit * n * (TOKENS + 100) / NUM_BACKENDS / 0.94)  # what headroom leaves free comes on top
        self.set_capacity(self.capacity)
        for number in range(n):
            self.begin(f"p{number}", self.rng.randrange(2 * TOKENS))

    def set_capacity(self, capacity: int) -> None:
        for index in range(NUM_BACKENDS):
            self.follow(self.core.set_backend(index, self.now, models=[MODEL], capacity=capacity))

    def later(self, span: Micros = 10) -> Micros:
        self.now += span
        return self.now

    def follow(self, decisions: Any) -> None:
        for decision in decisions:
            if decision.action is ProgramAction.GRANT:
                self.granted[decision.request] = self._names[decision.request]

    def request(self, name: str, tokens: int) -> ProgramRequest:
        request = ProgramRequest(id=next(self._ids), model=MODEL, program=name, prompt_tokens=tokens)
        self._names[request.id] = name
        return request

    def begin(self, name: str, tokens: int) -> None:
        self.follow(self.core.begin(self.request(name, tokens), self.later()))

    def end_all(self) -> None:
        """End all requests under way, until none is: those that wait come in meanwhile."""
        while self.granted:
            request_id, _ = self.granted.popitem()
            self.follow(self.core.end(request_id, None, self.later()))

    def tick(self) -> float:
        """Return the CPU seconds of the next tick."""
        due = self.core.next_deadline()
        assert due is not None
        self.now = due
        began = process_time()
        decisions = self.core.advance(due)
        spent = process_time() - began
        self.follow(decisions)
        return spent


def all_placed(n: int) -> Measured:
    """all have a place, and act"""
    loaded = LoadedCore(n, 1.5, acting_estimator="learned")
    loaded.end_all()
    assert not loaded.core.num_waiting
    while True:
        yield loaded.tick()


def half_wait(n: int) -> Measured:
    """half of them wait, and nothing is left"""
    loaded = LoadedCore(n, 0.5)
    assert 0.4 * n < loaded.core.num_waiting < 0.6 * n
    while True:
        yield loaded.tick()


def half_wait_and_room(n: int) -> Measured:
    """half of them wait; the others act, and at the tick a sixteenth of them counts still"""
    while True:
        loaded = LoadedCore(n, 0.5, acting_estimator="decay(half_life_secs=250)", patience_secs=10**6)
        placed = list(loaded.granted)
        # At one instant, so that nothing decays and no end lets one in before the tick.
        for request_id in placed:
            del loaded.granted[request_id]
            loaded.core.end(request_id, None, loaded.now)
        before = loaded.core.num_waiting
        tune_garbage_collector()
        spent = loaded.tick()
        assert loaded.core.num_waiting < before - n // 10
        yield spent


def passes(n: int) -> Iterator[tuple[float, float]]:
    """Yield what the tick costs that pauses half of all acting programs, and the next one, which resumes them."""
    loaded = LoadedCore(n, 1.1, flavour="thunderagent")
    loaded.end_all()
    while True:
        loaded.set_capacity(loaded.capacity // 2)
        pausing = loaded.tick()
        paused = sum(program.backend is None for program in loaded.core.programs)
        assert paused > 0.4 * n
        loaded.set_capacity(loaded.capacity)
        resuming = loaded.tick()
        assert sum(program.backend is None for program in loaded.core.programs) < 0.1 * n
        yield pausing, resuming


def step(fit: float, **keys: Any) -> Case:
    def case(n: int) -> Measured:
        loaded = LoadedCore(n, fit, **keys)
        core = loaded.core
        while True:
            ending = loaded.rng.sample(sorted(loaded.granted), min(STEPS_PER_ROUND, len(loaded.granted)) // 2)
            usage = [Usage(TOKENS, loaded.rng.randrange(2 * TOKENS)) for _ in ending]
            requests = [loaded.request(loaded.granted.pop(request_id), TOKENS) for request_id in ending]
            decided: list[ProgramDecision] = []
            began = process_time()
            for request_id, used in zip(ending, usage, strict=True):
                decided += core.end(request_id, used, loaded.later(MILLISECOND))
                core.next_deadline()
            for request in requests:
                decided += core.begin(request, loaded.later(MILLISECOND))
                core.next_deadline()
            spent = process_time() - began
            loaded.follow(decided)
            yield spent / (2 * len(ending))

    return case


def pause_half(n: int) -> Measured:
    return (pausing for pausing, _ in passes(n))


def resume_them(n: int) -> Measured:
    return (resuming for _, resuming in passes(n))


TICKS: dict[str, Case] = {
    "tick, all are placed": all_placed,
    "tick, half of them wait": half_wait,
    "tick, half of them wait, and room for many": half_wait_and_room,
    "tick of flavour thunderagent: pause half of them": pause_half,
    "tick of flavour thunderagent: resume them": resume_them,
}
TICK_AIMS = {4_000: 0.020, 100_000: 1.0}
STEPS: dict[str, Case] = {
    "begin or end, room for all": step(1.5),
    "begin or end, half of them wait": step(0.5),
    "begin or end, half wait, learned tool times": step(0.5, acting_estimator="learned"),
}
STEP_AIM = 20e-6
"""For 4,000 programs."""


def tune_garbage_collector() -> None:
    """Set the collector as `maitred serve` does, once everything that stays is there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def measure(case: Case, n: int, rounds: int) -> float:
    figures = case(n)
    next(figures)  # warm up
    tune_garbage_collector()
    return statistics.median([next(figures) for _ in range(rounds)])


def main(rounds: int, only: str, sizes: Sequence[int]) -> None:
    loops = [calibrate() for _ in range(3)]
    print(f"calibration loop ({CALIBRATION_LOOPS:,} turns): {statistics.median(loops) * 1e3:.1f} ms CPU")
    print(f"{'CPU':<52}" + "".join(f"{f'n = {n:,}':>14}" for n in sizes) + "   aims")
    for name, case in TICKS.items():
        if only in name:
            figures = "".join(f"{measure(case, n, rounds) * 1e3:11.1f} ms" for n in sizes)
            known = next((f"; ThunderAgent: {secs:.0f} s at 4,000" for key, secs in KNOWN_SECS.items() if key in name), "")
            print(f"{name:<52}{figures}   {' and '.join(f'{aim * 1e3:.0f} ms' for aim in TICK_AIMS.values())}{known}")
    for name, case in STEPS.items():
        if only in name:
            figures = "".join(f"{measure(case, n, rounds) * 1e6:11.1f} µs" for n in sizes)
            print(f"{name:<52}{figures}   {STEP_AIM * 1e6:.0f} µs at 4,000")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of programs")
    options = parser.parse_args()
    main(options.rounds, options.only, options.sizes)
