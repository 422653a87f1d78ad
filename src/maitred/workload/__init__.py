"""What arrives when, and (the workload's secret) how long the answers will be.

A workload is an iterator of `Job` in order of arrival, with request ids 0, 1, 2, ... It is made while it is read: a trace of
any size is streamed from its file, a synthetic workload drawn job by job. The length of an answer stands beside the
`Request` and not in it, so no policy can look.

Formats (`FORMATS`) and length distributions (`LENGTHS`) are registered by name, one class each.
"""

from __future__ import annotations

from maitred.workload import formats as _formats
from maitred.workload.job import Job
from maitred.workload.lengths import LENGTHS, Lengths, parse_lengths
from maitred.workload.mixes import ClassMix, Mix, TenantMix, parse_mix, parse_tenant_mix, reclassed, with_tenants
from maitred.workload.reactive import Reactive
from maitred.workload.row import FORMATS, Row, RowError, TraceFormat
from maitred.workload.synthetic import synthetic
from maitred.workload.trace import BadRows, Trace, open_trace, sample, sample_names

__all__ = [
    "FORMATS",
    "LENGTHS",
    "BadRows",
    "ClassMix",
    "Job",
    "Lengths",
    "Mix",
    "Reactive",
    "Row",
    "RowError",
    "TenantMix",
    "Trace",
    "TraceFormat",
    "open_trace",
    "parse_lengths",
    "parse_mix",
    "parse_tenant_mix",
    "reclassed",
    "sample",
    "sample_names",
    "synthetic",
    "with_tenants",
]

del _formats
