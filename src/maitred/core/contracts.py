"""The protocols by which the packages meet.

Every decision-maker is a plain synchronous state machine. Time is an argument (`now`, in integer microseconds, which never
decreases), randomness is an argument (a `random.Random` given at construction), and what a package needs from a neighbour is
passed in by the caller that owns both. So the same object decides in a live gateway, in an engine and in virtual time.

    inside an instance     StepView, PrefixCacheView and its listener, WaitQueue, QueuePolicy, PriorityPolicy
    the cost of a step     BatchShape, LatencyModel, Overheads
    among instances        InstanceView, FleetView, Router, Choice; InstanceLoad and FleetLoad for admission
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol, TypeAlias

import msgspec

from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros


class StepView(Protocol):
    """The facts that a policy may know of the step about to be formed."""

    @property
    def step_index(self) -> int:
        """The number of steps that the instance has made before this one."""
        ...

    @property
    def running(self) -> int:
        """The number of sequences in the running batch."""
        ...

    @property
    def free_blocks(self) -> int:
        """The number of KV blocks that can be taken now."""
        ...

    def running_routing_keys(self) -> Mapping[str, int]:
        """Return how many running sequences have each routing key; sequences without one are left out."""
        ...


class PrefixCacheListener(Protocol):
    """A listener that learns which blocks a prefix cache gains and loses, so that unchanged prefixes are not matched again."""

    def on_stored(self, block_hash: int) -> None:
        """Note that the block is cached now."""
        ...

    def on_removed(self, block_hash: int) -> None:
        """Note that the block is cached no longer. Prefixes that contain it cannot be matched either, even if their later
        blocks are still cached."""
        ...


class PrefixCacheView(Protocol):
    """A prefix cache as a policy may look at it. Looking never changes it: no splits, no recency.

    A prompt is a sequence of full blocks, and each block has a hash that stands for the whole prefix that ends with it: two
    prompts of one cache namespace share their first n blocks if and only if their n-th hashes are equal.
    """

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        ...

    def block_hashes(self, request: Request) -> Sequence[int]:
        """Return the hashes of the full blocks of the prompt, first block first; empty if nothing is known of its content. The
        caller keeps them, because making them costs time in proportion to the prompt."""
        ...

    def contains(self, block_hash: int) -> bool:
        """Return whether this block is cached now. The blocks before it need not be."""
        ...

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        """Return how many leading blocks are cached now, without a gap."""
        ...

    def num_cached_tokens(self, request: Request) -> int:
        """Return how many tokens of the prompt are in its leading cached blocks now."""
        ...

    def apply_evictions(self) -> None:
        """Carry out the evictions that are due, so that listeners know of all of them. A cache may evict lazily: the owner of a
        listener calls this before it relies on what the listener has heard."""
        ...

    def subscribe(self, listener: PrefixCacheListener) -> None:
        """Tell `listener` of every change from now on."""
        ...


class WaitQueue(Protocol):
    """The sequences that wait in one instance, in the order of one policy."""

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        """Add a sequence. `front` says that it was preempted, and goes first as far as the policy orders by arrival."""
        ...

    def remove(self, request_id: RequestId) -> SequenceState | None:
        """Remove and return the sequence of a request, wherever it is in the order, or None if it does not wait here."""
        ...

    def on_step_start(self, step: StepView, now: Micros) -> None:
        """Note that a step is about to be formed. Only here may time or service change the order."""
        ...

    def peek(self) -> SequenceState | None:
        """Return the head, or None if nothing waits. `pop` returns the same until the next `on_step_start`, `add` or
        `remove`."""
        ...

    def pop(self) -> SequenceState:
        """Remove and return the head. Raises IndexError when empty."""
        ...

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        """Note the work that was done for `seq`, which fairness policies count.

        Each token is reported once, and again when it is computed again: prefill tokens as each chunk ends (also if the
        sequence was aborted meanwhile), decode tokens when the sequence stops decoding. The output so far of a sequence that
        decodes follows from `StepView.step_index` and its `decode_origin_step`.
        """
        ...

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        """Note that `seq` is complete, which length predictors learn from."""
        ...

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        """Note that `seq` has left the instance for good, complete or not: nothing about it need be kept."""
        ...

    def next_order_change(self, now: Micros) -> Micros | None:
        """Return the first instant after `now` at which time alone may change the head, or None if it cannot."""
        ...

    def __len__(self) -> int: ...


class QueuePolicy(Protocol):
    """The order in which an instance serves its waiting sequences: a maker of wait queues."""

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        """Return a new, empty queue. `prefix` is None if the instance has no prefix cache."""
        ...


SortKey: TypeAlias = tuple[float | int | str, ...]


class PriorityPolicy(Protocol):
    """The urgency of a request, as a score that may change with time."""

    def compute(self, request: Request, now: Micros) -> float:
        """Return the score of `request`; larger is more urgent."""
        ...


class ChunkShape(msgspec.Struct, frozen=True, gc=False):
    """One chunk of prefill."""

    num_tokens: int
    """Tokens that the step computes."""
    num_computed_tokens: int
    """Tokens before them that are in KV already."""
    total_tokens: int
    """Tokens of the whole prompt; after a preemption with the output tokens so far."""


class ContextSpread(msgspec.Struct, frozen=True, gc=False):
    """How unequal the contexts of the decoding sequences are, in tokens. It stays the same through a run, because each context
    gains one token per step."""

    max_above_mean: float = 0.0
    """How much longer than the mean the longest context is."""
    min_below_mean: float = 0.0
    """How much shorter than the mean the shortest context is."""
    std_deviation: float = 0.0
    """The standard deviation of the contexts."""


UNIFORM_CONTEXTS = ContextSpread()
"""The spread of contexts that are all equal."""


class BatchShape(msgspec.Struct, frozen=True, gc=False):
    """The work of one step, as far as its duration depends on it. All counts are tokens."""

    num_decodes: int
    """Sequences that decode, one token each."""
    context_tokens: int
    """Tokens of KV that they read, summed. Each later step of a run reads `num_decodes` more."""
    prefill_tokens: int = 0
    """Tokens of prefill, summed over `chunks`."""
    chunks: tuple[ChunkShape, ...] = ()
    """The chunks of prefill."""
    context_spread: ContextSpread = UNIFORM_CONTEXTS
    """The spread of the contexts, worked out only for latency models that look at it."""


class LatencyModel(Protocol):
    """The duration of steps. A run is k decode-only steps of the same sequences, each of which gains one token of context per
    step."""

    def step_time(self, batch: BatchShape) -> Micros:
        """Return how long a step takes, at least 1 µs."""
        ...

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        """Return how long a run takes: exactly the sum of the `step_time`s of its steps, each truncated to a whole
        microsecond."""
        ...

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        """Return how many steps, at most `limit`, end within `span` of the run's start."""
        ...

    @property
    def overheads(self) -> Overheads:
        """The times that a request pays beside the steps."""
        ...


