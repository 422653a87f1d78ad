"""What came of a run: figures, a table for people, files for programs, charts, a page.

    result     maitred.simulate, and the Result that it returns
    summary    figures of all requests and of groups of them (breakdown, counts, spread, slo); tally: of requests nobody keeps
    table      figures for the terminal
    export     figures and requests as JSON; frame: requests as data frame, Parquet, CSV
    panels     what there is to be seen of a run (over_time); figure draws it with matplotlib, page as HTML
    measured   what became of each request, for a trace
    fitness    one score for a run, as BLIS weighs it
    files      output files that exist whole or not at all

Nothing here decides anything, and all that is random or wall-clock stays out of it: the same results give the same bytes.
"""

from __future__ import annotations

from maitred.report.breakdown import By
from maitred.report.export import check_rows_path, measured_lookup, metrics, write_metrics, write_requests, write_results
from maitred.report.figure import check_plot_path, write_plot
from maitred.report.fitness import Fitness, fitness, parse_weights
from maitred.report.output_file import OutputFile
from maitred.report.page import RunSetup, write_page
from maitred.report.request_statistics import LatencyStatistics
from maitred.report.result import Result, simulate
from maitred.report.slo import DEFAULT_SLO, Slo, Targets, workload_targets
from maitred.report.summary import GroupSummary, InstanceSummary, StreamingSummary, Summary, summarise
from maitred.report.table import print_summary

__all__ = [
    "DEFAULT_SLO",
    "By",
    "Fitness",
    "GroupSummary",
    "InstanceSummary",
    "LatencyStatistics",
    "OutputFile",
    "Result",
    "RunSetup",
    "Slo",
    "StreamingSummary",
    "Summary",
    "Targets",
    "check_plot_path",
    "check_rows_path",
    "fitness",
    "measured_lookup",
    "metrics",
    "parse_weights",
    "print_summary",
    "simulate",
    "summarise",
    "workload_targets",
    "write_metrics",
    "write_page",
    "write_plot",
    "write_requests",
    "write_results",
]
