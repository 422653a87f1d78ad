"""The report of a run: figures, a table for the terminal, files for programs, charts, an HTML page.

    result              maitred.simulate, and the Result that it returns
    arguments           what its arguments must be
    run_setup           what was simulated: the line above every table, the settings that were in force
    programs            the figures of agent programs
    summary             the figures of all requests and of groups of them, from kept rows or from rows that stream by
    latencies           times made of the instants of each request; none of an instant that never came
    request_statistics  counts and latencies of requests
    breakdown           groups of requests, and the gaps between tokens of each group
    slo                 latency targets
    fitness             one score for a run, as BLIS weighs it
    costs               GPU-hours, energy, carbon and money
    utilisation         how much of the instances a run used, and how much more they could take
    slowdown            by which factor requests took longer than alone
    steady_state        what a longer run would come to: warm-up left out, intervals of batch means; steady_table shows it
    verdicts            what is wrong with a run, in words, by stated rules; the assessment that is printed around the tables
    table               the figures for the terminal
    export              figures as JSON; requests as JSON, data frame, Parquet, CSV
    panels              charts as data, of curves and of points; figure draws them with matplotlib, page as HTML
    output_file         output files that exist complete or not at all

The report decides nothing and uses neither random numbers nor clocks: the same results give the same bytes.
"""

from __future__ import annotations

from maitred.report.breakdown import By
from maitred.report.export import check_rows_path, measured_lookup, metrics, write_metrics, write_requests, write_results
from maitred.report.figure import check_plot_path, write_plot
from maitred.report.fitness import Fitness, fitness, parse_weights
from maitred.report.output_file import OutputFile
from maitred.report.page import write_page
from maitred.report.programs import ProgramSummary
from maitred.report.request_statistics import LatencyStatistics
from maitred.report.result import Result, simulate
from maitred.report.run_setup import RunSetup, derived_keys
from maitred.report.slo import DEFAULT_SLO, Slo, Targets, workload_targets
from maitred.report.summary import GroupSummary, InstanceSummary, StreamingSummary, Summary, summarise
from maitred.report.table import print_summary
from maitred.report.verdicts import Assessment, Verdict, VerdictKind, assess, print_run

__all__ = [
    "DEFAULT_SLO",
    "Assessment",
    "By",
    "Fitness",
    "GroupSummary",
    "InstanceSummary",
    "LatencyStatistics",
    "OutputFile",
    "ProgramSummary",
    "Result",
    "RunSetup",
    "Slo",
    "StreamingSummary",
    "Summary",
    "Targets",
    "Verdict",
    "VerdictKind",
    "assess",
    "check_plot_path",
    "check_rows_path",
    "derived_keys",
    "fitness",
    "measured_lookup",
    "metrics",
    "parse_weights",
    "print_run",
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
