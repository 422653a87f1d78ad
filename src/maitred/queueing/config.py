"""The part of a configuration that says how the wait queue is ordered, and the warnings about it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from maitred.core.contracts import PriorityPolicy, QueuePolicy
from maitred.core.errors import ConfigError
from maitred.queueing.base import SCHEDULERS, CacheAware, PolicyInfo, RequestFacts
from maitred.queueing.priority import (
    PRIORITIES,
    ByPriority,
    ConstantPriority,
    PriorityValues,
    ScoredPolicy,
    ScoreOrderedPolicy,
)

_FACTS = {
    RequestFacts.DEADLINE: "deadlines",
    RequestFacts.PRIORITY_CLASS: "classes",
    RequestFacts.TENANT: "tenants",
    RequestFacts.ROUTING_KEY: "routing keys",
    RequestFacts.OUTPUT_LIMIT: "limits of the output",
    RequestFacts.CLIENT_PRIORITY: "priorities of clients",
}


class QueueingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order of the wait queue. Policies are written as names, or with parameters: `bounded(lpm, max_wait=5)`."""

    scheduler: str = "fcfs"
    """Order of the wait queue: a policy of `maitred policies`, with parameters if need be (`bounded(lpm, max_wait=5)`), or
    `module:Class`. See docs/policies.md."""
    priority_policy: str | None = None
    """What scores requests for `priority-fcfs` and `reverse-priority`: `constant`, `slo-based(age_weight=1e-6)`,
    `inverted-slo`, `static-slo-class`, or `module:Class`. Null: `constant`."""
    enable_priority_scheduling: bool = False
    """Order by the client's priority first, and by `scheduler` among equals."""
    schedule_low_priority_values_first: bool = False
    """With `enable_priority_scheduling`, lower numbers are more urgent."""

    def policy(self) -> QueuePolicy:
        """Return the policy, with priorities and scores around it. Raises ConfigError for what is unknown or out of range."""
        policy, priority = self._scheduler()
        if priority is not None and not any(
            isinstance(layer, ScoreOrderedPolicy) and layer.priority is priority for layer in _policy_chain(policy)
        ):
            policy = ScoredPolicy(policy, priority)
        if self.enable_priority_scheduling:
            low_first = self.schedule_low_priority_values_first
            policy = ByPriority(policy, PriorityValues.LOW_FIRST if low_first else PriorityValues.HIGH_FIRST)
        return policy

    def warnings(self, *, prefix_cache: bool) -> list[str]:
        """Return warnings of what works but is hardly meant, a line each. Raises ConfigError as `policy` does, and for an order
        that there is not without a prefix cache."""
        policy, priority = self._scheduler()
        if not prefix_cache:
            _check_without_cache(policy)
        return [*self._priority_warnings(policy, priority), *self._layer_warnings(policy, prefix_cache)]

    def warnings_without(self, lacks: RequestFacts) -> list[str]:
        """Return a warning for each policy that goes by what no request says: all of that is in `lacks`. Raises ConfigError as
        `policy` does."""
        abouts = [getattr(layer, "about", None) for layer in _policy_chain(self.policy())]
        read = [about.reads for about in abouts if isinstance(about, PolicyInfo) and about.reads]
        named = [" or ".join(_FACTS[fact] for fact in reads) for reads in read if reads in lacks]
        return [f"the wait queue goes by {facts}, and no request here has any: all are alike to it" for facts in named]

    @property
    def scores_matter_elsewhere(self) -> bool:
        """Whether anything but the order of the wait queue depends on the scores."""
        return False

    def has_constant_scores(self) -> bool:
        """Whether a policy gives every request the same score. Raises ConfigError as `policy` does."""
        policy, priority = self._scheduler()
        layers = _policy_chain(policy)
        scores = next((layer.priority for layer in layers if isinstance(layer, ScoreOrderedPolicy)), priority)
        return isinstance(scores, ConstantPriority)

    def _scheduler(self) -> tuple[QueuePolicy, PriorityPolicy | None]:
        priority = None if self.priority_policy is None else PRIORITIES.create(self.priority_policy)
        defaults = {} if priority is None else {PriorityPolicy: priority}
        return SCHEDULERS.create(self.scheduler, defaults), priority

    def _priority_warnings(self, policy: QueuePolicy, priority: PriorityPolicy | None) -> Iterator[str]:
        is_ordered = any(isinstance(layer, ScoreOrderedPolicy) for layer in _policy_chain(policy))
        if priority is not None and not is_ordered and not self.scores_matter_elsewhere:
            yield f"{self.scheduler} does not order by the scores of {self.priority_policy}: they are only kept"
        if self.schedule_low_priority_values_first and not self.enable_priority_scheduling:
            yield "schedule_low_priority_values_first has no effect without enable_priority_scheduling"

    def _layer_warnings(self, policy: QueuePolicy, prefix_cache: bool) -> Iterator[str]:
        for layer in _policy_chain(policy):
            if isinstance(layer, ScoreOrderedPolicy) and (equivalent := layer.simpler_equivalent()):
                yield equivalent
            if _needs_cache(layer) and not prefix_cache:
                yield f"{self.scheduler} orders by the prefix cache, which is off{_replacement(layer)}"


def _check_without_cache(policy: QueuePolicy) -> None:
    """Raise the ConfigError of the first layer that is refused without a prefix cache."""
    # Nothing makes a queue here: that is code of the user's own, which may raise anything.
    for layer in _policy_chain(policy):
        refusal: ConfigError | None = getattr(layer, "refusal", None)
        if _needs_cache(layer) and refusal is not None:
            raise refusal


def _needs_cache(layer: QueuePolicy) -> bool:
    about: PolicyInfo | None = getattr(layer, "about", None)
    return about is not None and about.cache_aware is CacheAware.YES


def _replacement(layer: QueuePolicy) -> str:
    """Return the words about the policy that takes the place of `layer`, or none if `layer` does not name it."""
    fallback: str | None = getattr(layer, "fallback", None)
    return "" if fallback is None else f": {fallback} takes the place of what needs it"


def _policy_chain(policy: QueuePolicy) -> Iterator[QueuePolicy]:
    """Yield `policy`, its inner policy, the inner one of that, and so on."""
    layer: QueuePolicy | None = policy
    while layer is not None:
        yield layer
        layer = getattr(layer, "inner", None)
