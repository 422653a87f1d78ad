"""SGLang's orders, tie for tie: pure functions from the waiting list, as the last pass left it, to its next order.

SGLang sorts its list in place, and its sorts are stable: where a key ties, the order of the pass before decides, not arrival.
Its cache-aware policies match the whole list against the cache in each pass, which is why `lpm` and `hrrn` leave the list alone
beyond `CUT_OFF` requests. Source: sglang 0.5.23, `schedule_policy.py`.

For example, `lpm` with three requests of which the second finds 32 tokens in the cache and the others none: the order is 1, 0,
2 and the list stays that way. If the cache then loses those 32 tokens, all three tie and the next order is again 1, 0, 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import IntEnum, StrEnum
from math import inf
from random import Random
from typing import NamedTuple, Protocol

import msgspec


class PrioritySign(IntEnum):
    """Which numbers are urgent. Inside maitred larger ones are; SGLang lets its users say."""

    LOW_FIRST = 1
    HIGH_FIRST = -1


CUT_OFF = 128
"""With more waiting requests than this, `lpm` and `hrrn` match and sort nothing."""


class SGLangPolicy(StrEnum):
    """The values of SGLang's `--schedule-policy`."""

    FCFS = "fcfs"
    LPM = "lpm"
    LOF = "lof"
    DFS_WEIGHT = "dfs-weight"
    RANDOM = "random"
    ROUTING_KEY = "routing-key"
    HRRN = "hrrn"
    SHORTEST_PREFILL_FIRST = "shortest-prefill-first"


CUT_OFF_POLICIES = frozenset({SGLangPolicy.LPM, SGLangPolicy.HRRN})
"""The policies that leave longer lists alone."""
CACHE_AWARE = frozenset({SGLangPolicy.LPM, SGLangPolicy.DFS_WEIGHT, SGLangPolicy.HRRN, SGLangPolicy.SHORTEST_PREFILL_FIRST})


class InBatchCaching(msgspec.Struct, frozen=True):
    """When one of two waiting requests with the same beginning is deprioritized until the other has been computed. Tokens."""

    check: int = 32
    """Only requests with at most this many tokens in the cache are looked at; -1: none."""
    deprioritize: int = 32
    """A request is deprioritized if its first this many tokens are those of a request before it."""


class QueueEntry(msgspec.Struct, eq=False, gc=False):
    """A waiting request, as SGLang's policies see it. Lengths are tokens."""

    rid: str
    prompt: int
    output: int
    """Tokens that it emitted before it was retracted: they are computed again, after the prompt."""
    max_new_tokens: int
    priority: float
    routing_key: str
    queued_at: float
    """When it entered the queue, the last time."""
    prefilled_at_entry: int
    """How many tokens had been prefilled then, in all."""
    pages: Sequence[int] = ()
    """A key for each full page of prompt and output, which stands for all up to there; namespaced."""
    beginning: Hashable = None
    """A key for its first `InBatchCaching.deprioritize` tokens, namespaced, or None if it has fewer."""
    match_limit: int | None = None
    """At most this many cached tokens count, whatever the cache holds (log-probabilities are wanted from there on)."""


class PageCache(Protocol):
    """What must be known of the prefix cache."""

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        ...

    def contains(self, block_hash: int) -> bool:
        """Whether this page is cached."""
        ...

    def position(self, key: int) -> int:
        """Return when the page became a child of the page before it, as a number that orders siblings."""
        ...


class PrefixMatch(msgspec.Struct, frozen=True, gc=False):
    """What the cache holds of a waiting request."""

    prefix: int
    """Cached tokens, in whole pages."""
    matched: int
    """Cached tokens that need not be computed: at least one token of the prompt must be."""
    deprioritized: bool


