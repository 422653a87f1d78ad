"""Sweep: candidates from a grid or a search, on this machine or on many.

run.py       sweep: the runs of all candidates spec.py      the file of a sweep: its keys, and where the user wrote them
criteria.py  costs, constraints, the objective points.py    candidates, each with its runs search.py    candidates that Optuna
proposes journal.py   the completed runs, on disk result.py    SweepResult: the best candidate, the Pareto front, table and
files plot.py      the Pareto plot
"""

from __future__ import annotations

from maitred.study.sweep.result import CandidateResult, SweepResult
from maitred.study.sweep.run import sweep

__all__ = ["CandidateResult", "SweepResult", "sweep"]
