"""PolicyQueue: the waiting queue of vLLM, in the order of one of maitred's policies.

vLLM's scheduler uses a `RequestQueue`; a policy makes a `WaitQueue`. This is the first, over the second:

    add_request            add; the request gets its `SequenceState`, which it keeps until it ends
    peek_request           peek. The first one in a step is preceded by `on_step_start`, and nothing else changes the order
                           within a step, so `pop_request` gives what `peek_request` showed
    pop_request            pop: the request is admitted
    prepend_request        vLLM has preempted the request: add, at the front
    prepend_requests       vLLM has popped these requests and cannot run them yet (their grammar is not compiled, say): they
                           were not served, and go back to the front

The scheduler calls `begin_step` and `end_step` around each schedule, `report_chunks` when the step has ended, unless it plans
ahead, and `on_end` when requests end. From that the policy is told what was served, as `WaitQueue.on_served` wants it: prefill
tokens chunk by chunk, output tokens when the sequence stops decoding. As in the simulator nothing is done per token: a sequence
decodes from the step that ends its prompt on, one token in each step. Where vLLM makes more of a step (speculative decoding) or
none (a decode that finds no budget), policies see the difference when the sequence stops, and then exactly.

Example: step 7 computes the last 40 tokens of a prompt. `on_served(seq, 40, 0)` follows, and `decode_origin_step` is 7: the
sequence has 1 token after step 7, 5 after step 11. It ends then: `on_served(seq, 0, 5)`, `on_finished`, `on_sequence_end`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from maitred.core.contracts import StepView, WaitQueue
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.plugins.vllm.engine_request import VllmRequest


class VllmState(Protocol):
    """What the queue asks of the engine around it."""

    def now(self) -> Micros:
        """Return the time, in µs from any origin."""
        ...

    def free_blocks(self) -> int:
        """Return the number of KV blocks that can be taken now."""
        ...

    def on_head_shown(self) -> None:
        """Note that the head of the queue is looked at, and may be admitted."""
        ...

    def on_head_settled(self) -> None:
        """Note that no head is admitted any more in this step."""
        ...

    def running_requests(self) -> Sequence[VllmRequest]:
        """Return the running requests."""
        ...

    def describe(self, request: VllmRequest, request_id: RequestId, arrival: Micros) -> Request:
        """Return `request` as policies see it."""
        ...

    def is_complete(self, request: VllmRequest) -> bool:
        """Return whether the answer to `request`, which has left, is complete."""
        ...


class StepListener(Protocol):
    """A listener that is told what comes, what each step serves, and what ends, in this order."""

    def on_request(self, request: Request, engine_request: VllmRequest) -> None:
        """Note that a request waits."""
        ...

    def on_step(
        self, index: int, at: Micros, scheduled: Iterable[tuple[RequestId, int]], preempted: Iterable[RequestId]
    ) -> None:
        """Note that a step serves these tokens of these requests, in the order of the batch, after these preemptions."""
        ...

    def on_end(self, seq: SequenceState, engine_request: VllmRequest, at: Micros, *, is_complete: bool) -> None:
        """Note that a request has left the engine."""
        ...


class _Sequence:
    """A request in the engine, from its arrival to its end."""

    __slots__ = ("request", "seq")

    def __init__(self, request: VllmRequest, seq: SequenceState) -> None:
        self.request = request
        self.seq = seq


class PolicyQueue(StepView):
    """A `RequestQueue` of vLLM in the order of a policy. It is also the `StepView` of the step that vLLM forms."""

    def __init__(self, queue: WaitQueue, engine: VllmState, listener: StepListener | None = None) -> None:
        self._queue = queue
        self._engine = engine
        self._listener = listener
        self._sequences: dict[str, _Sequence] = {}
        """Every request in the engine, by vLLM's id."""
        self._waiting: dict[str, _Sequence] = {}
        """The requests that wait, by vLLM's id."""
        self._prefilling: dict[str, _Sequence] = {}
        """The requests that were admitted and whose prompt is not computed yet, by vLLM's id."""
        self._engine_ids: dict[RequestId, str] = {}
        self._num_arrivals = 0
        self._num_steps = 0
        self._now: Micros = -1
        self._step_at: Micros = 0
        self._has_step_started = True
        self._chunks: list[tuple[_Sequence, int]] = []
        """The chunks of the last step that the policy has not been told of, in tokens."""
        self._preempted: list[RequestId] = []
        """Requests that were preempted in the step that is being formed."""

    @property
    def step_index(self) -> int:
        return self._num_steps

    @property
    def running(self) -> int:
        return len(self._engine.running_requests())

    @property
    def free_blocks(self) -> int:
        return self._engine.free_blocks()

    def running_routing_keys(self) -> Mapping[str, int]:
        known = (self._sequences.get(request.request_id) for request in self._engine.running_requests())
        return Counter(key for sequence in known if sequence and (key := sequence.seq.request.routing_key))

    def add_request(self, request: VllmRequest) -> None:
        """Let a request wait. A session that goes on with the next part of its input is here already."""
        sequence, now = self._sequences.get(request.request_id), self._tick()
        if sequence is None:
            sequence = self._new_sequence(request, now)
        else:
            self._stop_running(sequence, now)
        self._enqueue(sequence, now, front=False)

    def peek_request(self) -> VllmRequest:
        """Return the head. Raises IndexError when empty."""
        if not self._has_step_started:
            self._has_step_started = True
            self._queue.on_step_start(self, self._step_at)
        seq = self._queue.peek()
        if seq is None:
            raise IndexError("the queue is empty")
        self._engine.on_head_shown()
        return self._waiting[self._engine_ids[seq.request.id]].request

    def pop_request(self) -> VllmRequest:
        """Remove and return the head. Raises IndexError when empty."""
        engine_id = self._engine_ids[self._queue.pop().request.id]
        # An admitted request computes its prompt first. It decodes from the step that computes the last of it.
        sequence = self._prefilling[engine_id] = self._waiting.pop(engine_id)
        return sequence.request

    def prepend_request(self, request: VllmRequest) -> None:
        """Let a request wait that was preempted."""
        sequence = self._sequences[request.request_id]
        sequence.seq.num_preemptions += 1
        self._preempted.append(sequence.seq.request.id)
        self._put_back(sequence)

    def prepend_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Let requests wait that were popped and not served. The last one given is the first to go, as in vLLM."""
        for request in requests:
            self._put_back(self._sequences[request.request_id])

    def remove_request(self, request: VllmRequest) -> None:
        """Remove a request. Raises ValueError if it does not wait here."""
        if request.request_id not in self._waiting:
            raise ValueError(f"request {request.request_id} does not wait here")
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Remove those of the requests that wait here."""
        for request in requests:
            sequence = self._waiting.pop(request.request_id, None)
            if sequence is not None:
                self._queue.remove(sequence.seq.request.id)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[VllmRequest]:
        """Return an iterator of the waiting requests, in the order in which they came here: that of the policy is not known
        beyond its head."""
        return iter([sequence.request for sequence in self._waiting.values()])

    def begin_step(self) -> None:
        """Note that vLLM begins to form a step."""
        self.report_chunks()
        self._step_at = self._tick()
        self._has_step_started = False
        self._preempted.clear()

    def end_step(self, num_scheduled_tokens: Mapping[str, int]) -> None:
        """Note that the step is formed, with tokens of requests that vLLM counts as computed. With none, it is no step."""
        self._has_step_started = True
        self._engine.on_head_settled()
        if not (num_scheduled_tokens or self._preempted):
            return
        if self._listener is not None:
            scheduled = [(self._sequences[key].seq.request.id, tokens) for key, tokens in num_scheduled_tokens.items()]
            self._listener.on_step(self._num_steps, self._step_at, scheduled, self._preempted)
        # Only prompts are counted step by step. A sequence that decodes gets one token in each step, so its progress follows
        # from the index of the step.
        for engine_id in [key for key in self._prefilling if key in num_scheduled_tokens]:
            self._count_chunk(self._prefilling[engine_id], num_scheduled_tokens[engine_id])
        self._num_steps += 1

    def report_chunks(self) -> None:
        """Tell the policy of the chunks of the last step, which has ended or counts as ended for what is planned next."""
        if not self._chunks:
            return
        now, chunks, self._chunks = self._tick(), self._chunks, []
        for sequence, tokens in chunks:
            seq, engine_id = sequence.seq, sequence.request.request_id
            seq.num_computed_tokens += tokens
            self._queue.on_served(seq, tokens, 0, now)
            # The chunk has completed the prompt, and the request has neither been preempted nor ended since.
            if engine_id not in self._prefilling and engine_id not in self._waiting and engine_id in self._sequences:
                seq.is_decoding = True
                seq.decode_origin_step = self._num_steps - 1 - seq.num_output_tokens

    def on_end(self, engine_ids: Iterable[str]) -> None:
        """Note that requests have left the engine, complete or not. Those that are not known are left out."""
        for engine_id in engine_ids:
            sequence = self._sequences.pop(engine_id, None)
            if sequence is not None:
                self._end(sequence, self._tick())

    def _tick(self) -> Micros:
        """Return the time. No two calls get the same, so that the order of what happens shows in its times."""
        self._now = max(self._engine.now(), self._now + 1)
        return self._now

    def _new_sequence(self, request: VllmRequest, now: Micros) -> _Sequence:
        index = self._num_arrivals
        self._num_arrivals += 1
        described = self._engine.describe(request, index, now)
        sequence = _Sequence(request, SequenceState(described, index, request.num_tokens, described.priority))
        self._sequences[request.request_id] = sequence
        self._engine_ids[index] = request.request_id
        if self._listener is not None:
            self._listener.on_request(described, request)
        return sequence

    def _put_back(self, sequence: _Sequence) -> None:
        now = self._tick()
        self._stop_running(sequence, now)
        self._enqueue(sequence, now, front=True)

    def _enqueue(self, sequence: _Sequence, now: Micros, *, front: bool) -> None:
        seq, request = sequence.seq, sequence.request
        seq.num_tokens_to_prefill = request.num_prompt_tokens + max(seq.num_output_tokens, request.num_output_tokens)
        seq.num_computed_tokens = 0
        self._waiting[request.request_id] = sequence
        self._queue.add(seq, now, front=front)

    def _stop_running(self, sequence: _Sequence, now: Micros) -> None:
        """Settle what a sequence was given that was popped and runs no more, if it ever ran."""
        seq, request = sequence.seq, sequence.request
        was_prefilling = self._prefilling.pop(request.request_id, None) is not None
        if not (was_prefilling or seq.is_decoding):
            return
        # A token of the step that runs at the moment counts: vLLM delivers it to a request that it preempts meanwhile.
        has_token_to_come = seq.is_decoding and request.num_stale_output_tokens > 0 and not request.drop_stale_output
        seq.is_decoding = False
        seq.num_output_tokens = request.num_output_tokens + has_token_to_come
        self._queue.on_served(seq, 0, max(0, seq.num_output_tokens - seq.num_accounted_output_tokens), now)
        seq.num_accounted_output_tokens = seq.num_output_tokens

    def _count_chunk(self, sequence: _Sequence, tokens: int) -> None:
        """Count a chunk of a prompt that the step computes."""
        seq, request = sequence.seq, sequence.request
        start = request.num_computed_tokens - tokens
        # The first chunk after the arrival begins behind what was in the prefix cache.
        if seq.scheduled_at is None:
            seq.num_cached_tokens = start
        seq.scheduled_at = self._step_at
        self._chunks.append((sequence, min(tokens, request.num_tokens - start)))
        if not request.is_prefill_chunk:
            del self._prefilling[request.request_id]

    def _end(self, sequence: _Sequence, now: Micros) -> None:
        seq, request = sequence.seq, sequence.request
        self.remove_requests([request])
        self._stop_running(sequence, now)
        is_complete = self._engine.is_complete(request)
        if is_complete:
            self._queue.on_finished(seq, now)
        self._queue.on_sequence_end(seq, now)
        del self._engine_ids[seq.request.id]
        if self._listener is not None:
            self._listener.on_end(seq, request, now, is_complete=is_complete)
