"""Compare: candidates on the same workloads, seed by seed.

    run.py         compare: the runs
    comparison.py  the differences with their confidence intervals, and the table for the terminal

Each seed gives one pair of runs with the same workload, so the chance that both share cancels out.
"""

from __future__ import annotations

from maitred.study.compare.comparison import Comparison, Difference, Pairing
from maitred.study.compare.run import DEFAULT_METRICS, compare

__all__ = ["DEFAULT_METRICS", "Comparison", "Difference", "Pairing", "compare"]
