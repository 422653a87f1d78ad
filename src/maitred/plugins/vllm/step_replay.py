"""StepReplay: the steps of a step log once more, made by the simulator's instance.

The instance gets the keys, requests and lengths of answers of the log, and the policy by its name. Its steps begin when
vLLM's did, so policies that look at the time see the same times. Each request waits before the step before which it waited in
vLLM, and each abort comes there. All else the instance decides itself: what it serves in each step, what it preempts, what
its cache holds.

An engine with `async_scheduling` plans step n + 2 when step n has ended and n + 1 runs. So has the instance, and what came
before that plan in the log is given to it while step n runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from maitred.compat.instance_rules import new_instance
from maitred.core.contracts import BatchShape, LatencyModel, Overheads, PrefixCacheView, QueuePolicy, WaitQueue
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import EventKind, InstanceConfig
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
            config = RecordedInstance(flavour="vllm", step_by_step=True, step_time=self._step_time, **header.instance)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the simulator has no such engine: {error}", where="the header of the step log") from error
        self._instance = new_instance(config, Random(header.seed))
        self._ends = {line.id: line for line in lines if isinstance(line, EndLine)}
        self._steps = [line for line in lines if isinstance(line, StepLine)]
        self._inputs = deque(_inputs_by_step(lines))
        """What comes before each step, the next step first."""
        self._is_async = config.async_scheduling

    def steps(self) -> Iterator[StepLine]:
        """Yield the step of the simulator for each step of the log; one without tokens where it has nothing to serve."""
        instance, later = self._instance, [step.at for step in self._steps[1:]]
        for step, ends_at in zip(self._steps, [*later, self._steps[-1].at + 2], strict=True):
            instance.advance(step.at)
            if not self._is_async or step is self._steps[0]:
                self._give_next(step.at)
            instance.drain_events()  # no step starts before they are fetched
            self._step_time.duration = ends_at - step.at
            instance.next_event()
            preempted = [event.seq.request.id for event in instance.drain_events() if event.kind is EventKind.KV_PREEMPTED]
            yield StepLine(step.index, step.at, instance.planned_tokens(), preempted)
            if self._is_async:
                if step is self._steps[0]:
                    self._give_next(step.at + 1)
                self._give_next(step.at + 1)

    def _give_next(self, now: Micros) -> None:
        """Let requests wait, and abort others: what comes before the next step of which this has not been done."""
        for line in self._inputs.popleft() if self._inputs else ():
            if isinstance(line, EndLine):
                self._instance.abort(line.id, now)
            else:
                self._instance.enqueue(_request(line), self._output_tokens(line.id), now, self._conversation(line.id))

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
