"""How good would each instance be, in one respect? The scorers that `weighted` adds up.

A scorer gives each instance a score from 0 to 1, 1 being best. Most of them are one formula over what an instance shows:

    ViewScorer      looks at each instance by itself
    MinMaxScorer    compares: (most - value) / (most - least), and 1 for all if they are equal

What an instance does not report is unknown, and not 0: an engine whose `/metrics` hangs would look idle and draw all
requests. Where one of the instances does not report what a scorer reads, the scorer compares all of them by the requests in
flight, which are known of each (`known_loads`).

**prefix-affinity** prefers the instance that was sent prompts with the same beginning (`sent_prefixes`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from maitred.core.contracts import FleetView, InstanceView
from maitred.core.registry import Registry
from maitred.core.request import Request
from maitred.routing.base import RouterInfo, Signals, effective_load, known_loads
from maitred.routing.sent_prefixes import DEFAULT_BLOCK_TOKENS, SentPrefixes

_MAX_WAITING: Final = 128
"""Waiting requests from which on the score of `load-aware` is 0."""


class Scorer(Protocol):
    """How good would each instance be, in one respect?"""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        """Return a score from 0 to 1, best, for each instance of `fleet`, in its order. There is at least one instance."""
        ...

    def on_chosen(self, request: Request, view: InstanceView) -> None:
        """Note that `view` was chosen among the instances that were scored last."""
        ...


SCORERS: Registry[Scorer] = Registry(
    "scorer",
    Scorer,
    group="maitred.scorers",
    packages=["maitred.routing"],
    methods=["scores", "on_chosen"],
    flag="--routing-scorers",
    headings={"summary": "score, from 0 to 1", "complexity": "cost, with n instances", "reads": "looks at"},
)


class BaseScorer(Scorer):
    """A scorer that remembers nothing."""

    signals = Signals.LOAD

    def on_chosen(self, request: Request, view: InstanceView) -> None:
        pass

    def check(self) -> None:
        """Raise InvariantError if what the scorer keeps contradicts itself (as `BaseRouter.check`)."""


class ViewScorer(BaseScorer):
    """A scorer that looks at each instance by itself."""

    @abstractmethod
    def score(self, view: InstanceView) -> float:
        """Return the score of one instance. What the instance does not report is None."""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return [self.score(view) for view in fleet]


class MinMaxScorer(BaseScorer):
    """A scorer that compares: `(most - value) / (most - least)`, and 1 for all if they are equal."""

    @abstractmethod
    def value(self, view: InstanceView) -> int | None:
        """Return the number of one instance, of which less is better; None if the instance does not report it."""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        values = known_loads(fleet, self.value)
        most, least = max(values), min(values)
        if most == least:
            return [1.0] * len(values)
        return [(most - value) / (most - least) for value in values]


@SCORERS.register("queue-depth")
class QueueDepth(MinMaxScorer):
    """`(most - waiting) / (most - least)` (GAIE's queue scorer, BLIS `queue-depth`).

    It compares and does not measure: one request more counts as much as a thousand if none waits elsewhere.
    """

    about = RouterInfo(summary="(most - waiting) / (most - least); 1 if all are equal", complexity="O(n)", reads="waiting")

    def value(self, view: InstanceView) -> int | None:
        return view.waiting


@SCORERS.register("running-requests")
class RunningRequests(MinMaxScorer):
    """`(most - running) / (most - least)` (GAIE's running-requests scorer, BLIS `running-requests`)."""

    about = RouterInfo(summary="(most - running) / (most - least); 1 if all are equal", complexity="O(n)", reads="running")

    def value(self, view: InstanceView) -> int | None:
        return view.running


@SCORERS.register("vllm-dp")
class VllmDp(MinMaxScorer):
    """`(most - load) / (most - least)` with load = `4 * waiting + running` (vLLM's data-parallel load balancer, BLIS
    `vllm-dp`)."""

    about = RouterInfo(
        summary="(most - load) / (most - least), load = 4 * waiting + running; 1 if all are equal",
        complexity="O(n)",
        reads="waiting, running",
    )

    def value(self, view: InstanceView) -> int | None:
        waiting, running = view.waiting, view.running
        return None if waiting is None or running is None else 4 * waiting + running


@SCORERS.register("active-requests")
class ActiveRequests(BaseScorer):
    """`(most - in flight) / most`, and 1 for all if nothing is in flight (llm-d's active-request scorer, BLIS
    `active-requests`). The number in flight is never stale."""

    about = RouterInfo(summary="(most - in flight) / most; 1 if there is none", complexity="O(n)", reads="in flight")
    signals = Signals.NOTHING

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return _in_flight_scores(fleet)


def _in_flight_scores(fleet: FleetView) -> list[float]:
    counts = [view.in_flight for view in fleet]
    most = max(counts)
    return [(most - count) / most for count in counts] if most else [1.0] * len(counts)


@SCORERS.register("load-aware")
class LoadAware(BaseScorer):
    """`0.5 * (1 - min(waiting, 128) / 128)` (llm-d's load-aware scorer, BLIS `load-aware`): at most 0.5."""

    about = RouterInfo(summary="0.5 * (1 - min(waiting, 128) / 128)", complexity="O(n)", reads="waiting")

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return [
            0.5 * (1.0 - min(waits, _MAX_WAITING) / _MAX_WAITING) for waits in known_loads(fleet, lambda view: view.waiting)
        ]


@SCORERS.register("load-balance")
class LoadBalance(BaseScorer):
    """`1 / (1 + waiting + running + in flight)` (BLIS `load-balance`). Differences count less the more there is to do."""

    about = RouterInfo(
        summary="1 / (1 + waiting + running + in flight)", complexity="O(n)", reads="in flight, waiting, running"
    )

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return [1.0 / (1.0 + load) for load in known_loads(fleet, effective_load)]


@SCORERS.register("kv-utilization")
class KvUtilization(BaseScorer):
    """`1 - kv_usage` (llm-d's kv-cache-utilization scorer, BLIS `kv-utilization`). Where an instance does not report its KV
    usage, the scores are those of `active-requests`."""

    about = RouterInfo(summary="1 - used share of the KV blocks", complexity="O(n)", reads="KV usage")

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        usages = [view.kv_usage for view in fleet]
        return _in_flight_scores(fleet) if None in usages else [1.0 - usage for usage in usages if usage is not None]


@SCORERS.register("precise-prefix-cache")
class PrecisePrefixCache(BaseScorer):
    """`(blocks - fewest) / (most - fewest)` of the leading blocks that an instance has cached, and 1 for all if they are equal
    (llm-d's precise prefix cache scorer, BLIS `precise-prefix-cache`). It asks the caches of the instances, perhaps as of some
    time ago."""

    about = RouterInfo(
        summary="(blocks - fewest) / (most - fewest) of leading blocks cached there; 1 if all are equal",
        complexity="O(n) looks into caches",
        reads="the caches of the instances",
    )
    signals = Signals.CACHES | Signals.PROMPT

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        counts = [view.cached_blocks(request) for view in fleet]
        most, fewest = max(counts), min(counts)
        if most == fewest:
            return [1.0] * len(counts)
        return [(count - fewest) / (most - fewest) for count in counts]


@SCORERS.register("no-hit-lru")
class NoHitLru(BaseScorer):
    """Spreads prompts that no instance has cached, the ones that fill caches, evenly (llm-d's no-hit-lru scorer, BLIS
    `no-hit-lru`).

    If an instance has any of the prompt in its prefix cache, 0.5 for all. Else `1 - rank / (n - 1)`, where the instances that
    never got such a prompt rank first, and then the others, the one that got its last such prompt longest ago first.
    """

    about = RouterInfo(
        summary="0.5 if the prompt is cached anywhere; else 1 for the instance without such a prompt for longest, down to 0",
        complexity="O(n log n) looks into caches",
        reads="the caches of the instances",
    )
    signals = Signals.CACHES | Signals.PROMPT

    def __init__(self) -> None:
        self._no_hit = False
        """Whether no instance had any of the prompt that was scored last."""
        self._last_given: OrderedDict[int, None] = OrderedDict()
        """The indices of the instances that got such prompts, the one that got one longest ago first."""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        self._no_hit = not any(view.cached_blocks(request) for view in fleet)
        if not self._no_hit:
            return [0.5] * len(fleet)
        if len(fleet) == 1:
            return [1.0]
        turn = {index: turn for turn, index in enumerate(self._last_given)}
        ranked = sorted(range(len(fleet)), key=lambda position: turn.get(fleet[position].index, -1))
        scores = [0.0] * len(fleet)
        for rank, position in enumerate(ranked):
            scores[position] = 1.0 - rank / (len(fleet) - 1)
        return scores

    def on_chosen(self, request: Request, view: InstanceView) -> None:
        if self._no_hit:
            self._last_given[view.index] = None
            self._last_given.move_to_end(view.index)


@SCORERS.register("prefix-affinity")
class PrefixAffinity(BaseScorer):
    """Leading blocks of the prompt that were sent there before, as a share of its blocks (llm-d's approximate prefix scorer,
    BLIS `prefix-affinity`). A prompt of which nothing is known matches none.

    `block` is in tokens, `most` is how many blocks are remembered of each instance; None: as many as it says that it holds.
    """

    about = RouterInfo(
        summary="leading blocks of the prompt that were sent there before, as a share of its blocks",
        complexity="O(n + blocks)",
        reads="the prompt",
    )

    def __init__(self, block: int = DEFAULT_BLOCK_TOKENS, most: int | None = None) -> None:
        """Raises ValueError for less than 1 of either."""
        self._sent = SentPrefixes(block, most)
        self.signals = Signals.PROMPT if most is not None else Signals.PROMPT | Signals.MEMORY
        self._block_hashes: Sequence[int] = ()
        """Hashes of the prompt that was scored last."""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        block_hashes = self._block_hashes = self._sent.blocks_of(request)
        matched = self._sent.matched_blocks(block_hashes)
        return [matched.get(view.index, 0) / len(block_hashes) for view in fleet] if matched else [0.0] * len(fleet)

    def on_chosen(self, request: Request, view: InstanceView) -> None:
        self._sent.note(self._block_hashes, view)

    def check(self) -> None:
        self._sent.check()
