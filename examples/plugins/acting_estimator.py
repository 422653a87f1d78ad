"""An acting estimator: all or nothing.

To try it, in this folder:

    maitred simulate --router tr --programs 12 --num-programs 30 --total-kv-blocks 2000 --enable-prefix-caching \\
        --acting-estimator "acting_estimator:ByClock(patience_secs=8)"
"""

from __future__ import annotations

from maitred.core.units import Micros, from_seconds
from maitred.programs import ActingEstimator, ToolTimes


class ByClock(ActingEstimator):
    """All its tokens until its tools have taken `patience_secs`, or twice as long as usual if that is more; then none."""

    changes_with_time = True

    def __init__(self, patience_secs: float = 10.0) -> None:
        """Raises ValueError for a patience below 0."""
        if patience_secs < 0:
            raise ValueError(f"patience_secs must be at least 0, not {patience_secs}")
        self._patience = from_seconds(patience_secs)

    def share(self, acting_for: Micros, tools: ToolTimes) -> float:
        return 1.0 if acting_for <= max(self._patience, 2 * tools.mean) else 0.0
