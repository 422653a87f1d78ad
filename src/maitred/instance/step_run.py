"""StepRun: a step and its repetitions, and where an input cuts them off.

Most models say how long k steps take only when they are asked, because each step reads more context than the one before. Under
the linear model (`LinearSteps`) all of them take equally long, so a division finds every boundary.

Example: a run of 30 steps of 120 µs starts at t = 0 and ends at t = 3,600. A request arrives at t = 250. The next step
boundary is ceil(250 / 120) = 3 steps after the start, so the run has 3 steps and ends at t = 360.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from maitred.batching import StepPlan
from maitred.core.contracts import BatchShape, LatencyModel
from maitred.core.units import Micros


class StepRun:
    """The step in progress and its repetitions."""

    departed_decodes: int = 0
    """Sequences that decoded in it and have left since. Their tokens reach no client."""
    partially_committed: bool = False
    """Whether steps before `starts_at` have been counted already. Then the next step has not begun at `starts_at` itself."""
    truncated: bool = False
    """Whether it ends before anything comes of it."""

    def __init__(self, starts_at: Micros, plan: StepPlan, shape: BatchShape, latency: LatencyModel, step_time: Micros) -> None:
        """`shape` is that of the first step; `step_time` is the duration of each step if all take equally long, or 0."""
        self.starts_at = starts_at
        self.plan = plan
        self.shape = shape
        self.steps = steps = plan.max_repeats
        self._latency = latency
        self._step_time = step_time
        self.ends_at: Micros = starts_at + (step_time * steps if step_time else latency.run_time(shape, steps))
        """End of its last step."""
        self.outcome_at: Micros = self.ends_at
        """Instant at which its tokens, completions and free blocks are there: `ends_at`, or earlier with BLIS's clock."""

    def truncate(self, now: Micros) -> None:
        """End the run at the first step boundary at or after `now`, and not before its first step has ended."""
        if self.steps == 1 or self.ends_at <= now:
            return
        step_time = self._step_time
        if not step_time:
            steps = self._steps_until(now)
            if steps < self.steps:
                self.truncated = True
                self.shorten(steps)
            return
        steps = -((self.starts_at - now) // step_time) or 1
        if steps < self.steps:
            self.truncated = True
            self.steps = steps
            self.ends_at = self.outcome_at = self.starts_at + step_time * steps

    def shorten(self, steps: int) -> None:
        """End the run after `steps` steps."""
        self.steps = steps
        self.ends_at = self.outcome_at = self.starts_at + self._latency.run_time(self.shape, steps)

    def boundary_after(self, now: Micros) -> Micros:
        """Return the first step boundary at or after `now`, and not before its first step has ended."""
        return self.starts_at + self._latency.run_time(self.shape, self._steps_until(now))

    def _steps_until(self, now: Micros) -> int:
        """Return the number of steps up to the first step boundary at or after `now`; at least 1."""
        # All times are whole µs, so the steps that end before `now` are those that end within a span 1 µs shorter. The
        # boundary is the end of the step after them.
        span = max(now - self.starts_at, 1) - 1
        return 1 + self._latency.steps_within(self.shape, span, self.steps - 1)