class SchedulingPass(msgspec.Struct, frozen=True):
    """What one scheduling pass depends on beside the list."""

    rng: Random
    cache: PageCache | None = None
    """None if the prefix cache is off."""
    in_batch: InBatchCaching = InBatchCaching()
    sign: PrioritySign | None = None
    """Which priorities are urgent, or None if priority scheduling is off."""
    prefilled_tokens: int = 0
    """Tokens prefilled so far, in all."""
    running: Mapping[str, int] = {}
    """How many running requests have each routing key; those without one are left out."""


def next_order(policy: SGLangPolicy, waiting: Sequence[QueueEntry], at: SchedulingPass) -> list[int]:
    """Return the next order of `waiting`, as indices into it."""
    if policy in CACHE_AWARE and at.cache is not None:
        return _cache_aware_order(policy, waiting, at, at.cache)
    match policy:
        case SGLangPolicy.LOF:
            return lof(waiting, at.sign)
        case SGLangPolicy.RANDOM:
            return shuffled(waiting, at.rng)
        case SGLangPolicy.ROUTING_KEY:
            return routing_key(waiting, at.running)
        case _:
            return fcfs(waiting, at.sign)


def _cache_aware_order(policy: SGLangPolicy, waiting: Sequence[QueueEntry], at: SchedulingPass, cache: PageCache) -> list[int]:
    if policy in CUT_OFF_POLICIES and len(waiting) > CUT_OFF:
        return list(range(len(waiting)))
    matches = match_all(waiting, cache, at.in_batch)
    match policy:
        case SGLangPolicy.LPM:
            return lpm(waiting, matches)
        case SGLangPolicy.HRRN:
            return hrrn(waiting, matches, at.prefilled_tokens)
        case SGLangPolicy.DFS_WEIGHT:
            return dfs_weight(waiting, matches, cache)
        case _:
            return shortest_prefill_first(waiting, matches)


def match_all(waiting: Sequence[QueueEntry], cache: PageCache, in_batch: InBatchCaching) -> list[PrefixMatch]:
    """Match all requests, in the order of the list: of those with the same beginning, the first is not deprioritized."""
    matches: list[PrefixMatch] = []
    beginnings: set[Hashable] = set()
    for request in waiting:
        prefix = cached_pages(request, cache) * cache.page_size
        limit = max(0, request.prompt + request.output - 1)
        if request.match_limit is not None:
            limit = min(limit, request.match_limit)
        # A request that finds more than `check` tokens does not count as one that begins so: what it shares is mostly cached by
        # now.
        deprioritized = prefix <= in_batch.check and _is_repeated(request, in_batch, beginnings)
        matches.append(PrefixMatch(prefix, min(prefix, limit), deprioritized))
    return matches


def _is_repeated(request: QueueEntry, in_batch: InBatchCaching, beginnings: set[Hashable]) -> bool:
    """Return whether a request before this one begins alike, and note how this one begins."""
    is_repeated = in_batch.deprioritize <= 0 or request.beginning in beginnings
    if request.beginning is not None:
        beginnings.add(request.beginning)
    return is_repeated


def cached_pages(request: QueueEntry, cache: PageCache) -> int:
    """Return how many leading pages of `request` are cached, without a gap."""
    count = 0
    for key in request.pages:
        if not cache.contains(key):
            break
        count += 1
    return count


def fcfs(waiting: Sequence[QueueEntry], sign: PrioritySign | None) -> list[int]:
    """Return the order of arrival, or by priority and then arrival."""
    if sign is None:
        return list(range(len(waiting)))
    return _sorted(waiting, lambda request: (sign * request.priority, request.queued_at))


def lof(waiting: Sequence[QueueEntry], sign: PrioritySign | None) -> list[int]:
    """Return the longest output first: by what the client allows, not by what is left of it."""
    if sign is None:
        return _sorted(waiting, lambda request: -request.max_new_tokens)
    return _sorted(waiting, lambda request: (sign * request.priority, -request.max_new_tokens))


def shuffled(waiting: Sequence[QueueEntry], rng: Random) -> list[int]:
    """Return a random order."""
    order = list(range(len(waiting)))
    rng.shuffle(order)
    return order


