"""StepReplay: the steps of a step log once more, made by the parts of the simulator's instance.

The parts get the keys, requests and lengths of answers of the log, and the policy by its name. A step begins when vLLM's did,
so policies that look at the time see the same times. Requests wait, and are withdrawn, before the step before which they were
in vLLM. All else is decided anew: what each step serves, what it preempts, what the cache holds.

    loop:  commit the step before  ->  requests that came, aborts  ->  plan  ->  note

With `async_scheduling` the first two change places, because the step before still runs then.

The clock of an `Instance` is not used, because one that plans ahead (`async_scheduling`) would keep an arrival back until the
plan after next. The log says before which plan it came, so the arrival is revealed at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, LatencyModel, Overheads, PrefixCacheView, QueuePolicy, WaitQueue
from maitred.core.errors import ConfigError, InvariantError
from maitred.core.request import PriorityClass, Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import EventKind, InstanceConfig
from maitred.instance.batch_former import standard_parts
from maitred.instance.engine_core import EngineCore
from maitred.instance.flavours import flavour_keys
from maitred.plugins.vllm.step_log import EndLine, RequestLine, StepLine, StepLogHeader, StepLogLine
from maitred.queueing.base import DelegatingQueue


class RecordedPrompt(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of which the log has the keys. Blocks have the size that they had there."""

    block_hashes: Sequence[int]
    deadline: Micros | None = None
    """The deadline of the request, in µs."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        return self.block_hashes


class RecordedStepTime(LatencyModel):
    """A latency model that says how long the step in progress took in the log."""

    overheads = Overheads()

    def __init__(self) -> None:
        self.duration: Micros = 1
        """From the beginning of this step to that of the next, in µs."""

    def step_time(self, batch: BatchShape) -> Micros:
        return self.duration

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return self.duration * steps

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        return min(limit, span // self.duration)


class RecordedInstance(InstanceConfig, frozen=True, kw_only=True):
    """The engine of a step log."""

    preemption_policy: str = "fcfs"  # type: ignore[assignment]  # `client`, too, which goes with any scheduler here
    step_time: Any
    """The `RecordedStepTime`."""

    def latency_model(self) -> LatencyModel:
        model: LatencyModel = self.step_time
        return model

    def policy(self) -> QueuePolicy:
        return _KeepsDeadlines(super().policy())


class _KeepsDeadlines(QueuePolicy):
    """A policy that sees the deadlines of requests. vLLM ends no request at its deadline, and an instance does, so the instance
    does not see them."""

    def __init__(self, inner: QueuePolicy) -> None:
        self.inner = inner

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _KeepsDeadlinesQueue(self.inner.make_queue(prefix, rng))


class _KeepsDeadlinesQueue(DelegatingQueue):
    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        if isinstance(seq.request.prefix, RecordedPrompt):
            seq.request = replace(seq.request, deadline=seq.request.prefix.deadline)
        super().add(seq, now, front=front)


class StepReplay:
    """One step log, simulated."""

    def __init__(self, header: StepLogHeader, lines: Sequence[StepLogLine]) -> None:
        """Raises ConfigError for an engine that the simulator cannot have, or a policy that is not known here."""
        self._step_time = RecordedStepTime()
        try:
            # What the header of an older log does not say is off: the defaults of the flavour are not those of that engine.
            keys = {**dict.fromkeys(flavour_keys("vllm"), False), **header.instance}
            config = RecordedInstance(flavour="vllm", step_by_step=True, step_time=self._step_time, **keys)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the simulator has no such engine: {error}", where="the header of the step log") from error
        parts = standard_parts(config)
        waiting = config.policy().make_queue(parts.prefix_cache, Random(header.seed))
        self._core = EngineCore(config, waiting, parts)
        self._ends = {line.id: line for line in lines if isinstance(line, EndLine)}
        self._steps = [line for line in lines if isinstance(line, StepLine)]
        self._inputs = _inputs_by_step(lines)
        self._is_async = config.async_scheduling

    def steps(self) -> Iterator[StepLine]:
        """Yield the step of the simulator for each step of the log; one without tokens where it has nothing to serve."""
        later = [step.at for step in self._steps[1:]]
        for step, ends_at, inputs in zip(self._steps, [*later, self._steps[-1].at + 1], self._inputs, strict=False):
            # Without planning ahead a step has ended when the inputs of the next one take effect. With it, they come first.
            if not self._is_async:
                self._commit()
            self._give(inputs, step.at)
            self._commit()
            self._core.next_start = step.at
            self._step_time.duration = ends_at - step.at
            yield self._plan(step)

    def _commit(self) -> None:
        """Count the step in progress, if there is one."""
        if self._core.run is not None:
            self._core.commit_run(self._core.run)

    def _give(self, inputs: Sequence[RequestLine | EndLine], now: Micros) -> None:
        """Let requests wait, and withdraw others, one after the other: a policy may tell a tenant that has always had requests
        waiting from one of which the last was aborted before the next came."""
        core = self._core
        for line in inputs:
            if isinstance(line, RequestLine):
                core.add(_request(line), self._output_tokens(line.id), now, self._conversation(line.id), None)
                core.reveal_arrivals()
            elif line.id in core.sequences:
                core.withdraw(core.sequences[line.id], now, EventKind.ABORTED)
        core.events.clear()

    def _plan(self, step: StepLine) -> StepLine:
        """Make the step that begins now, and return it in the terms of the log."""
        core = self._core
        # vLLM lists a step in the order of its running batch: those that ran, as they stood before, then the admitted ones.
        before = list(core.batch.sequences.values())
        decodes = {seq.request.id for seq in before if seq.is_decoding}
        try:
            plan = core.start_run().plan
        except InvariantError:  # nothing runs, and nothing that waits fits
            return StepLine(step.index, step.at, ())
        tokens = {chunk.seq.request.id: chunk.num_tokens for chunk in plan.chunks}
        preempted = [seq.request.id for seq in plan.preempted]
        for request_id in decodes.difference(preempted, (seq.request.id for seq in plan.stalled)):
            tokens[request_id] = 1
        order = dict.fromkeys([*(seq.request.id for seq in before), *core.batch.sequences])
        return StepLine(
            step.index, step.at, [(request_id, tokens[request_id]) for request_id in order if request_id in tokens], preempted
        )

    def _output_tokens(self, request_id: RequestId) -> int:
        end = self._ends.get(request_id)
        return end.output_tokens if end is not None and end.is_complete else 1 << 40

    def _conversation(self, request_id: RequestId) -> RecordedPrompt | None:
        end = self._ends.get(request_id)
        return RecordedPrompt(end.block_hashes) if end is not None and end.block_hashes else None


def _inputs_by_step(lines: Sequence[StepLogLine]) -> Iterator[list[RequestLine | EndLine]]:
    """Yield, for each step, the requests that came and those that were aborted since the step before."""
    inputs: list[RequestLine | EndLine] = []
    for line in lines:
        if isinstance(line, StepLine):
            yield inputs
            inputs = []
        elif isinstance(line, RequestLine) or (isinstance(line, EndLine) and not line.is_complete):
            inputs.append(line)


def _request(line: RequestLine) -> Request:
    fields = dict(line.fields)
    label = fields.pop("priority_class", PriorityClass.DEFAULT.label)
    return Request(
        id=line.id,
        arrival=line.arrival,
        prompt_tokens=line.prompt_tokens,
        max_output_tokens=line.max_output_tokens,
        client_id=line.client_id,
        priority_class=PriorityClass[label.upper()],
        prefix=RecordedPrompt(line.block_hashes, fields.pop("deadline", None)),
        **fields,
    )
