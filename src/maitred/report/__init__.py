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
from maitred.report.export import metrics, write_metrics, write_requests, write_results
from maitred.report.figure import require_plots, write_plot
from maitred.report.files import OutputFile
from maitred.report.fitness import Fitness, fitness, parse_weights
from maitred.report.frame import require_frames
from maitred.report.measured import seen
from maitred.report.page import write_page
from maitred.report.result import Result, simulate
from maitred.report.setup import Setup
from maitred.report.slo import USUAL_SLO, Slo, Targets, targets_of
from maitred.report.spread import Spread
from maitred.report.summary import Engine, Group, Summary, summarise
from maitred.report.table import print_summary
from maitred.report.tally import Tally

__all__ = [
    "USUAL_SLO",
    "By",
    "Engine",
    "Fitness",
    "Group",
    "OutputFile",
    "Result",
    "Setup",
    "Slo",
    "Spread",
    "Summary",
    "Tally",
    "Targets",
    "fitness",
    "metrics",
    "parse_weights",
    "print_summary",
    "require_frames",
    "require_plots",
    "seen",
    "simulate",
    "summarise",
    "targets_of",
    "write_metrics",
    "write_page",
    "write_plot",
    "write_requests",
    "write_results",
]
