"""The protocols by which the rooms meet.

Every decision-maker is a plain synchronous state machine. Time is an argument (`now`, in integer microseconds, never
running backwards), randomness is an argument (a `random.Random` given at construction), and what a room needs from a
neighbour is passed in by whoever owns both. So the same object decides in a live gateway, in an engine and in virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, TypeAlias

import msgspec

from maitred.core.decisions import Decision
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros


class Core(Protocol):
    """What every decision-maker with a clock offers to its driver."""

    def advance(self, now: Micros) -> Sequence[Decision]:
        """Everything that is due by `now`."""
        ...

    def next_deadline(self) -> Micros | None:
        """When to call `advance` next. After `advance(t)`: None, or later than t."""
        ...

    def check(self) -> None:
        """Raises InvariantError if the core's books do not balance. For tests; O(n)."""
        ...


# What waits inside an instance


class StepView(Protocol):
    """What a policy may know of the step about to be formed."""

    @property
    def step_index(self) -> int:
        """How many steps the instance has made."""
        ...

    @property
    def running(self) -> int:
        """Sequences in the running batch."""
        ...

    @property
    def free_blocks(self) -> int: ...

    def running_routing_keys(self) -> Mapping[str, int]:
        """How many of the running sequences have each routing key; those without one are left out."""
        ...


class PrefixCacheListener(Protocol):
    """Who wants to know what a prefix cache gains and loses, so that nobody need match again what has not changed."""

    def on_stored(self, block_hash: int) -> None:
        """The prefix that ends in the block `key` is cached now."""
        ...

    def on_removed(self, block_hash: int) -> None:
        """It is no longer. Prefixes beyond it cannot be matched either, whether or not their blocks are still there."""
        ...


class PrefixCacheView(Protocol):
    """A prefix cache as a policy may look at it. Looking never changes it: no splits, no recency.

    A prompt is a chain of full blocks, and each block has a key that stands for the whole prefix that ends in it: two prompts
    of one cache namespace share n blocks if and only if their n-th keys are equal.
    """

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...

    def block_hashes(self, request: Request) -> Sequence[int]:
        """The keys of the full blocks of its prompt, first block first; empty if nothing is known of its content. The caller
        keeps it: making it costs time in proportion to the prompt."""
        ...

    def contains(self, block_hash: int) -> bool:
        """Whether this block is cached now (whether those before it are, is another question)."""
        ...

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        """How many leading blocks of `chain` are cached now."""
        ...

    def num_cached_tokens(self, request: Request) -> int:
        """Prompt tokens of `request` that the cache holds now."""
        ...

    def subscribe(self, listener: PrefixCacheListener) -> None:
        """Tell `watcher` of every change from now on."""
        ...


class WaitQueue(Protocol):
    """The sequences that wait in one instance, in the order of one policy."""

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        """`front`: it was preempted and is to be tried again first, as far as the policy orders by arrival."""
        ...

    def remove(self, request_id: RequestId) -> SequenceState | None:
        """Take one out wherever it stands; None if it does not wait here."""
        ...

    def on_step_start(self, step: StepView, now: Micros) -> None:
        """A step is about to be formed at `now`: the only place where the order may change."""
        ...

    def peek(self) -> SequenceState | None:
        """The head. `peek` and `pop` agree until the next `begin`, `add` or `remove`."""
        ...

    def pop(self) -> SequenceState:
        """Take the head. Raises IndexError when empty."""
        ...

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        """`seq` was given `prefill` and `decode` tokens of work: what fairness policies count.

        Each token once, recomputation included: prefill as each chunk ends (also of one aborted meanwhile), decode when the
        sequence stops decoding. How far those that decode now have come follows from `StepView.step_index` and their `origin`.
        """
        ...

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        """`seq` is complete: what length predictors learn."""
        ...

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        """`seq` is gone for good, complete or not: nothing about it need be kept."""
        ...

    def next_order_change(self, now: Micros) -> Micros | None:
        """The first instant after `now` at which time alone may change the head; None: never."""
        ...

    def __len__(self) -> int: ...


class QueuePolicy(Protocol):
    """In what order? Makes the wait queue of one instance."""

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue: ...


SortKey: TypeAlias = tuple[float | int | str, ...]


class PriorityPolicy(Protocol):
    """How urgent is a request now? Larger is more urgent."""

    def compute(self, request: Request, now: Micros) -> float: ...


# What a step costs


class ChunkShape(msgspec.Struct, frozen=True, gc=False):
    """One chunk of prefill: `tokens` new ones after `start` that are in KV already, of `prompt` in all (after a
    preemption: with the tokens that the sequence has emitted)."""

    num_tokens: int
    num_computed_tokens: int
    total_tokens: int


