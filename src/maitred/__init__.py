"""maitred: one scheduling stack for LLM serving.

It answers five questions about a request: may it enter now (admission), may its agent program hold memory (programs),
which instance (routing), in what order (queueing), what fits in this step (batching). The code that answers is the same
in a live gateway, inside a real engine and in a simulator.

    import maitred

    result = maitred.simulate(maitred.synthetic(rate=20, num_requests=1_000), maitred.ClusterConfig(num_instances=4))
    result.summary().total.ttft.p99  # µs
    result.report("report.html")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AdmissionConfig": "maitred.admission",
    "By": "maitred.report",
    "Candidate": "maitred.study.candidate",
    "ClusterConfig": "maitred.sim",
    "Comparison": "maitred.study.compare",
    "ConfigError": "maitred.core.errors",
    "InstanceConfig": "maitred.instance",
    "Job": "maitred.workload",
    "LinearLatency": "maitred.instance",
    "Load": "maitred.workload.load",
    "MaitredError": "maitred.core.errors",
    "Outcome": "maitred.sim",
    "PriorityClass": "maitred.core.request",
    "Request": "maitred.core.request",
    "Result": "maitred.report",
    "Results": "maitred.sim",
    "RoutingConfig": "maitred.routing",
    "Slo": "maitred.report",
    "Summary": "maitred.report",
    "SweepResult": "maitred.study.sweep",
    "Targets": "maitred.report",
    "Workload": "maitred.workload",
    "compare": "maitred.study.compare",
    "open_trace": "maitred.workload",
    "simulate": "maitred.report",
    "sweep": "maitred.study.sweep",
    "synthetic": "maitred.workload",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: `import maitred` alone stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module 'maitred' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def is_compiled() -> bool:
    """Whether the modules that a simulation spends its time in are compiled (`make compile`)."""
    return not str(import_module("maitred.core.sequence").__file__).endswith(".py")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
