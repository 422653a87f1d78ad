"""In what order? The wait queue of one instance.

A policy is registered under the name that users type (`SCHEDULERS`) and makes the queue of one instance. Where its order is a
key that time does not change, it is a `KeyPolicy` and only defines the key; its queue is a heap, never sorted again. Policies
are composed by wrapping: `bounded(lpm, max_wait=5)`.

    base.py                   the registry, and the queues that policies build on; config.py: the keys
    orders.py                 orders that do not look at the prefix cache; fcfs_queue.py: the queue of most instances
    prefix_orders.py          orders that do, over prefix_index.py (how much of each prompt is cached) and prefix_tree.py;
                              dfs_weight.py
    priority.py               how urgent a request is, and the orders that go by it
    slo.py, srpt.py, hrrn.py  class, age and deadline in one measure; shortest remaining time; highest response ratio (with
                              kinetic_tournament.py)
    vtc.py                    fairness among tenants, by the counters of vtc_counters.py
    bounded.py                a bound on how long any policy lets a request wait, around it
    subqueues.py              queues side by side, for policies that divide requests into groups
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
