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
from maitred.instance.latency.linear_steps import LinearSteps


class StepRun:
    """The step in progress and its repetitions. An engine makes one run after the other, with one object for all of them."""

    __slots__ = (
        "_latency",
        "_linear",
        "departed_decodes",
        "ends_at",
        "outcome_at",
        "partially_committed",
        "plan",
        "shape",
        "starts_at",
        "step_time",
        "steps",
        "truncated",
    )

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._linear = latency if isinstance(latency, LinearSteps) else None
        self.starts_at: Micros = 0
        self.plan = StepPlan(0)
        self.shape = BatchShape(0, 0)
        """The work of its first step."""
        self.steps = 0
        self.step_time: Micros = 0
        """Duration of each step if all take equally long, or 0."""
        self.ends_at: Micros = 0
        """End of its last step."""
        self.outcome_at: Micros = 0
        """Instant at which its tokens, completions and free blocks are there: `ends_at`, or earlier with BLIS's clock."""
        self.departed_decodes = 0
        """Sequences that decoded in it and have left since. Their tokens reach no client."""
        self.partially_committed = False
        """Whether steps before `starts_at` have been counted already. Then the next step has not begun at `starts_at`."""
        self.truncated = False
        """Whether it ends before anything comes of it."""

    def begin(self, starts_at: Micros, plan: StepPlan, shape: BatchShape) -> None:
        """Begin with the steps of `plan`; `shape` is that of the first one."""
        self.starts_at = starts_at
        self.plan = plan
        self.shape = shape
        self.steps = steps = plan.max_repeats
        if self._linear is not None:
            self.step_time = step_time = self._linear.step_time(shape)
            self.ends_at = self.outcome_at = starts_at + step_time * steps
        else:
            self.ends_at = self.outcome_at = starts_at + self._latency.run_time(shape, steps)
        self.departed_decodes = 0
        self.partially_committed = self.truncated = False

    def truncate(self, now: Micros) -> None:
        """End the run at the first step boundary at or after `now`, and not before its first step has ended."""
        if self.steps == 1 or self.ends_at <= now:
            return
        step_time = self.step_time
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