def routing_key(waiting: Sequence[QueueEntry], running: Mapping[str, int]) -> list[int]:
    """Return the routing keys that most running requests have first, then the other keys by name."""
    if not running:
        return list(range(len(waiting)))

    def key(request: QueueEntry) -> tuple[int, int, str]:
        count = running.get(request.routing_key, 0) if request.routing_key else 0
        return (0 if count else 1, -count, request.routing_key)

    return _sorted(waiting, key)


def lpm(waiting: Sequence[QueueEntry], matches: Sequence[PrefixMatch]) -> list[int]:
    """Return the longest prefix match first, deprioritized requests last."""
    return sorted(range(len(waiting)), key=lambda i: inf if matches[i].deprioritized else -matches[i].matched)


def hrrn(waiting: Sequence[QueueEntry], matches: Sequence[PrefixMatch], prefilled_tokens: int) -> list[int]:
    """Return the highest response ratio first: tokens prefilled since the request came, per token that it has to compute."""

    def key(i: int) -> tuple[float, str]:
        request, match = waiting[i], matches[i]
        uncached = max(0, request.prompt - match.matched)
        if match.deprioritized:
            return (inf, request.rid)
        ratio = max(0, prefilled_tokens - request.prefilled_at_entry) / uncached if uncached else inf
        return (-ratio, request.rid)

    return sorted(range(len(waiting)), key=key)


def shortest_prefill_first(waiting: Sequence[QueueEntry], matches: Sequence[PrefixMatch]) -> list[int]:
    """Return the fewest tokens to compute first, deprioritized requests last."""

    def key(i: int) -> tuple[bool, int, float]:
        request, match = waiting[i], matches[i]
        work = max(1, request.prompt + request.output - match.matched)
        return (match.deprioritized, work, request.queued_at)

    return sorted(range(len(waiting)), key=key)


class _PageTree(NamedTuple):
    """The cached pages of waiting requests. The root is None."""

    weights: Counter[int]
    """The requests at each page and below."""
    children: dict[int | None, list[int]]
    ending: dict[int | None, list[int]]
    """The requests whose cached prefix ends at a page, by their index."""


def _page_tree(waiting: Sequence[QueueEntry], matches: Sequence[PrefixMatch], page_size: int) -> _PageTree:
    # SGLang weighs the nodes of its tree. Pages with the same requests below have the same weight, so single pages give
    # the same order, and only the order of siblings must be asked of the cache.
    tree = _PageTree(Counter(), {}, {})
    for i, (request, match) in enumerate(zip(waiting, matches, strict=True)):
        node: int | None = None
        for key in request.pages[: match.prefix // page_size]:
            if key not in tree.weights:
                tree.children.setdefault(node, []).append(key)
            tree.weights[key] += 1
            node = key
        tree.ending.setdefault(node, []).append(i)
    return tree


def dfs_weight(waiting: Sequence[QueueEntry], matches: Sequence[PrefixMatch], cache: PageCache) -> list[int]:
    """Return the order depth first through the tree of cached pages, the branch with most requests first. Requests at a node go
    after those below it. `deprioritized` does not matter."""
    weights, children, ending = _page_tree(waiting, matches, cache.page_size)
    order: list[int] = []
    # A stack instead of recursion, because a prompt of a million tokens is a path of many thousand pages.
    stack: list[tuple[int | None, bool]] = [(None, False)]  # a node, and whether those below it have been visited
    while stack:
        top, is_visited = stack.pop()
        if is_visited:
            order += ending.get(top, ())
            continue
        stack.append((top, True))
        below = sorted(children.get(top, ()), key=lambda child: (-weights[child], cache.position(child)))
        stack += [(child, False) for child in reversed(below)]
    return order


def _sorted(waiting: Sequence[QueueEntry], key: Callable[[QueueEntry], int | float | tuple[float | str, ...]]) -> list[int]:
    keys = [key(request) for request in waiting]
    return sorted(range(len(waiting)), key=keys.__getitem__)