class Overheads(msgspec.Struct, frozen=True, gc=False):
    """Times that a request pays and that do not delay the engine (BLIS's alpha), in µs."""

    queueing: float = 0.0
    """From the arrival at the instance to the wait queue (tokenising, say): the constant part."""
    queueing_per_token: float = 0.0
    """The part for each token of the prompt."""
    per_output_token: Micros = 0
    """Added to the gap before each output token: the n-th one reaches the client n times as much later."""
    after_last_token: Micros = 0
    """Added after the last token."""

    def queueing_delay(self, prompt_tokens: int) -> Micros:
        """Return the time from arrival to wait queue, truncated to a whole µs."""
        return int(self.queueing + self.queueing_per_token * prompt_tokens)


class InstanceView(Protocol):
    """An instance as a router sees it: perhaps stale, except `in_flight`, which the router's own driver counts.

    A load that an engine does not report is None, and never 0: nobody knows whether the instance is idle. A gateway knows no
    `cached_blocks`, which are 0 everywhere then."""

    @property
    def index(self) -> int:
        """The number of the instance in `Choice`, which stays the same for the life of the fleet."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests that this driver sent there and that have not ended."""
        ...

    @property
    def waiting(self) -> int | None:
        """Requests in its wait queue, or None if that is not known."""
        ...

    @property
    def running(self) -> int | None:
        """Requests in its running batch, or None if that is not known."""
        ...

    @property
    def kv_usage(self) -> float | None:
        """Used share of its KV blocks, 0..1, or None if that is not known."""
        ...

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that its KV memory holds, or None if that is not known."""
        return None

    def cached_blocks(self, request: Request) -> int:
        """Return how many leading blocks of the prompt are in the prefix cache there, perhaps as of some time ago."""
        ...


FleetView: TypeAlias = Sequence[InstanceView]
"""The instances that may be chosen for a request: healthy, and serving its model. A driver that shows the same instances shows
the same object, and one object always has the same instances. So a router may keep what it knows of them, and need not look at
all of them for each request. The driver calls `Router.on_request_end` whenever an `in_flight` falls."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The decision of a router."""

    instance: int
    """The `index` of the chosen instance."""
    reason: str
    """Why, in one word, for logs."""


class Router(Protocol):
    """The choice of an instance for each request. A router decides among the instances that it is shown; the caller leaves out
    those that cannot serve the request."""

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        """Choose an instance of `fleet`. Raises ValueError if it is empty."""
        ...

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        """Note that the request has ended at the instance with this index, or was taken from it."""
        ...


class InstanceLoad(msgspec.Struct, frozen=True, gc=False):
    """The load of one instance as a driver knows it: perhaps stale, except `in_flight`. What it does not know is None."""

    in_flight: int = 0
    waiting: int | None = 0
    running: int | None = 0
    kv_usage: float | None = 0.0
    """Used share of its KV blocks, 0..1."""
    index: int = 0
    """The index of `InstanceView`, which tells instances apart that serve several models."""

    @property
    def effective_load(self) -> int:
        """BLIS's and GAIE's EffectiveLoad, which counts a request twice: as in flight, and as waiting or running. Where the
        engine does not say what runs, what is in flight stands for it."""
        return self.in_flight + (self.waiting or 0) + (self.in_flight if self.running is None else self.running)


class FleetLoad(msgspec.Struct, frozen=True, gc=False):
    """The load of the instances behind a pool, which admission policies may weigh."""

    instances: Sequence[InstanceLoad] = ()
