"""Classes and tenants drawn by share, in place of those that a workload has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from maitred.workload.job import Job
from maitred.workload.load.keys import Load
from maitred.workload.load.naming import Naming
from maitred.workload.mixes import parse_mix, parse_tenant_mix, reclassed, with_tenants

USUAL_SEED: Final = 42


def mixed(load: Load, jobs: Iterable[Job], seed: int, call: Naming) -> Iterable[Job]:
    """`jobs`, with classes and tenants from the mixes of `load` if it has some. Raises ConfigError for those that cannot be."""
    if load.class_mix is not None:
        jobs = reclassed(jobs, parse_mix(load.class_mix, where=call("class_mix")), seed)
    if load.tenant_mix is not None:
        jobs = with_tenants(jobs, parse_tenant_mix(load.tenant_mix, where=call("tenant_mix")), seed)
    return jobs
