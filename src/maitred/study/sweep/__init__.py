"""Sweep: candidates from a grid or a search, on this machine or on many.

    run.py      sweep: the runs of all candidates
    spec.py     the file of a sweep: its keys, where the user wrote them; costs, constraints, the objective
    points.py   candidates from a grid, or proposed by Optuna, each with its runs
    journal.py  the completed runs, on disk
    result.py   SweepResult: the best candidate, the Pareto front, plot, table and files

A run is identified by its content, so a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

from maitred.study.sweep.result import CandidateResult, SweepResult
from maitred.study.sweep.run import sweep

__all__ = ["CandidateResult", "SweepResult", "sweep"]
