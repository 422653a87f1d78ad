"""Eviction policies: which leaf of the radix tree goes first. Each is a rank: the smallest goes first, and among equals the
least recently used.

The names are SGLang's (`--radix-eviction-policy`), and so are the parameters (`--radix-eviction-policy-config`).
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from maitred.core.errors import ConfigError
from maitred.core.registry import Registry

Rank: TypeAlias = float | tuple[float, ...]


class EvictableNode(Protocol):
    """What a policy may know of a leaf. Instants are those of the cache's own clock, which ticks with every use."""

    @property
    def created(self) -> int: ...

    @property
    def last_used(self) -> int: ...

    @property
    def hits(self) -> int:
        """Number of locks that have committed it."""
        ...

    @property
    def priority(self) -> float:
        """The largest priority of these locks."""
        ...


class EvictionPolicy(Protocol):
    """Ranks leaves. All ranks of one policy are of one type, and change only when their node is used or committed."""

    def rank(self, node: EvictableNode) -> Rank: ...


EVICTIONS: Registry[EvictionPolicy] = Registry(
    "eviction policy",
    EvictionPolicy,
    group="maitred.evictions",
    packages=["maitred.kv"],
    methods=["rank"],
    flag="--radix-eviction-policy",
)


@EVICTIONS.register("lru")
class LeastRecentlyUsed(EvictionPolicy):
    """The leaf that was not used for longest goes first."""

    def rank(self, node: EvictableNode) -> Rank:
        return node.last_used


@EVICTIONS.register("mru")
class MostRecentlyUsed(EvictionPolicy):
    """The leaf that was used last goes first: for loops over more than fits."""

    def rank(self, node: EvictableNode) -> Rank:
        return -node.last_used


@EVICTIONS.register("lfu")
class LeastFrequentlyUsed(EvictionPolicy):
    """The leaf that the fewest owners have committed goes first."""

    def rank(self, node: EvictableNode) -> Rank:
        return node.hits


@EVICTIONS.register("fifo")
class FirstInFirstOut(EvictionPolicy):
    """The oldest leaf goes first, however often it was used."""

    def rank(self, node: EvictableNode) -> Rank:
        return node.created


@EVICTIONS.register("filo")
class FirstInLastOut(EvictionPolicy):
    """The newest leaf goes first."""

    def rank(self, node: EvictableNode) -> Rank:
        return -node.created


@EVICTIONS.register("priority")
class LeastPriority(EvictionPolicy):
    """The leaf with the lowest of the largest priorities that it was committed with goes first."""

    def rank(self, node: EvictableNode) -> Rank:
        return node.priority


@EVICTIONS.register("slru")
class SegmentedLeastRecentlyUsed(EvictionPolicy):
    """A leaf that fewer than `protected_threshold` owners have committed goes before all others: prompts that come once do not
    flush what is shared."""

    def __init__(self, protected_threshold: int = 2) -> None:
        """Raises ConfigError unless `protected_threshold` is at least 1, which is lru."""
        if protected_threshold < 1:
            raise ConfigError(f"protected_threshold is {protected_threshold}", hint="how many owners: 1 or more")
        self._threshold = protected_threshold

    def rank(self, node: EvictableNode) -> Rank:
        return int(node.hits >= self._threshold)
