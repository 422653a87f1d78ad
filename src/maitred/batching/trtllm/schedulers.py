"""The interfaces of schedulers, as TensorRT-LLM's users extend them: what fits into memory, and what fits into the next step.

    RequestScheduler      the whole decision: active requests and those in flight -> SchedulerOutput
    CapacityScheduler     first stage: which requests have KV memory for this step (fitting), which lose theirs (paused)
    MicroBatchScheduler   second stage: which of the fitting ones run, and with which chunks
    SimpleScheduler       the two stages, one after the other

Active requests are those that the engine has taken from its wait queue, in the order in which they are served. A request in
flight is being computed by an earlier step, and is not scheduled again until that step has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from typing import ClassVar, TypeAlias

import msgspec

from maitred.batching.trtllm.llm_request import LlmRequest, LlmRequestState, RequestList

CapacityResult: TypeAlias = tuple[RequestList, RequestList] | tuple[RequestList, RequestList, RequestList]
"""(fitting, paused), or (fitting, fitting requests in the state DISAGG_GENERATION_INIT, paused)."""
MicroBatchResult: TypeAlias = tuple[RequestList, RequestList] | tuple[RequestList, RequestList, RequestList]
"""(context, generation), or (encoder, context, generation)."""


class SchedulerOutput(msgspec.Struct):
    """The decision about one step. The lists of requests that run are disjoint."""

    context_requests: RequestList
    generation_requests: RequestList
    paused_requests: RequestList
    """Requests that lose their KV, and compute it again later."""
    fitting_disagg_gen_init_requests: RequestList
    """Requests that may get their KV from another instance now."""
    num_fitting_requests: int
    """How many requests have memory for this step, scheduled or not."""
    encoder_requests: RequestList = msgspec.field(default_factory=list)


class StateWindow:
    """The states that a scheduler serves: `no_schedule_until_state <= state < no_schedule_after_state`."""

    no_schedule_until_state: ClassVar[LlmRequestState] = LlmRequestState.CONTEXT_INIT
    no_schedule_after_state: ClassVar[LlmRequestState] = LlmRequestState.GENERATION_COMPLETE

    def is_schedulable(self, request: LlmRequest) -> bool:
        """Return whether `request` is in a state that this scheduler serves."""
        return self.no_schedule_until_state <= request.state < self.no_schedule_after_state


class CapacityScheduler(StateWindow, ABC):
    """The choice of the requests that have KV memory for the next step."""

    repeats_its_answer: bool = False
    """Whether the decision stays the same through steps that only generate, until a request arrives or ends or the blocks run
    out. Then a simulator skips these steps; for other schedulers it makes each of them. A subclass that decides anew says so
    anew."""

    @abstractmethod
    def schedule_request(self, active_requests: RequestList) -> CapacityResult:
        """Return the fitting requests in the order in which they are served, and the paused ones, of `active_requests`."""

    def fit_beside(self, generating: RequestList, begun: RequestList, pending: RequestList) -> RequestList | None:
        """Return which of `begun` and `pending` fit, if all of `generating` do and nothing is paused, without looking at any of
        those; None if that takes a look, which is `schedule_request`.

        The active requests are these three lists, one after the other: those that generate (which have one beam and neither
        drafts nor adapters), those in the middle of their prompt, and those without memory. With this shortcut a decision costs
        the same however many requests generate. It is void for subclasses, which may decide in another way.
        """
        return None


class MicroBatchScheduler(StateWindow, ABC):
    """The choice of the fitting requests that run in the next step. It sets the chunks of those in their prompt
    (`LlmRequest.context_chunk_size`) and drops draft tokens that do not fit."""

    repeats_its_answer: bool = False
    """See `CapacityScheduler`."""
    repeats_lone_chunk: bool = False
    """See `RequestScheduler`."""

    @abstractmethod
    def schedule(self, active_requests: RequestList, inflight_request_ids: Set[int]) -> MicroBatchResult:
        """Return the requests that run, those in their prompt and those that generate, none of them in flight."""

    def chunk_beside(self, generating: RequestList, contexts: RequestList) -> RequestList | None:
        """Return which of `contexts`, which are in their prompt and fit, run in a step in which all of `generating` do; None if
        not all of them do, or that takes a look at them. See `CapacityScheduler.fit_beside`."""
        return None


class RequestScheduler(ABC):
    """The whole decision about one step."""

    repeats_its_answer: bool = False
    """See `CapacityScheduler`."""
    repeats_lone_chunk: bool = False
    """Whether a prompt that has begun gets a chunk as large in each step while all other requests generate, until one of them
    ends or what is left is less than a chunk and a block. Then a simulator skips these steps."""
    max_num_pending: int | None = None
    """Most active requests without memory that it has a use for, if their prompts fill a step. The others stay in the wait
    queue, where the order may change, except for one that is more urgent than all of these. None: as many as there are places
    in the batch."""
    shares_each_chunk: bool = False
    """Whether the blocks of a prompt are shared when a chunk has filled them, and not when the whole prompt is computed."""

    @abstractmethod
    def schedule_request(self, active_requests: RequestList, inflight_request_ids: Set[int]) -> SchedulerOutput:
        """Return the decision about the next step."""

    def schedule_beside(self, generating: RequestList, begun: RequestList, pending: RequestList) -> SchedulerOutput | None:
        """Return the decision about the next step if all of `generating` run in it, without looking at them; None if that takes
        a look. See `CapacityScheduler.fit_beside`."""
        return None

    def max_repeats(self, limit: int) -> int:
        """Return for how many steps, from 1 to `limit`, the last decision stays the same, if the requests only generate and
        find their blocks. Only a scheduler that repeats its answer is asked."""
        return limit

    def on_request_end(self, request: LlmRequest, *, is_complete: bool) -> None:  # noqa: B027 (most have no use for it)
        """Note that `request` has ended, complete or not. A request that this scheduler has paused has not ended."""

    def why_waiting(self, request: LlmRequest) -> str | None:
        """Return why `request` waited at the last decision, as the rest of a sentence, or None if that is not known."""
        return None


class SimpleScheduler(RequestScheduler):
    """A capacity scheduler and then a micro-batch scheduler."""

    def __init__(self, capacity_scheduler: CapacityScheduler, micro_batch_scheduler: MicroBatchScheduler) -> None:
        self.capacity_scheduler = capacity_scheduler
        self.micro_batch_scheduler = micro_batch_scheduler
        self.repeats_its_answer = _repeats(capacity_scheduler, "schedule_request") and _repeats(
            micro_batch_scheduler, "schedule"
        )
        self.repeats_lone_chunk = self.repeats_its_answer and micro_batch_scheduler.repeats_lone_chunk
        self._knows_shortcut = "fit_beside" in vars(type(capacity_scheduler)) and "chunk_beside" in vars(
            type(micro_batch_scheduler)
        )

    def schedule_request(self, active_requests: RequestList, inflight_request_ids: Set[int]) -> SchedulerOutput:
        fitting, disagg_gen_init, paused = capacity_lists(self.capacity_scheduler.schedule_request(active_requests))
        encoder, context, generation = micro_batch_lists(self.micro_batch_scheduler.schedule(fitting, inflight_request_ids))
        return SchedulerOutput(context, generation, paused, disagg_gen_init, len(fitting), encoder)

    def schedule_beside(self, generating: RequestList, begun: RequestList, pending: RequestList) -> SchedulerOutput | None:
        if not self._knows_shortcut:
            return None
        fitting = self.capacity_scheduler.fit_beside(generating, begun, pending)
        context = None if fitting is None else self.micro_batch_scheduler.chunk_beside(generating, fitting)
        if fitting is None or context is None:
            return None
        return SchedulerOutput(context, generating, [], [], len(generating) + len(fitting))


def _repeats(scheduler: CapacityScheduler | MicroBatchScheduler, decision: str) -> bool:
    """Return whether `scheduler` repeats its answers. What a class says is void for a subclass with a decision of its own."""
    said = next((kind for kind in type(scheduler).__mro__ if "repeats_its_answer" in vars(kind)), object)
    decides = next(kind for kind in type(scheduler).__mro__ if decision in vars(kind))
    return scheduler.repeats_its_answer and issubclass(said, decides)


def capacity_lists(result: CapacityResult) -> tuple[RequestList, RequestList, RequestList]:
    """Return the answer of a capacity scheduler, which may be a pair, as (fitting, disagg_gen_init, paused). Raises TypeError
    for any other answer."""
    return _three_lists(result, "schedule_request", "(fitting, paused) or (fitting, disagg_gen_init, paused)", may_lack=1)


def micro_batch_lists(result: MicroBatchResult) -> tuple[RequestList, RequestList, RequestList]:
    """Return the answer of a micro-batch scheduler, which may be a pair, as (encoder, context, generation). Raises TypeError
    for any other answer."""
    return _three_lists(result, "schedule", "(context, generation) or (encoder, context, generation)", may_lack=0)


def _three_lists(
    result: Sequence[RequestList], method: str, right: str, *, may_lack: int
) -> tuple[RequestList, RequestList, RequestList]:
    """Return the lists that `method` has returned, with an empty one at index `may_lack` if that is left out."""
    # The classes are the users' own, and may return anything.
    if isinstance(result, (tuple, list)) and len(result) in (2, 3) and all(isinstance(part, Sequence) for part in result):
        first, second, third = result if len(result) == 3 else [*result[:may_lack], [], *result[may_lack:]]
        return first, second, third
    found = f"a {type(result).__name__}" + (f" of {len(result)}" if isinstance(result, (tuple, list)) else "")
    raise TypeError(f"{method} returns {found}, not {right}")


def split_disagg_gen_init(scheduled: Sequence[LlmRequest]) -> tuple[RequestList, RequestList]:
    """Return the scheduled requests without, and with, those that wait for their KV from another instance; order kept."""
    fitting = [request for request in scheduled if not request.is_disagg_generation_init_state]
    if len(fitting) == len(scheduled):
        return fitting, []
    return fitting, [request for request in scheduled if request.is_disagg_generation_init_state]
