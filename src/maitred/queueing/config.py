"""What is said of the wait queue in a configuration, and what is to be said about that."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from maitred.core.contracts import PriorityPolicy, QueuePolicy
from maitred.queueing.base import SCHEDULERS, CacheAware, PolicyInfo
from maitred.queueing.priority import PRIORITIES, ByPriority, ConstantPriority, PriorityValues, ScoredPolicy, ScoreOrderedPolicy


class QueueingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order of the wait queue. Policies are written as names, or with parameters: `bounded(lpm, max_wait=5)`."""

    scheduler: str = "fcfs"
    """A policy registered in `SCHEDULERS` (BLIS `--scheduler`, SGLang `--schedule-policy`)."""
    priority_policy: str | None = None
    """What computes `SequenceState.priority`: a policy registered in `PRIORITIES`; None: it is the client's priority, and a
    scheduler
    that orders by scores takes `constant` (BLIS `--priority-policy`)."""
    enable_priority_scheduling: bool = False
    """The client's priority first, and the scheduler among equals (SGLang): as `by-priority(SCHEDULER)`."""
    schedule_low_priority_values_first: bool = False
    """Then, whether lower numbers are more urgent (SGLang)."""

    def policy(self) -> QueuePolicy:
        """Raises ConfigError for what is unknown or cannot be."""
        policy, priority = self._scheduler()
        if priority is not None and not any(
            isinstance(p, ScoreOrderedPolicy) and p.priority is priority for p in _policy_chain(policy)
        ):
            policy = ScoredPolicy(policy, priority)
        if self.enable_priority_scheduling:
            policy = ByPriority(
                policy, PriorityValues.LOW_FIRST if self.schedule_low_priority_values_first else PriorityValues.HIGH_FIRST
            )
        return policy

    def warnings(self, *, prefix_cache: bool) -> list[str]:
        """What works and is hardly meant, a line each. Raises ConfigError as `policy` does."""
        policy, priority = self._scheduler()
        return [*self._about_priorities(policy, priority), *self._about_layers(policy, prefix_cache)]

    def needs_prefix_cache(self) -> bool:
        """Whether the order, or a part of it, is something else where there is no prefix cache. Raises ConfigError as `policy`
        does."""
        return any(_needs_cache(layer) for layer in _policy_chain(self._scheduler()[0]))

    @property
    def scores_matter_elsewhere(self) -> bool:
        """Whether anything but the order of the wait queue goes by them."""
        return False

    def has_constant_scores(self) -> bool:
        """Whether a policy gives every request the same score. Raises ConfigError as `policy` does."""
        policy, priority = self._scheduler()
        scores = next((layer.priority for layer in _policy_chain(policy) if isinstance(layer, ScoreOrderedPolicy)), priority)
        return isinstance(scores, ConstantPriority)

    def _scheduler(self) -> tuple[QueuePolicy, PriorityPolicy | None]:
        priority = None if self.priority_policy is None else PRIORITIES.create(self.priority_policy)
        defaults = {} if priority is None else {PriorityPolicy: priority}
        return SCHEDULERS.create(self.scheduler, defaults), priority

    def _about_priorities(self, policy: QueuePolicy, priority: PriorityPolicy | None) -> Iterator[str]:
        ordered = any(isinstance(p, ScoreOrderedPolicy) for p in _policy_chain(policy))
        if priority is not None and not ordered and not self.scores_matter_elsewhere:
            yield f"{self.scheduler} does not order by the scores of {self.priority_policy}: they are only kept"
        if self.schedule_low_priority_values_first and not self.enable_priority_scheduling:
            yield "schedule_low_priority_values_first has no effect without enable_priority_scheduling"

    def _about_layers(self, policy: QueuePolicy, prefix_cache: bool) -> Iterator[str]:
        for layer in _policy_chain(policy):
            if isinstance(layer, ScoreOrderedPolicy) and (same := layer.simpler_equivalent()):
                yield same
            if _needs_cache(layer) and not prefix_cache:
                instead = getattr(layer, "fallback", "fcfs")
                yield f"{self.scheduler} orders by the prefix cache, which is off: {instead} takes the place of what needs it"


def _needs_cache(layer: QueuePolicy) -> bool:
    about: PolicyInfo | None = getattr(layer, "about", None)
    return about is not None and about.cache_aware is CacheAware.YES


def _policy_chain(policy: QueuePolicy) -> Iterator[QueuePolicy]:
    """The policy, the one inside, the one inside that."""
    layer: QueuePolicy | None = policy
    while layer is not None:
        yield layer
        layer = getattr(layer, "inner", None)
