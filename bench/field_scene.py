"""The scene of `field_hrrn.py`: a log of talks with agents, replayed with 100 requests under way.

A log is a list of prompts in the order in which they were recorded, and replaying it asks no more of it: whenever a request
has ended, the next one of the list is sent. So every policy is given the same requests. The log is that of `open_talks` talks
at a time: when one is over, another begins in its place. Some are with an agent, and each of their prompts holds all that was
said before; the others are a single short request that shares nothing (a title, a classification).

What makes the policies differ is that the cache does not hold all talks that are open. Taken in order, most talks have just
been evicted when their turn comes, which is the worst that can happen to a cache by recency; whoever goes first where
something is cached takes them while they are there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heapreplace
from itertools import count, islice
from random import Random

import msgspec

from maitred import InstanceConfig, LinearLatency, Results
from maitred.core.request import Request
from maitred.core.units import MILLISECOND, SECOND, Micros
from maitred.sim import simulate
from maitred.workload import Job, parse_lengths
from maitred.workload.lengths import UnitDraw
from maitred.workload.prefix_keys import NO_PIECES, PieceChain

UNDER_WAY = 100
"""Said in the record."""
ELSEWHERE = 35 * SECOND
"""From a first token to the next request in its place: the decode instance. Little's law gives it (docs/evidence.md)."""
PREFILL_RATE, STEP = 25_000, 20 * MILLISECOND
"""Tokens of prompts per second, as others published of this model on 8 Blackwell GPUs, and what a step takes besides, in µs."""
CHUNK = 16_384
"""Tokens a step: SGLang's default there."""
SYSTEM_PROMPT = 16_384
"""Tokens, shared by all talks with an agent. Recorded coding agents: 15,000 at the median."""
TURN = 440
"""Tokens that a turn adds. Recorded coding agents: the mean answer."""


class Scene(msgspec.Struct, frozen=True):
    """What is fitted."""

    first_prompt: int = 32_000
    """Tokens with which a talk with an agent begins, after the system prompt."""
    turns: float = 5.0
    """Of a talk with an agent, in the mean; geometric."""
    single: float = 0.5
    """The share of talks that are one short request."""
    single_prompt: int = 1_200
    """Its tokens."""
    agents: int = 3
    """Each with a system prompt of its own, and all asked as often."""
    open_talks: int = 80
    spread: float = 0.5
    """Standard deviation / mean of the time between two prompts of a talk in the log; log-normal. 0: they come by turns."""
    cache: int = 1_750_000
    """Tokens."""
    requests: int = 1_000
    page: int = 512
    """Tokens. Not fitted: SGLang's is 64 here, the results are alike, and the simulation is faster."""

    def log(self, seed: int) -> Iterator[PieceChain]:
        """Prompts in the order of the log."""
        begun, pauses = _Talks(self, Random(f"{seed}/talks").random), Random(f"{seed}/pauses").random
        pause = parse_lengths(f"lognormal:{SECOND},{round(self.spread * SECOND)}").draw
        talks = [(int(pauses() * SECOND), place, next(begun)) for place in range(self.open_talks)]
        heapify(talks)
        for _ in range(self.requests):
            at, place, talk = talks[0]
            yield talk.popleft()
            heapreplace(talks, (at + pause(pauses), place, talk or next(begun)))

    def run(self, policy: str, seed: int) -> Results:
        instance = InstanceConfig(
            scheduler=policy,
            max_num_batched_tokens=CHUNK,
            enable_prefix_caching=True,
            prefix_cache="radix",
            block_size_in_tokens=self.page,
            total_kv_blocks=self.cache // self.page,
            latency=LinearLatency((float(STEP), SECOND / PREFILL_RATE, 0.0)),
        )
        return simulate(Replay(self.log(seed)), instance=instance)


class _Talks(Iterator[deque[PieceChain]]):
    """The prompts of one talk after the other."""

    def __init__(self, scene: Scene, uniform: UnitDraw) -> None:
        self._scene = scene
        self._uniform = uniform
        self._pieces = count(1, 2)
        """Numbers for what is said once; the even ones are those of the system prompts."""

    def __next__(self) -> deque[PieceChain]:
        scene, uniform = self._scene, self._uniform
        if uniform() < scene.single:
            return deque([NO_PIECES.append(next(self._pieces), scene.single_prompt)])
        agent, turns = int(uniform() * scene.agents), _geometric(scene.turns, uniform)
        prompt = NO_PIECES.append(2 * agent, SYSTEM_PROMPT).append(next(self._pieces), scene.first_prompt)
        prompts = deque([prompt])
        for _ in range(turns - 1):
            prompt = prompt.append(next(self._pieces), TURN)
            prompts.append(prompt)
        return prompts


def _geometric(mean: float, uniform: UnitDraw) -> int:
    return 1 + int(math.log(1 - uniform()) / math.log(1 - 1 / mean))


class Replay:
    """A list of prompts, `UNDER_WAY` at a time: a `ReactiveWorkload` workload."""

    def __init__(self, prompts: Iterator[PieceChain]) -> None:
        self._prompts = enumerate(prompts)

    def __iter__(self) -> Iterator[Job]:
        for _ in range(UNDER_WAY):
            yield from self._next(0)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        return self._next(now + ELSEWHERE)

    def _next(self, at: Micros) -> Iterable[Job]:
        return [
            Job(Request(id=number, arrival=at, prompt_tokens=prompt.tokens, prefix=prompt), 1)
            for number, prompt in islice(self._prompts, 1)
        ]
