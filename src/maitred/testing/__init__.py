"""Kits that hold a plug-in of each kind to its contract: ours, and yours.

    from maitred.testing import check_queue_policy

    def test_small_first() -> None:
        check_queue_policy("my_policies:SmallFirst(cap=5)")

A plug-in is given as users write it, or as a class. A kit drives it with requests, loads and batches drawn from a seed, which
stands in the message of the AssertionError that a broken promise raises. Nothing but the standard library is needed: no pytest.

    kits.py      admission policies, latency models, routers, scorers, acting estimators, trace formats
    queueing.py  queue policies, priority policies, length predictors; batching.py: batch schedulers
    fleets.py    autoscaling policies
    sources.py   sources of backends
    samples.py   what plug-ins are tried on
"""

from __future__ import annotations

import maitred.compat  # noqa: F401 - a plug-in may stand on policies of other systems
from maitred.testing.batching import check_batch_scheduler
from maitred.testing.fleets import check_autoscaler
from maitred.testing.kits import (
    check_acting_estimator,
    check_admission_policy,
    check_latency_model,
    check_router,
    check_scorer,
    check_trace_format,
)
from maitred.testing.queueing import check_length_predictor, check_priority_policy, check_queue_policy
from maitred.testing.samples import InstanceSample, StepSample, drain, sample_request, sample_sequence
from maitred.testing.sources import check_source

__all__ = [
    "InstanceSample",
    "StepSample",
    "check_acting_estimator",
    "check_admission_policy",
    "check_autoscaler",
    "check_batch_scheduler",
    "check_latency_model",
    "check_length_predictor",
    "check_priority_policy",
    "check_queue_policy",
    "check_router",
    "check_scorer",
    "check_source",
    "check_trace_format",
    "drain",
    "sample_request",
    "sample_sequence",
]
