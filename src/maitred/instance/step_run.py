"""StepRun: a step and its repetitions, and where an input cuts them off.

How long k steps take is found in the cheapest way that is exact. Under the linear model (`LinearSteps`) all steps of a run take
equally long, so a division finds every boundary. Where the steps of a run are on one straight line (`affine`), the run keeps
that line, and `floor_sums` adds it up. Other models are asked, and so is every model but the linear one for each step with
chunks of prompts, whose context grows by a chunk from step to step.

Example: a run of 30 steps of 120 µs starts at t = 0 and ends at t = 3,600. A request arrives at t = 250. The next step
boundary is ceil(250 / 120) = 3 steps after the start, so the run has 3 steps and ends at t = 360.

What truncates a run: an arrival, but only while the batch has room for it (`Instance.enqueue`); a withdrawal and another limit
(`Instance`); another order of the wait queue (`EngineCore.start_run`).

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from maitred.batching import StepPlan, later_chunks
from maitred.core.contracts import BatchShape, LatencyModel
from maitred.core.units import Micros
from maitred.instance.latency.affine import PiecewiseAffineModel
from maitred.instance.latency.floor_sums import MOST_KEPT, SHIFT, Line, steps_on_line_within, sum_of_floors
from maitred.instance.latency.linear_steps import LinearSteps

_MOST_OPEN_STEPS: Final = 32
"""Steps with chunks for which the model is asked at once, if an arrival may truncate their run: what was asked for the steps
after it would be in vain, and a long prompt in small chunks has thousands of them."""


class StepRun:
    """The step in progress and its repetitions. An engine makes one run after the other, with one object for all of them."""

    __slots__ = (
        "_affine",
        "_chunk_step_ends",
        "_latency",
        "_line",
        "_linear",
        "_lines",
        "_mixed",
        "context_tokens",
        "departed_decodes",
        "ends_at",
        "first",
        "growth",
        "known_shape",
        "num_decodes",
        "outcome_at",
        "partially_committed",
        "plan",
        "starts_at",
        "step_time",
        "steps",
        "truncated",
    )

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._linear = latency if isinstance(latency, LinearSteps) else None
        self._affine: PiecewiseAffineModel | None = latency if isinstance(latency, PiecewiseAffineModel) else None
        self._mixed = self._affine.mixed_steps if self._affine is not None else None
        self.starts_at: Micros = 0
        self.plan = StepPlan(0)
        self.num_decodes = 0
        """Sequences that decode in it."""
        self.context_tokens = 0
        """Tokens of KV that they read in its first step."""
        self.known_shape: BatchShape | None = None
        self._chunk_step_ends: list[Micros] = []
        """When each step ends (µs after the start), if several steps with chunks do not take equally long."""
        self._lines: dict[int, Line] = {}
        """The last line for each number of sequences that decode: contexts change little from run to run."""
        self._line: Line | None = None
        """The one that its steps are on, or None."""
        self.first = 0
        """Duration of its first step in units of 2^-48 µs, if `growth` is not -1."""
        self.growth = -1
        """How much longer each step takes than the one before it, in these units; -1: only the latency model knows."""
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

    @property
    def shape(self) -> BatchShape:
        """The work of its first step."""
        shape = self.known_shape
        if shape is None:  # most are never asked for
            plan = self.plan
            shape = BatchShape(self.num_decodes, self.context_tokens, plan.prefill_tokens, tuple(plan.chunks))
            self.known_shape = shape
        return shape

    def begin(
        self, starts_at: Micros, plan: StepPlan, num_decodes: int, context_tokens: int, shape: BatchShape | None = None
    ) -> None:
        """Begin with the steps of `plan`: in the first one `num_decodes` sequences decode over `context_tokens` tokens of KV.

        `shape` is all the work of the first one, or None if the plan is plain: then it follows from the rest.
        """
        self.starts_at = starts_at
        self.plan = plan
        self.num_decodes = num_decodes
        self.context_tokens = context_tokens
        self.known_shape = shape
        self.steps = steps = plan.max_repeats
        if self._linear is not None:
            linear, prefill = self._linear, plan.prefill_tokens if shape is None else shape.prefill_tokens
            self.step_time = step_time = linear.time_of(prefill, num_decodes) if prefill else linear.decode_times[num_decodes]
            self.ends_at = self.outcome_at = starts_at + step_time * steps
        else:
            self.growth, self._line = -1, None
            if self._chunk_step_ends:
                self._chunk_step_ends = []
            if plan.chunks:
                if steps > 1:
                    if not plan.is_closed:
                        self.steps = steps = min(steps, _MOST_OPEN_STEPS)
                    self._chunk_step_ends = self._find_chunk_step_ends(steps)
                    time = self._chunk_step_ends[-1]
                elif self._mixed is not None and shape is None:
                    time = int(self._mixed.time_of(plan.chunks, num_decodes, context_tokens)) or 1
                else:
                    time = self.time_of(1)
            else:
                time = self._decode_time(num_decodes, context_tokens, steps)
            self.ends_at = self.outcome_at = starts_at + time
        self.departed_decodes = 0
        self.partially_committed = self.truncated = False

    def begin_plain(self, starts_at: Micros, plan: StepPlan, prompt: int, num_decodes: int, context_tokens: int) -> None:
        """As `begin`, by a shorter way, where no step in this object has ever had several chunks, and the model is not the
        linear one: one step with a whole prompt of `prompt` tokens, or those of `plan`, without prompts (0)."""
        self.starts_at = starts_at
        self.plan = plan
        self.num_decodes = num_decodes
        self.context_tokens = context_tokens
        self.known_shape = None
        if not prompt:
            self.steps = steps = plan.max_repeats
            line = self._lines.get(num_decodes)
            if line is None or context_tokens < line.start or context_tokens + num_decodes * (steps - 1) >= line.until:
                time = self._decode_time(num_decodes, context_tokens, steps)
            else:
                self._line, self.growth = line, line.growth
                self.first = first = line.base + line.slope * context_tokens
                time = line.time_from(first, steps)
        else:
            self.steps, self.growth, self._line, mixed = 1, -1, None, self._mixed
            time = self.time_of(1) if mixed is None else int(mixed.prompt_time(prompt, num_decodes, context_tokens)) or 1
        self.ends_at = self.outcome_at = starts_at + time
        self.departed_decodes = 0
        self.partially_committed = self.truncated = False

    def _decode_time(self, num_decodes: int, context_tokens: int, steps: int) -> Micros:
        """Return the time of `steps` steps in which `num_decodes` sequences decode, and keep their line, if they are on one."""
        line = None if self._affine is None else self._affine.line_at(num_decodes, context_tokens)
        if line is None or context_tokens + num_decodes * (steps - 1) >= line.until:
            self._line, self.growth = None, -1
            return self.time_of(steps)
        self._line = self._lines[num_decodes] = line
        self.growth = line.growth
        self.first = first = line.base + line.slope * context_tokens
        return line.time_from(first, steps)

    def prolong(self, time: Micros) -> None:
        """Let the run, which has one step, take `time` µs longer."""
        if self.step_time:
            self.step_time += time
        self.ends_at += time
        self.outcome_at += time

    def _find_chunk_step_ends(self, steps: int) -> list[Micros]:
        """Return when each of its `steps` steps ends, which have chunks: no line is known for them, so each is asked for."""
        ends, end, chunks, context = list[Micros](), 0, self.plan.chunks, self.context_tokens
        for _ in range(steps):
            if self._mixed is not None:
                end += int(self._mixed.time_of(chunks, self.num_decodes, context)) or 1
            else:
                end += self._latency.step_time(
                    BatchShape(self.num_decodes, context, self.plan.prefill_tokens, tuple(chunks), self.shape.context_spread)
                )
            ends.append(end)
            chunks, context = later_chunks(chunks, 1), context + self.num_decodes
        return ends

    def time_of(self, steps: int) -> Micros:
        """Return the time of its first `steps` steps."""
        if self.step_time:
            return self.step_time * steps
        if self._chunk_step_ends:
            return self._chunk_step_ends[steps - 1] if steps else 0
        if self.growth < 0:
            return self._latency.run_time(self.shape, steps)
        if self._line is not None:
            return self._line.time_from(self.first, steps)
        return sum_of_floors(self.first, self.growth, steps)

    def time_of_step(self, step: int) -> Micros:
        """Return the duration of a step, the first of which is step 0."""
        if self.step_time:
            return self.step_time
        if self.growth >= 0:
            return (self.first + self.growth * step) >> SHIFT
        if self._chunk_step_ends:
            return self.time_of(step + 1) - self.time_of(step)
        shape = self.shape
        if step:
            context = shape.context_tokens + step * shape.num_decodes
            shape = BatchShape(shape.num_decodes, context, context_spread=shape.context_spread)
        return self._latency.step_time(shape)

    def steps_within(self, span: Micros, limit: int) -> int:
        """Return how many steps, at most `limit`, end within `span` of its start."""
        if self.step_time:
            return min(limit, span // self.step_time)
        if self._chunk_step_ends:
            return bisect_right(self._chunk_step_ends, span, 0, limit)
        if self.growth < 0:
            return self._latency.steps_within(self.shape, span, limit)
        return steps_on_line_within(self.first, self.growth, span, limit, self._line)[0]

    def truncate(self, now: Micros) -> None:
        """End the run at the first step boundary at or after `now`, not before the end of its first step (when: see above)."""
        if self.steps == 1 or self.ends_at <= now:
            return
        step_time = self.step_time
        if not step_time:
            self._truncate_growing(now)
            return
        steps = -((self.starts_at - now) // step_time) or 1
        if steps < self.steps:
            self.truncated = True
            self.steps = steps
            self.ends_at = self.outcome_at = self.starts_at + step_time * steps

    def _truncate_growing(self, now: Micros) -> None:
        """As `truncate`, where steps do not take equally long."""
        if self.growth < 0:
            steps = self.steps_until(now)
            if steps < self.steps:
                self.truncated = True
                self.shorten(steps)
            return
        first, growth, span = self.first, self.growth, now - self.starts_at
        steps = -(-span // (first >> SHIFT))  # no step is shorter than the first, so it is this one or one before it
        line = self._line
        if line is not None and steps <= MOST_KEPT:
            steps = steps if steps > 1 else 1
            if steps < self.steps:
                time = line.time_from(first, steps)
            else:
                steps, time = self.steps, self.ends_at - self.starts_at
            while steps > 1 and (before := time - ((first + growth * (steps - 1)) >> SHIFT)) >= span:
                steps, time = steps - 1, before
        else:
            before, left = steps_on_line_within(first, growth, span - 1, self.steps - 1, line)
            steps, time = before + 1, span - 1 - left + ((first + growth * before) >> SHIFT)
        if steps < self.steps:
            self.truncated = True
            self.steps = steps
            self.ends_at = self.outcome_at = self.starts_at + time

    def shorten(self, steps: int) -> None:
        """End the run after `steps` steps."""
        self.steps = steps
        self.ends_at = self.outcome_at = self.starts_at + self.time_of(steps)

    def steps_until(self, now: Micros) -> int:
        """Return the number of steps up to the first step boundary at or after `now`; at least 1."""
        # All times are whole µs, so the steps that end before `now` are those that end within a span 1 µs shorter. The
        # boundary is the end of the step after them.
        span = max(now - self.starts_at, 1) - 1
        return 1 + self.steps_within(span, self.steps - 1)

    def skip(self, steps: int, time: Micros) -> None:
        """Leave out the first `steps` steps, which took `time` and have been counted. The run ends where it did."""
        self.starts_at += time
        self.steps -= steps
        self.partially_committed = True
        self.first += self.growth * steps
        self.context_tokens += self.num_decodes * steps
        self.known_shape = None
        if self._chunk_step_ends:
            self._chunk_step_ends = [end - time for end in self._chunk_step_ends[steps:]]

    def set_shape(self, shape: BatchShape) -> None:
        """Say what the work of its first step is, after `skip`."""
        self.known_shape = shape
        self.num_decodes = shape.num_decodes
