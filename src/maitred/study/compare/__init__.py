"""Compare: candidates on the same workloads, seed by seed.

run.py          compare: the runs comparison.py   the differences, and their table for the terminal bootstrap.py    confidence
intervals
"""

from __future__ import annotations

from maitred.study.compare.comparison import Comparison, Difference, Pairing
from maitred.study.compare.run import DEFAULT_METRICS, compare

__all__ = ["DEFAULT_METRICS", "Comparison", "Difference", "Pairing", "compare"]
