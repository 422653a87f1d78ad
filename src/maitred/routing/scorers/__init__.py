"""How good would each instance be, in one respect? A small file for each scorer; `weighted` adds them up."""

from __future__ import annotations

from maitred.routing.scorers.scorer import SCORERS, BaseScorer, Scorer

__all__ = ["SCORERS", "BaseScorer", "Scorer"]
