"""How good would each instance be, in one respect? A small file for each scorer; `weighted` adds them up."""

from __future__ import annotations

from maitred.routing.scorers import (
    active_requests,
    kv_utilization,
    load_aware,
    load_balance,
    no_hit_lru,
    precise_prefix_cache,
    prefix_affinity,
    queue_depth,
    running_requests,
    vllm_dp,
)
from maitred.routing.scorers.scorer import SCORERS, BaseScorer, Scorer

__all__ = ["SCORERS", "BaseScorer", "Scorer"]

_REGISTERED = (
    active_requests,
    kv_utilization,
    load_aware,
    load_balance,
    no_hit_lru,
    precise_prefix_cache,
    prefix_affinity,
    queue_depth,
    running_requests,
    vllm_dp,
)
"""The scorers' modules: they register themselves when they are imported."""
