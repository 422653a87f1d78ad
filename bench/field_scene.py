"""The scene of `field_hrrn.py`: a log of conversations with agents, replayed with 100 requests in flight.

A log is a list of prompts in the order in which they were recorded. Whenever a request ends, the next prompt of the list is
sent, so every policy gets the same requests. The log has `open_talks` conversations at a time; when one is over, another begins
in its place. Some are with an agent, and each of their prompts contains all earlier turns. The others are a single short
request that shares nothing (a title, a classification).

The policies differ because the cache does not hold all open conversations. In the order of the log, most conversations have
just been evicted when their next prompt arrives, which is the worst case of an LRU cache. Policies that prefer cached prefixes
serve conversations while these are still cached.
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

IN_FLIGHT = 100
"""Requests in flight, as recorded."""
DECODE_TIME = 35 * SECOND
"""Time from a first token until the next request takes its place, which stands for the decode instance (docs/evidence.md)."""
PREFILL_RATE, STEP = 25_000, 20 * MILLISECOND
"""Prompt tokens per second, as published for this model on 8 Blackwell GPUs, and the fixed time of a step in µs."""
CHUNK = 16_384
"""Tokens per step: SGLang's default for these GPUs."""
SYSTEM_PROMPT = 16_384
"""Tokens shared by all conversations with an agent. Recorded coding agents have 15,000 at the median."""
TURN = 440
"""Tokens that a turn adds. Recorded coding agents have this mean answer."""


class Scene(msgspec.Struct, frozen=True):
    """The fitted parameters."""

    first_prompt: int = 32_000
    """Tokens of the first prompt of a conversation, after the system prompt."""
    turns: float = 5.0
    """Mean number of turns of a conversation (geometric)."""
    single: float = 0.5
    """Share of conversations that are one short request."""
    single_prompt: int = 1_200
    """Tokens of this request."""
    agents: int = 3
    """Number of agents, each with its own system prompt, all used equally often."""
    open_talks: int = 80
    spread: float = 0.5
    """Standard deviation / mean of the time between two prompts of a conversation in the log (log-normal). 0: round robin."""
    cache: int = 1_750_000
    """Size of the prefix cache in tokens."""
    requests: int = 1_000
    page: int = 512
    """Tokens of a page. Not fitted: SGLang's default is 64 here. The results are alike, and the simulation is faster."""

    def log(self, seed: int) -> Iterator[PieceChain]:
        """Yield the prompts in the order of the log."""
        conversations, pauses = _Conversations(self, Random(f"{seed}/talks").random), Random(f"{seed}/pauses").random
        pause = parse_lengths(f"lognormal:{SECOND},{round(self.spread * SECOND)}").draw
        talks = [(int(pauses() * SECOND), place, next(conversations)) for place in range(self.open_talks)]
        heapify(talks)
        for _ in range(self.requests):
            at, place, talk = talks[0]
            yield talk.popleft()
            heapreplace(talks, (at + pause(pauses), place, talk or next(conversations)))

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


class _Conversations(Iterator[deque[PieceChain]]):
    """Yields the prompts of one conversation after the other."""

    def __init__(self, scene: Scene, uniform: UnitDraw) -> None:
        self._scene = scene
        self._uniform = uniform
        self._pieces = count(1, 2)
        """Ids of parts that occur once. The even ids are those of the system prompts."""

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
    """A list of prompts with `IN_FLIGHT` requests at a time: a `ReactiveWorkload`."""

    def __init__(self, prompts: Iterator[PieceChain]) -> None:
        self._prompts = enumerate(prompts)

    def __iter__(self) -> Iterator[Job]:
        for _ in range(IN_FLIGHT):
            yield from self._next(0)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        return self._next(now + DECODE_TIME)

    def _next(self, at: Micros) -> Iterable[Job]:
        return [
            Job(Request(id=number, arrival=at, prompt_tokens=prompt.tokens, prefix=prompt), 1)
            for number, prompt in islice(self._prompts, 1)
        ]
