"""Workloads: which requests arrive when, and how long their answers are.

A workload is an iterator of `Job` in the order of arrival, with ids 0, 1, 2, ... It is made while it is read: a trace of any
size is streamed from its file, and a synthetic workload is drawn as it is read. The length of an answer is beside the `Request`
and not in it, because no policy may know it.

    job, transforms                      the job; a workload with each job changed (mixes, timeout, scaling)
    trace, line_reader, trace_format     recorded workloads; the modules of `formats` have the formats
    session_replay, trace_writer         a trace in a closed loop; writing traces
    spec, spec_clients, spec_parts       the description of a synthetic workload, in Python or in a file with BLIS's keys
    generator, sessions, rates           the jobs of such a description: their merge, their content, and their arrivals
    arrivals, lengths                    arrival processes and length distributions, by name
    synthetic, load                      plain workloads, agent programs among them; a workload described by flags
    columns                              draws of plain workloads, many at a time
    prefix_keys                          which prompts begin with the same tokens
"""

from __future__ import annotations

from maitred.workload.arrivals import ARRIVALS, ArrivalProcess, parse_arrival_process
from maitred.workload.job import Job, ReactiveWorkload
from maitred.workload.lengths import LENGTHS, LengthDistribution, parse_lengths
from maitred.workload.line_reader import LineReader
from maitred.workload.spec import Client, Cohort, Workload
from maitred.workload.synthetic import closed_loop, synthetic
from maitred.workload.trace import BadRows, Trace, open_trace, sample_jobs, sample_names
from maitred.workload.trace_format import FORMATS, CsvColumns, RowError, RowParser, TraceFormat, TraceRow
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
    "CsvColumns",
    "Job",
    "LengthDistribution",
    "LineReader",
    "LostField",
    "Mix",
    "ReactiveWorkload",
    "RecordingWorkload",
    "RequestMeasurement",
    "RowError",
    "RowParser",
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
