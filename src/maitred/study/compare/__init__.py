"""Comparing: candidates on the same workloads, seed by seed.

run.py          compare: the runs
comparison.py   what they say
bootstrap.py    how sure that is
table.py        the same for the terminal
"""

from __future__ import annotations

from maitred.study.compare.comparison import Comparison, Difference, Pairing
from maitred.study.compare.run import DEFAULT_METRICS, compare

__all__ = ["DEFAULT_METRICS", "Comparison", "Difference", "Pairing", "compare"]
