"""Which leaf of the radix tree goes first. Each policy is a rank: the smallest goes, among equals the least recently used.

The names are SGLang's (`--radix-eviction-policy`), and so are the parameters (`--radix-eviction-policy-config`).
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from maitred.core.errors import ConfigError
from maitred.core.registry import Registry
from maitred.kv.radix_node import RadixNode

Rank: TypeAlias = float | tuple[float, ...]


class EvictionPolicy(Protocol):
    """All ranks of one policy are of one kind, and change only when their node is used or published."""

    def rank(self, node: RadixNode) -> Rank: ...


EVICTIONS: Registry[EvictionPolicy] = Registry(
    "eviction policy", EvictionPolicy, group="maitred.evictions", packages=["maitred.kv"], methods=["rank"]
)


@EVICTIONS.register("lru")
class LeastRecentlyUsed(EvictionPolicy):
    def rank(self, node: RadixNode) -> Rank:
        return node.last_used


@EVICTIONS.register("mru")
class MostRecentlyUsed(EvictionPolicy):
    """For loops over more than fits: what has just been used is wanted last."""

    def rank(self, node: RadixNode) -> Rank:
        return -node.last_used


@EVICTIONS.register("lfu")
class LeastFrequentlyUsed(EvictionPolicy):
    """By how many owners published it."""

    def rank(self, node: RadixNode) -> Rank:
        return node.hits


@EVICTIONS.register("fifo")
class FirstInFirstOut(EvictionPolicy):
    def rank(self, node: RadixNode) -> Rank:
        return node.created


@EVICTIONS.register("filo")
class FirstInLastOut(EvictionPolicy):
    def rank(self, node: RadixNode) -> Rank:
        return -node.created


@EVICTIONS.register("priority")
class LeastPriority(EvictionPolicy):
    """By the largest priority it was published with."""

    def rank(self, node: RadixNode) -> Rank:
        return node.priority


@EVICTIONS.register("slru")
class SegmentedLeastRecentlyUsed(EvictionPolicy):
    """What fewer than `protected_threshold` owners published goes before all else: one-time prompts do not flush what is
    shared."""

    def __init__(self, protected_threshold: int = 2) -> None:
        """Raises ConfigError unless `protected_threshold` is at least 1, which is lru."""
        if protected_threshold < 1:
            raise ConfigError(f"protected_threshold is {protected_threshold}", hint="how many owners: 1 or more")
        self._threshold = protected_threshold

    def rank(self, node: RadixNode) -> Rank:
        return int(node.hits >= self._threshold)
