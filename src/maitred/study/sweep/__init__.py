"""Sweeping: candidates from a grid or a search, on this machine or on many.

spec.py       what a file says
document.py   where it says it
criteria.py   costs, constraints, the objective
points.py     candidates, each with its runs
search.py     candidates that Optuna proposes
journal.py    what is done, on disk
run.py        sweep: all of it
swept.py      what it says; table, plot and written show it
"""

from __future__ import annotations

from maitred.study.sweep.result import CandidateResult, SweepResult
from maitred.study.sweep.run import sweep

__all__ = ["CandidateResult", "SweepResult", "sweep"]
