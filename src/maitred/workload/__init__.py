"""What arrives when, and (the workload's secret) how long the answers will be.

A workload is an iterator of `Job` in order of arrival, with request ids 0, 1, 2, ... It is made while it is read: a trace of
any size is streamed from its file, a synthetic workload drawn job by job. The length of an answer stands beside the
`Request` and not in it, so no policy can look.

Formats (`FORMATS`), length distributions (`LENGTHS`) and arrival processes (`ARRIVALS`) are registered by name, one class
each. `Workload` describes synthetic clients, in Python or in a file of BLIS's; the structs that it is made of are in `spec`.
"""

from __future__ import annotations

from maitred.workload.arrivals import ARRIVALS, Arrivals, parse_arrivals
from maitred.workload.job import Job
from maitred.workload.kept import Kept
from maitred.workload.lengths import LENGTHS, Lengths, parse_lengths
from maitred.workload.mixes import ClassMix, Mix, TenantMix, parse_mix, parse_tenant_mix, reclassed, with_tenants
from maitred.workload.reactive import Reactive
from maitred.workload.row import FORMATS, Row, RowError, TraceFormat
from maitred.workload.scaled import rate_scaled, time_scaled
from maitred.workload.spec import Client, Cohort, Workload
from maitred.workload.synthetic import closed_loop, synthetic
from maitred.workload.trace import BadRows, Trace, open_trace, sample, sample_names
from maitred.workload.writing import WRITERS, Lost, Measured, TraceWriter

__all__ = [
    "ARRIVALS",
    "FORMATS",
    "LENGTHS",
    "WRITERS",
    "Arrivals",
    "BadRows",
    "ClassMix",
    "Client",
    "Cohort",
    "Job",
    "Kept",
    "Lengths",
    "Lost",
    "Measured",
    "Mix",
    "Reactive",
    "Row",
    "RowError",
    "TenantMix",
    "Trace",
    "TraceFormat",
    "TraceWriter",
    "Workload",
    "closed_loop",
    "open_trace",
    "parse_arrivals",
    "parse_lengths",
    "parse_mix",
    "parse_tenant_mix",
    "rate_scaled",
    "reclassed",
    "sample",
    "sample_names",
    "synthetic",
    "time_scaled",
    "with_tenants",
]
