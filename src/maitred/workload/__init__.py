"""What arrives when, and (the workload's secret) how long the answers will be.

A workload is an iterator of `Job` in order of arrival, with request ids 0, 1, 2, ... It is made while it is read: a trace of
any size is streamed from its file, a synthetic workload drawn job by job. The length of an answer stands beside the
`Request` and not in it, so no policy can look.

Formats (`FORMATS`), length distributions (`LENGTHS`) and arrival processes (`ARRIVALS`) are registered by name, one class
each. `Workload` describes synthetic clients, in Python or in a file of BLIS's; the structs that it is made of are in `spec`.
"""

from __future__ import annotations

from maitred.workload.arrivals import ARRIVALS, ArrivalProcess, parse_arrival_process
from maitred.workload.job import Job, ReactiveWorkload
from maitred.workload.lengths import LENGTHS, LengthDistribution, parse_lengths
from maitred.workload.spec import Client, Cohort, Workload
from maitred.workload.synthetic import closed_loop, synthetic
from maitred.workload.trace import BadRows, Trace, open_trace, sample_jobs, sample_names
from maitred.workload.trace_format import FORMATS, RowError, TraceFormat, TraceRow
from maitred.workload.trace_writer import WRITERS, LostField, RecordingWorkload, RequestMeasurement, TraceWriter
from maitred.workload.transforms import (
    ClassMix,
    Mix,
    TenantMix,
    parse_class_mix,
    parse_tenant_mix,
    scale_rate,
    scale_time,
    with_class_mix,
    with_tenant_mix,
)

__all__ = [
    "ARRIVALS",
    "FORMATS",
    "LENGTHS",
    "WRITERS",
    "ArrivalProcess",
    "BadRows",
    "ClassMix",
    "Client",
    "Cohort",
    "Job",
    "LengthDistribution",
    "LostField",
    "Mix",
    "ReactiveWorkload",
    "RecordingWorkload",
    "RequestMeasurement",
    "RowError",
    "TenantMix",
    "Trace",
    "TraceFormat",
    "TraceRow",
    "TraceWriter",
    "Workload",
    "closed_loop",
    "open_trace",
    "parse_arrival_process",
    "parse_class_mix",
    "parse_lengths",
    "parse_tenant_mix",
    "sample_jobs",
    "sample_names",
    "scale_rate",
    "scale_time",
    "synthetic",
    "with_class_mix",
    "with_tenant_mix",
]
