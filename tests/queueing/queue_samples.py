"""The policies that every property is tried on, and the sequences that it is tried with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import msgspec

from maitred.core.contracts import PriorityPolicy, StepView, WaitQueue
from maitred.core.request import PriorityClass, Request
from maitred.core.sequence import SequenceState
from maitred.core.units import SECOND, Micros
from maitred.queueing import SCHEDULERS


class TimeVarying(PriorityPolicy):
    """A user's own priority policy, of which nothing is known: its order turns with time."""

    def compute(self, request: Request, now: Micros) -> float:
        return float((request.id * 7 + now // 130) % 11)


COMPOSED = [
    "priority-fcfs(slo-based)",
    "priority-fcfs(inverted-slo(age_weight=0.5))",
    "reverse-priority(slo-based)",
    "priority-fcfs(queue_samples:TimeVarying)",
    "by-priority(sjf)",
    "by-priority(routing-key)",
    "by-priority(bounded(random, max_wait=0.0005), values=low-first)",
    "slo(interactive=0.0004, default=0.0002, bulk=0, system=0.0006, window=0.001)",
    "slo(system=0.001, window=0.003, pressure=20)",
    "srpt(hint)",
    "srpt(none)",
    "srpt(quantile(q=0.9))",
    "vtc(sjf)",
    "vtc(sjf, slack=60)",
    "vtc(edf, slack=40)",
    "vtc(priority-fcfs(inverted-slo), slack=30)",
    "vtc(slo(window=0.001), output_weight=0.3)",
    "vtc(random, slack=20)",
    "bounded(vtc(by-priority), max_wait=0.001)",
    "bounded(sjf, max_wait=0.0007)",
    "bounded(priority-fcfs(inverted-slo), max_displacement=2)",
    "bounded(priority-fcfs(inverted-slo), max_wait=0.0005)",
    "bounded(random, max_displacement=3)",
    "bounded(priority-fcfs(queue_samples:TimeVarying), max_wait=0.0005)",
]
"""Specs of composed policies, and of those whose parameters change what kind of queue they are. The spans are short enough
for the microseconds of the timelines in which they are tried."""

ALL = [*SCHEDULERS, *COMPOSED]


class Step(msgspec.Struct):
    """A step about to be formed, as a test says it is."""

    step_index: int = 0
    running: int = 0
    free_blocks: int = 0
    keys: dict[str, int] = {}

    def running_routing_keys(self) -> Mapping[str, int]:
        return Counter(self.keys)


_A_STEP: StepView = Step()
"""For the type checker: a `Step` is a `StepView`."""


def queue(spec: str, seed: int = 0) -> WaitQueue:
    """Return a queue of the policy `spec`, without a prefix cache."""
    return SCHEDULERS.get(spec)().make_queue(None, Random(seed))


def seq(
    number: int, prompt: int = 100, *, arrival: Micros | None = None, seconds: float | None = None, **fields: object
) -> SequenceState:
    """Return a sequence that arrived at `arrival` µs, or `seconds`, or else at `number` µs; `fields` are the request's."""
    if seconds is not None:
        arrival = round(seconds * SECOND)
    request = Request(id=number, arrival=number if arrival is None else arrival, prompt_tokens=prompt, **fields)  # type: ignore[arg-type]
    return SequenceState(request, number, prompt)


def random_seq(rng: Random, number: int, now: Micros) -> SequenceState:
    """Return a sequence that has a bit of everything that policies order by."""
    return seq(
        number,
        rng.randint(1, 200),
        arrival=now,
        max_output_tokens=rng.choice([None, 5, 40, 300]),
        priority_class=rng.choice(list(PriorityClass)),
        priority=float(rng.choice([0, 0, 1, 5])),
        tenant=rng.choice(["", "a", "b", "c"]),
        program=rng.choice(["", "p", "q"]),
        routing_key=rng.choice(["", "k", "l"]),
        deadline=rng.choice([None, now + 500, now + 5000]),
    )


def started(waiting: WaitQueue, now: Micros = 0, **step: object) -> WaitQueue:
    """Start a step in `waiting`, and return it."""
    waiting.on_step_start(Step(**step), now)  # type: ignore[arg-type]
    return waiting


def drained(waiting: WaitQueue) -> list[int]:
    """Pop everything, and return the numbers of the sequences in this order."""
    return [waiting.pop().arrival_index for _ in range(len(waiting))]
