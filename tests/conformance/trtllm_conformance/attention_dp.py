"""Attention data parallelism: the requests of one engine are spread over ranks, which all step together.

New requests go to the ranks with the least work (`route_to_ranks`). A prompt on one rank makes all the others wait for it, so
prompts are held back until every rank has one, or for some steps (`ContextBalance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import msgspec


class RankState(msgspec.Struct, frozen=True):
    """The load of one rank."""

    active_requests: int
    active_tokens: int
    """Tokens of the prompts of its active requests."""


class RankRequest(msgspec.Struct, frozen=True):
    """A new request to be given to a rank."""

    request_id: int
    num_tokens: int
    target_rank: int | None = None
    relax: bool = True
    """Whether another rank than the target will do as well; a request for which it will not is strict."""


class RankAssignment(msgspec.Struct, frozen=True):
    """The new requests of each rank, in the order in which they were given, and how many may be active on each."""

    per_rank: Sequence[Sequence[RankRequest]]
    expected_active_requests: int


def route_to_ranks(ranks: Sequence[RankState], requests: Sequence[RankRequest], max_active_requests: int) -> RankAssignment:
    """Give each request to a rank: to its target while that has room, else the longest prompt first to the rank with the fewest
    tokens. Requests for which no rank has room are left out.

    A request whose target is full falls back to another rank, even if it is strict (`relax` False): strictness decides only
    which requests come first. Whoever wants a strict request to wait for its target leaves it in the waiting queue.
    """
    active = [rank.active_requests for rank in ranks]
    tokens = [rank.active_tokens for rank in ranks]
    given: list[list[RankRequest]] = [[] for _ in ranks]
    rest: list[RankRequest] = []

    def give(request: RankRequest, rank: int) -> None:
        given[rank].append(request)
        active[rank] += 1
        tokens[rank] += request.num_tokens

    # Strict requests come first, so that none of the others takes the place that they need.
    for request in sorted(requests, key=lambda request: request.relax):
        target = request.target_rank
        if target is not None and active[target] < max_active_requests:
            give(request, target)
        else:
            rest.append(request)
    # All ranks step together, and wait for the one with most to do: so none gets more than its share, rounded up.
    fair_share = -(-(sum(active) + len(rest)) // len(ranks))
    expected = min(max(fair_share, *active, 0), max_active_requests)
    heap = [(tokens[rank], active[rank], rank) for rank in range(len(ranks)) if active[rank] < expected]
    heapify(heap)
    # Longest first: the short ones at the end even the sums out.
    for request in sorted(rest, key=lambda request: -request.num_tokens):
        if not heap:
            break
        rank = heappop(heap)[2]
        give(request, rank)
        if active[rank] < expected:
            heappush(heap, (tokens[rank], active[rank], rank))
    return RankAssignment(given, expected)


class ContextBalance:
    """Whether the prompts that were scheduled run in this step, by what all ranks have scheduled."""

    def __init__(self, max_batch_size: int, timeout_iters: int = 50, batching_wait_iters: int = 10) -> None:
        self._max_batch_size = max_batch_size
        self._timeout_iters = timeout_iters
        self._batching_wait_iters = batching_wait_iters
        self._steps_held = 0
        """Steps in which a rank had no prompt or no place."""
        self._steps_gathered = 0
        """Steps in which all ranks had prompts that were held back for more."""

    def releases(self, num_context: Sequence[int], num_generation: Sequence[int]) -> bool:
        """Return whether prompts run, given how many each rank has, and how many requests that generate."""
        all_generate = all(num_generation)
        if all(num_context) and all(count < self._max_batch_size for count in num_generation):
            self._steps_held = 0
            if all_generate and self._steps_gathered < self._batching_wait_iters:
                self._steps_gathered += 1
                return False
            if all_generate:
                self._steps_gathered = 0
            return True
        self._steps_held += 1
        if all_generate and self._steps_held < self._timeout_iters:
            return False
        self._steps_held = 0
        return True
