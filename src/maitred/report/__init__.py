"""What came of a run: figures, a table for people, files for programs.

`summarise` turns the columns of `sim.Results` into a `Summary`, overall and per class; `table` prints it, `export` writes it
and the requests themselves. Nothing here decides anything, and all that is random or wall-clock stays out of it: the same
results give the same bytes.
"""

from __future__ import annotations

from maitred.report.breakdown import By
from maitred.report.export import write_metrics, write_requests
from maitred.report.files import OutputFile
from maitred.report.slo import USUAL_SLO, Slo, Targets
from maitred.report.spread import Spread
from maitred.report.summary import Group, Summary, summarise
from maitred.report.table import print_summary

__all__ = [
    "USUAL_SLO",
    "By",
    "Group",
    "OutputFile",
    "Slo",
    "Spread",
    "Summary",
    "Targets",
    "print_summary",
    "summarise",
    "write_metrics",
    "write_requests",
]
