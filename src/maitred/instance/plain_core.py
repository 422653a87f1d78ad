"""PlainCore: an engine core whose usual runs take one straight line each.

Under vLLM's rules, without planning ahead, nearly every run is one of two:

    all sequences decode, or all in a full batch  until the first of them is complete; the blocks for that are free
    they decode, and one prompt joins as a whole  one step (without a prefix cache)

Here these begin and end without the layers that ask for all else: chunks, several prompts, preemption, held sequences,
withdrawn ones. What is not one of the two goes the way of `EngineCore`, run by run, over the same state. So it says the same,
which tests/instance/test_plain_core.py compares.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from random import Random
from typing import Final

from maitred.batching import ContinuousBatch, StepPlan
from maitred.core.contracts import WaitQueue
from maitred.instance.batch_former import EngineParts
from maitred.instance.config import InstanceConfig
from maitred.instance.engine_core import EngineCore
from maitred.instance.events import EventKind, InstanceEvent
from maitred.instance.latency import SpreadAwareModel
from maitred.instance.latency.linear_steps import LinearSteps
from maitred.instance.step_run import StepRun
from maitred.kv import BlockManager
from maitred.queueing import is_overridden

_FIRST_TOKEN: Final = EventKind.FIRST_TOKEN  # members of enums are slow to look up
_FINISHED: Final = EventKind.FINISHED


class PlainCore(EngineCore):
    """See the module, and `make_core`."""

    def __init__(self, config: InstanceConfig, waiting: WaitQueue, parts: EngineParts) -> None:
        super().__init__(config, waiting, parts)
        assert isinstance(parts.batch, ContinuousBatch)
        self._plain_batch: ContinuousBatch = parts.batch
        self._blocks: BlockManager = parts.blocks
        self._joins: bool = parts.batch.admits_whole and not parts.batch.announces_steps
        """Whether a prompt that joins alone may take the straight line."""
        self._linear = self.latency if isinstance(self.latency, LinearSteps) else None
        self._plain_run = StepRun(self.latency)
        self._decode_plan, self._prompt_plan = StepPlan(1), StepPlan(1)
        self._decode_plan.is_plain = self._prompt_plan.is_plain = True

    def start_run(self) -> StepRun:
        batch, blocks, run = self._plain_batch, self._blocks, self._plain_run
        decodes, num_here, now = batch.num_decodes, len(self.sequences), self.next_start
        if self._held.count:
            return EngineCore.start_run(self)
        in_batch = len(batch.sequences)
        if decodes == num_here or (decodes == in_batch and batch.is_full):
            plan, tokens = self._decode_plan, 0
            plan.max_repeats = limit = self._completions.next_step - batch.step_index
            if not blocks.has_room(0, limit):
                return EngineCore.start_run(self)
        else:
            if in_batch != decodes or not self._joins or not (num_here == decodes + 1 or batch.has_one_slot):
                return EngineCore.start_run(self)
            fcfs = self._fcfs
            seq = self.waiting.peek() if fcfs is None else fcfs.peek()
            if seq is None or not batch.admit_whole(seq, now):
                return EngineCore.start_run(self)
            if fcfs is None:
                self.waiting.pop()
            else:
                fcfs.pop()
            plan, tokens, limit = self._prompt_plan, seq.prompt_tokens, 1
            plan.prefill_tokens = tokens
        batch.num_transferred = 0
        self.run = run
        linear = self._linear
        if linear is None:
            if tokens:
                plan.chunks = batch.whole_chunks()
            run.begin_plain(now, plan, tokens, decodes, batch.context_tokens)
        else:  # as `begin`
            run.starts_at, run.plan, run.num_decodes = now, plan, decodes
            run.context_tokens, run.known_shape = batch.context_tokens, None
            run.step_time = time = linear.time_of(tokens, decodes) if tokens else linear.decode_times[decodes]
            run.steps = limit
            run.ends_at = run.outcome_at = now + time * limit
            run.departed_decodes = 0
            run.partially_committed = run.truncated = False
        return run

    def commit_run(self, run: StepRun) -> None:  # noqa: PLR0912  (each call counts here)
        if run is not self._plain_run or run.departed_decodes:
            self._commit_in_layers(run)
            return
        batch, meter, itl_log = self._plain_batch, self.meter, self.itl_log
        now, steps, decodes = run.ends_at, run.steps, run.num_decodes
        if meter is not None:
            if run.plan is self._decode_plan and itl_log is None and decodes < len(meter.decode_steps):
                meter.decode_steps[decodes] += steps
            elif run.step_time or steps == 1:
                meter.add_equal_steps(decodes, steps, run.step_time or now - run.starts_at)
            elif run.growth >= 0 and itl_log is None:
                meter.add_line(run.first, run.growth, steps, decodes, now - run.starts_at)
            else:
                meter.add_run(run, steps, now - run.starts_at)
        self.run, self.next_start = None, now
        self._blocks.run_steps(steps)
        batch.step_index = step = batch.step_index + steps
        batch.context_tokens += decodes * steps
        if run.plan is self._prompt_plan and (joined := batch.complete_whole()) is not None:
            joined.first_token_at = now
            if self.tells_first_tokens:
                self.events.append(InstanceEvent(now, _FIRST_TOKEN, joined))
            self._completions.add(joined, step - 1 + joined.answer_length)
            if itl_log is not None:
                itl_log.on_decode_start(joined.request_id)
        if step == self._completions.next_step:
            for seq in self._completions.pop_complete(step):
                if itl_log is not None:
                    itl_log.on_decode_end(seq.request_id)
                batch.finish(seq)
                del self.sequences[seq.request_id]  # `_forget`, without its call
                if self._prefix_blocks is not None:
                    self._prefix_blocks.forget(seq)
                self.events.append(InstanceEvent(now, _FINISHED, seq))

    def _commit_in_layers(self, run: StepRun) -> None:
        """Count the steps of `run`, in or since which something rare has happened."""
        plan = self._prompt_plan
        if run.plan is plan:
            plan.chunks = self._plain_batch.whole_chunks()  # under the linear model nobody has asked for them before
        EngineCore.commit_run(self, run)
        plan.chunks = ()


def make_core(config: InstanceConfig, rng: Random, parts: EngineParts) -> EngineCore:
    """Return the core of an instance. Raises ConfigError for an unknown scheduler.

    Steps that are made one by one go through the layers, so that they can tell on the others.
    """
    waiting = config.policy().make_queue(parts.prefix_cache, rng)
    is_plain = (
        type(parts.batch) is ContinuousBatch
        and not (config.step_by_step or config.async_scheduling)
        and config.batch_limits.prefill_schedule_interval == 1
        and not any(is_overridden(waiting, callback) for callback in ("on_served", "on_finished", "on_sequence_end"))
        and not isinstance(config.latency_model(), SpreadAwareModel)
    )
    return (PlainCore if is_plain else EngineCore)(config, waiting, parts)
