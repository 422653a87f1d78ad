"""In what order? The wait queue of one instance.

A policy is registered under the name that users type (`SCHEDULERS`) and makes the queue of one instance. Where its order is a
key that time does not change, it is a `KeyPolicy` and only defines the key; its queue is a heap, never sorted again. Policies
are composed by wrapping: `bounded(lpm, max_wait=5)`.
"""

from __future__ import annotations

from maitred.queueing.base import SCHEDULERS, BaseQueue, CacheAware, KeyPolicy, PolicyInfo, is_overridden
from maitred.queueing.config import QueueingConfig
from maitred.queueing.orders import ClientPriorityOrder
from maitred.queueing.priority import PRIORITIES, TimeInvariantPriority
from maitred.queueing.srpt import LENGTH_PREDICTORS, LengthEstimator, LengthPredictor

__all__ = [
    "LENGTH_PREDICTORS",
    "PRIORITIES",
    "SCHEDULERS",
    "BaseQueue",
    "CacheAware",
    "ClientPriorityOrder",
    "KeyPolicy",
    "LengthEstimator",
    "LengthPredictor",
    "PolicyInfo",
    "QueueingConfig",
    "TimeInvariantPriority",
    "is_overridden",
]
