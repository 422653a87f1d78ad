"""maitred: one scheduling stack for LLM serving.

It answers five questions about a request: may it enter now (admission), may its agent program hold KV memory now (programs),
which instance serves it (routing), in what order requests are served (queueing), and what fits in one step (batching). The code
that answers is the same in a live gateway and in a simulator.

    import maitred

    result = maitred.simulate(maitred.synthetic(rate=20, num_requests=1_000), maitred.ClusterConfig(num_instances=4))
    result.summary().total.ttft.p99  # µs
    result.report("report.html")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC_NAMES = {
    "AdmissionConfig": "maitred.admission",
    "By": "maitred.report",
    "Candidate": "maitred.study.candidate",
    "CapacityResult": "maitred.study.capacity",
    "ClusterConfig": "maitred.sim",
    "Comparison": "maitred.study.comparison",
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
    "bench": "maitred.study.live",
    "capacity": "maitred.study.capacity",
    "compare": "maitred.study.compare",
    "compare_results": "maitred.study.compare",
    "open_trace": "maitred.workload",
    "simulate": "maitred.report",
    "sweep": "maitred.study.sweep",
    "synthetic": "maitred.workload",
}
"""The module of each public name."""

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is used first, so that `import maitred` alone stays cheap. The flavours of other systems are
    known from then on."""
    if name not in _PUBLIC_NAMES:
        raise AttributeError(f"module 'maitred' has no attribute {name!r}")
    import_module("maitred.compat")
    return getattr(import_module(_PUBLIC_NAMES[name]), name)


def is_compiled() -> bool:
    """Whether the hot modules of a simulation are compiled (`MAITRED_COMPILE=1 pip install .`)."""
    return not str(import_module("maitred.core.sequence").__file__).endswith(".py")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