class ContextSpread(msgspec.Struct, frozen=True, gc=False):
    """How far apart the contexts of the sequences that decode lie, in tokens: the same all through a run, as each gains one."""

    max_above_mean: float = 0.0
    """How much longer than their mean the longest one is, ..."""
    min_below_mean: float = 0.0
    """... and how much shorter the shortest one."""
    std_deviation: float = 0.0
    """Their standard deviation."""


UNIFORM_CONTEXTS = ContextSpread()
"""All alike."""


class BatchShape(msgspec.Struct, frozen=True, gc=False):
    """The work of one step, as far as its duration depends on it. All counts are tokens."""

    num_decodes: int
    """Sequences that decode, one token each."""
    context_tokens: int
    """Tokens of KV that they read, summed. Each later step of a run reads `decodes` more."""
    prefill_tokens: int = 0
    """Tokens of prefill, summed over `chunks`."""
    chunks: tuple[ChunkShape, ...] = ()
    context_spread: ContextSpread = UNIFORM_CONTEXTS
    """Of the `decodes`, where the latency model looks at it; else it is not worked out."""


class LatencyModel(Protocol):
    """How long does a step take? A run is k equal decode-only steps in which the context grows by one token per sequence."""

    def step_time(self, batch: BatchShape) -> Micros:
        """At least 1."""
        ...

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        """Exactly the sum of the `step_time`s of the run, each truncated to a whole microsecond."""
        ...

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        """The most steps, at most `limit`, that end within `span` of the run's start."""
        ...

    @property
    def overheads(self) -> Overheads:
        """What a request pays beside the steps."""
        ...


class Overheads(msgspec.Struct, frozen=True, gc=False):
    """Times that a request pays and that do not hold the engine up (BLIS's alpha), in µs."""

    queueing: float = 0.0
    """From its arrival at the instance until it stands in the wait queue (tokenising, say): this, ..."""
    queueing_per_token: float = 0.0
    """... and this for each token of its prompt; truncated to a whole µs."""
    per_output_token: Micros = 0
    """Each token of the answer reaches the client so much later than the one before would have made it."""
    after_last_token: Micros = 0
    """After the last token."""

    def queueing_delay(self, prompt_tokens: int) -> Micros:
        """From arrival to wait queue."""
        return int(self.queueing + self.queueing_per_token * prompt_tokens)


# Which instance


class InstanceView(Protocol):
    """An instance as a router sees it: perhaps stale, except `num_in_flight`, which the router's own driver counts.

    What a driver does not know of its instances is 0 there (a gateway knows no `cached_blocks`)."""

    @property
    def index(self) -> int:
        """Names it in `Choice`; stable for the life of the fleet."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests sent there by this driver and not ended."""
        ...

    @property
    def waiting(self) -> int:
        """Requests in its wait queue."""
        ...

    @property
    def running(self) -> int:
        """Requests in its running batch."""
        ...

    @property
    def kv_usage(self) -> float:
        """Used share of its KV blocks, 0..1."""
        ...

    def cached_blocks(self, request: Request) -> int:
        """How many leading blocks of its prompt are in the prefix cache there; maybe as of some time ago."""
        ...


FleetView: TypeAlias = Sequence[InstanceView]
"""The instances that may be chosen for this request: healthy, serving its model. A driver that shows the same instances shows
the same object, and in one object always the same instances, so a router may keep what it knows of them and need not look at
each of them anew. It says `left` whenever an `num_in_flight` falls."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The router's answer: which instance (its `index`), and why."""

    instance: int
    reason: str


class Router(Protocol):
    """Which instance? Decides among what it is shown; the caller leaves out what cannot serve the request."""

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        """Raises ValueError when `fleet` is empty."""
        ...

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        """The request has ended at, or been taken from, `instance`."""
        ...


class InstanceLoad(msgspec.Struct, frozen=True, gc=False):
    """The load of one instance, as a driver knows it, perhaps stale except `num_in_flight`."""

    in_flight: int = 0
    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    """0..1"""
    index: int = 0
    """Which of the fleet's instances it is, as `InstanceView` has it: two models may run on the same ones."""

    @property
    def effective_load(self) -> int:
        """BLIS's EffectiveLoad. It counts a request twice, as in flight and as waiting or running; kept as GAIE has it."""
        return self.waiting + self.running + self.in_flight


class FleetLoad(msgspec.Struct, frozen=True, gc=False):
    """The load of the instances behind a pool, as admission policies may weigh it."""

    instances: Sequence[InstanceLoad] = ()
