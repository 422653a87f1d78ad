"""SGLangBatch: the steps of an instance by SGLang's rules.

    1. Prefill goes first. If the pass (`prefill_pass`) finds a batch, the step computes it, and the running sequences stand
       still (`StepPlan.holds_decodes`); in a mixed batch they decode in it, if their blocks are free.
    2. Otherwise the running sequences decode. If their blocks are not free, some are retracted first (`retraction`): they
       lose their KV, keep their tokens, and go to the end of the queue.

At most one sequence is chunked, and goes on in the next step of prefill. What a step has computed is published in the prefix
cache when it has ended, so two prompts of one step share only what was cached before. Once a sequence finds no memory or no
slot, the queue is left alone until a sequence leaves (`is_full`).

So with an empty queue or a full batch nothing but decode steps follow each other, and such a run is one plan, however long the
answers are. While sequences stand still their counter, `step_index`, stands still too, and nothing about them changes.

Two things differ from SGLang. Where it aborts the last running request, or ends with an error because the chunked one finds no
block, running sequences are retracted until there is room: whatever was accepted can be served. And by default its loop plans a
step before it looks at the one before it (overlap), which is not simulated; docs/batching.md says what that changes.

Example: blocks of 16 tokens, 100 of them, a chunk size of 512. One sequence decodes. A prompt of 700 tokens arrives: the next
two steps compute 512 and 188 tokens of it, and then both sequences decode.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from math import ceil

from maitred.batching import BatchLimits, PrefillChunk, RunningBatch, StepPlan
from maitred.compat.sglang.engine_host import DecodingRequests, EngineHost, SGLangRequest
from maitred.compat.sglang.expected_answers import ExpectedAnswers
from maitred.compat.sglang.prefill_pass import PrefillPass
from maitred.compat.sglang.prefill_request import PrefillRequest
from maitred.compat.sglang.retraction import DecodeMemory, retract
from maitred.compat.sglang.rules import SGLangRules
from maitred.core.contracts import BatchShape, WaitQueue
from maitred.core.errors import ConfigError, InvariantError
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv import BlockManager, PrefixBlockManager
from maitred.kv.radix_host_tier import RadixHostTier


class SGLangBatch(RunningBatch):
    """The running batch of one instance, as SGLang plans its steps."""

    follows_limit = False
    requeues_at_front = False
    keeps_notes = True

    __slots__ = (
        "_chunked",
        "_counts_decode_steps",
        "_expected",
        "_holds_decodes",
        "_host",
        "_host_tier",
        "_is_full",
        "_num_deferred",
        "_num_prefill_steps",
        "_num_seen",
        "_polled_at",
        "_rules",
        "_steps_to_poll",
        "_waits_for_slot",
    )

    def __init__(self, limits: BatchLimits, blocks: BlockManager, rules: SGLangRules) -> None:
        super().__init__(limits, blocks)
        self._rules = rules
        self._host = EngineHost(rules, blocks, self._release)
        tier = blocks.host if isinstance(blocks, PrefixBlockManager) else None
        self._host_tier = tier if isinstance(tier, RadixHostTier) else None
        self._expected = ExpectedAnswers(rules.passes.limits.clip_max_new_tokens)
        self._chunked: SequenceState | None = None
        """The sequence of whose prompt a part is computed."""
        self._is_full = False
        self._holds_decodes = False
        """Whether the step that has been planned is one of prefill alone."""
        self._counts_decode_steps = False
        """Whether it is a decode step that found its blocks, which lets the new-token ratio sink."""
        self._waits_for_slot = False
        """Whether the pass of this step would find nothing again until a sequence leaves or comes."""
        self._num_deferred = 0
        """Decode steps that still come before prefill (`prefill_decode_interval`)."""
        self._num_prefill_steps = 0
        self._polled_at = 0
        """`step_index` of a pass that looked for arrivals: the last one, or one that was a number of intervals before it."""
        self._steps_to_poll = 1
        """Decode steps from the one that is planned to the next such pass."""
        self._num_seen = 0
        """Requests that were in the queue then, and still are; or fewer, as any that is withdrawn counts as one of them."""

    @property
    def is_full(self) -> bool:
        """Whether no sequence is admitted before another leaves, whatever arrives."""
        return self._is_full and not self._rules.passes.preempts and self.num_decodes > 0

    @property
    def num_steps(self) -> int:
        return self.step_index + self._num_prefill_steps

    def schedule(self, waiting: WaitQueue | None, now: Micros, max_repeats: int) -> StepPlan:
        plan = StepPlan(1)
        preempted: list[SequenceState] = []
        plan.preempted = preempted
        self._counts_decode_steps = self._holds_decodes = self._waits_for_slot = False
        if self._rules.options.scheduler_recv_interval > 1:
            self._defer_to_poll(waiting)
        if not self._defers_prefill():
            if self._plan_prefill(plan, waiting, preempted, now):
                return plan
            # If all that ran have given way to a request that still lacked memory, there is more by now.
            if not self.num_decodes and preempted and self._plan_prefill(plan, waiting, preempted, now):
                return plan
        if not self.num_decodes:
            raise self._explain(waiting)
        self._plan_decode(plan, waiting is not None, preempted, now, max_repeats)
        return plan

    def batch_shape(self, plan: StepPlan) -> BatchShape:
        if self._holds_decodes:
            return BatchShape(0, 0, plan.prefill_tokens, tuple(plan.chunks))
        return super().batch_shape(plan)

    def context_lengths(self, plan: StepPlan) -> list[int]:
        return [] if self._holds_decodes else super().context_lengths(plan)

    def run_steps(self, steps: int) -> None:
        if self._holds_decodes:
            self._num_prefill_steps += steps
            return
        super().run_steps(steps)
        if self._counts_decode_steps:
            self._host.new_token_ratio.on_decode_steps(steps)
        self._num_deferred = max(0, self._num_deferred - steps)

    def end_chunks(self, plan: StepPlan, steps: int) -> None:
        super().end_chunks(plan, steps)
        if self._prefix_blocks is not None:
            for chunk in plan.chunks:
                if chunk.seq.request_id in self.sequences:
                    self._prefix_blocks.publish(chunk.seq, chunk.seq.num_computed_tokens)

    def _take_chunk_blocks(self, seq: SequenceState, tokens: int) -> None:
        computed, blocks_for = seq.num_computed_tokens, self._blocks.blocks_for
        self._blocks.reserve(blocks_for(computed + tokens) - blocks_for(computed + seq.num_scheduled_tokens))

    def remove(self, seq: SequenceState) -> None:
        self._is_full = False
        if seq is self._chunked:
            self._chunked = None
        if seq.is_decoding:
            super().remove(seq)
            return
        del self.sequences[seq.request.id]
        self._prefilling.remove(seq)
        computed = seq.num_computed_tokens
        self._blocks.release_reserved(seq, computed, computed + seq.num_scheduled_tokens)

    def forget(self, seq: SequenceState) -> None:
        self._host.forget(seq)

    def on_withdrawn(self) -> None:
        self._num_seen -= self._num_seen > 0

    def on_idle(self) -> None:
        self._host.new_token_ratio.reset()
        self._num_deferred = 0
        self._polled_at = self.step_index  # an idle loop turns so fast that it looks at once

    def check(self) -> None:
        super().check()
        others = [seq for seq in self._prefilling if seq is not self._chunked and not seq.num_scheduled_tokens]
        if others:
            raise InvariantError(f"request {others[0].request.id} has begun and is not the chunked one")
        clip = self._rules.passes.limits.clip_max_new_tokens
        left = sum([min(each.max_new_tokens - each.output_tokens, clip) for each in self._running_requests()])
        if left != self._expected.tokens_left(self.step_index):
            raise InvariantError(f"the running requests may generate {left} tokens yet, and another number is expected")

    def _defers_prefill(self) -> bool:
        return self._num_deferred > 0 and self.num_decodes >= self._rules.options.prefill_decode_interval_min_bs

    def _defer_to_poll(self, waiting: WaitQueue | None) -> None:
        """Let no prompt begin before the next pass that looks for arrivals, unless requests wait that an earlier one has seen
        (then this pass sees all, which is a little too early for the newest)."""
        interval = self._rules.options.scheduler_recv_interval
        since = (self.step_index - self._polled_at) % interval
        self._steps_to_poll = interval - since
        if not since:
            self._num_seen = 0 if waiting is None else len(waiting)
        elif self._chunked is None and not self._num_seen and self._num_deferred < self._steps_to_poll:
            self._num_deferred = self._steps_to_poll

    def _plan_prefill(self, plan: StepPlan, waiting: WaitQueue | None, preempted: list[SequenceState], now: Micros) -> bool:
        """Make `plan` a step of prefill, if there is anything to prefill. Add the sequences that give way to `preempted`.
        Return whether it is one."""
        chunked, host = self._chunked, self._host
        if chunked is not None:
            self._is_full = False  # the chunked sequence has left the batch, for the count
        if (waiting is None or self.is_full) and chunked is None and self._rules.delay is None:
            return False
        running = DecodingRequests(self.num_decodes, self._expected.tokens_left(self.step_index), self._running_requests)
        host.begin_pass(waiting, self, len(running), len(self._prefilling), now)
        this = PrefillPass(self._rules.passes, host, running, self._is_full)
        admitted = this.run(None if chunked is None else self._chunked_request(chunked))
        host.end_pass(len(admitted))
        for victim in this.preempted:
            preempted.append(self._requeued(victim, now))
        self._is_full = this.is_full
        self._waits_for_slot = this.waits_for_slot and self._rules.delay is None
        if not admitted:
            return False
        self._start_chunks(admitted, plan, preempted, now)
        goes_on = None if this.adder is None else this.adder.chunked
        self._chunked = goes_on.seq if isinstance(goes_on, SGLangRequest) else None
        # In a mixed batch the running sequences decode, if their blocks are free.
        mixes = self._rules.passes.mixes and self._blocks.max_steps(1) == 1
        self._holds_decodes = plan.holds_decodes = not mixes
        self._num_deferred = self._rules.options.prefill_decode_interval
        self._polled_at = self.step_index + (not plan.holds_decodes)  # after a step with prompts it looks at once
        self._num_seen = 0
        waits_for_copies = self._host_tier is not None and self._plan_copies(plan, self._host_tier)
        if self._chunked is not None and plan.holds_decodes and len(admitted) == 1 and not waits_for_copies:
            self._repeat_chunk(plan, waiting)
        return True

    def _plan_copies(self, plan: StepPlan, tier: RadixHostTier) -> bool:
        """Add to `plan` the time of what is copied from and to the memory of the host. Return whether it may not be repeated:
        it waits for copies, or the next one may."""
        plan.overlapped_load_time = tier.take_load_time()
        if tier.writes_back:
            assert self._prefix_blocks is not None
            self._prefix_blocks.apply_evictions()
            plan.load_time = tier.take_write_time()
        return tier.writes_back or plan.overlapped_load_time > 0

    def _repeat_chunk(self, plan: StepPlan, waiting: WaitQueue | None) -> None:
        """Let `plan`, which computes a part of one prompt and nothing else, repeat itself while nothing else can be its part.

        Each pass looks at the prompt first. If that takes all tokens of the step again, and is not all that the memory has,
        the queue is only sorted, and nothing but the clock and the cache could tell that it was.
        """
        passes, options, page = self._rules.passes, self._rules.options, self._blocks.block_size
        size = passes.limits.chunked_prefill_size
        others_first = passes.caps_chunks or options.prefill_decode_interval or self._rules.delay is not None
        if plan.prefill_tokens != size or others_first or (waiting is not None and self.announces_steps):
            return
        ratio = 1.0 if options.ignore_eos else self._host.new_token_ratio.value
        free = self._blocks.free * page - page - self._expected.tokens_left(self.step_index) * ratio
        chunk = plan.chunks[0]
        parts = (chunk.total_tokens - chunk.num_computed_tokens - 1) // size  # the last one is not a part: it ends the prompt
        plan.max_repeats = max(1, min(parts, ceil(free / self._blocks.blocks_for(size) / page)))
        plan.is_closed = not self.announces_steps

    def _start_chunks(
        self, admitted: list[PrefillRequest], plan: StepPlan, preempted: list[SequenceState], now: Micros
    ) -> None:
        """Reserve the blocks of `admitted`, and make their chunks those of `plan`."""
        blocks_for, chunks, needed = self._blocks.blocks_for, [], self._host.num_loaded
        for request in admitted:
            assert isinstance(request, SGLangRequest)
            seq, start, tokens = request.seq, request.cached_tokens, request.extend_tokens
            needed += blocks_for(start + tokens) - blocks_for(start)
            chunks.append(PrefillChunk(tokens, start, seq.num_tokens_to_prefill, seq))
            if seq is self._chunked:
                seq.num_scheduled_tokens = tokens
            else:
                self._add_running(seq, start, tokens, now)
        # The pass has counted on memory that can be evicted and on answers that end early; both may have been too much.
        if needed > self._blocks.free and self.num_decodes:
            self._retract(_RoomFor(self._host, self._blocks, needed), preempted, now)
        if needed > self._blocks.free:
            raise self._explain(None)
        self._blocks.reserve(needed)
        plan.chunks, plan.prefill_tokens = chunks, sum([chunk.num_tokens for chunk in chunks])

    def _plan_decode(
        self, plan: StepPlan, has_waiting: bool, preempted: list[SequenceState], now: Micros, max_repeats: int
    ) -> None:
        """Make `plan` a run of decode steps, after the retractions that it needs."""
        repeats = self._blocks.max_steps(max_repeats)
        if not repeats:
            self._retract(_RoomToDecode(self._host, self._blocks), preempted, now)
            return
        self._counts_decode_steps = True
        if preempted:
            return
        if has_waiting and not (self.is_full or self._num_deferred or self._waits_for_slot):
            repeats = 1  # the next step may have a pass that admits
        elif has_waiting and self._waits_for_slot and self._prefix_blocks is not None:
            repeats = self._prefix_blocks.max_unchanged_steps(repeats)  # an eviction may bring another request to the head
        elif self._num_deferred and (has_waiting or self._chunked is not None):
            repeats = min(repeats, self._num_deferred)
        if self._rules.options.scheduler_recv_interval > 1 and (has_waiting or self.is_full):
            repeats = min(repeats, self._steps_to_poll)  # which notes how many it sees
        plan.max_repeats = repeats

    def _retract(self, memory: DecodeMemory, preempted: list[SequenceState], now: Micros) -> None:
        """Retract running sequences until `memory` has room, and add them to `preempted`."""
        by_urgency = self._rules.options.retraction_policy == "priority"
        result = retract(self._running_requests(), memory, by_urgency=by_urgency)
        for victim in [*result.retracted, *result.aborted]:
            preempted.append(self._requeued(victim, now))
        self._host.new_token_ratio.on_retraction([(kept.output_tokens, kept.max_new_tokens) for kept in result.kept])

    def _requeued(self, victim: PrefillRequest, now: Micros) -> SequenceState:
        """Return the sequence of `victim`, which goes back to the queue."""
        assert isinstance(victim, SGLangRequest)
        self._host.requeue(victim, now)
        return victim.seq

    def _release(self, seq: SequenceState) -> None:
        """Take the KV of `seq`, which runs, and publish nothing of it but what was when it began to decode."""
        if self._prefix_blocks is not None:
            self._prefix_blocks.discard(seq, seq.num_tokens_to_prefill)
        self.remove(seq)
        self._note_preemption(seq)

    def _start_decode(self, seq: SequenceState) -> None:
        super()._start_decode(seq)
        self._expected.add(seq.request.id, seq.decode_origin_step + self._host.request_of(seq).max_new_tokens)

    def _stop_decode(self, seq: SequenceState) -> int:
        self._expected.remove(seq.request.id, seq.decode_origin_step + self._host.request_of(seq).max_new_tokens)
        return super()._stop_decode(seq)

    def _running_requests(self) -> list[SGLangRequest]:
        """Return the requests that decode, as of the steps that have ended."""
        running, step = [], self.step_index
        for seq in self.sequences.values():
            if seq.is_decoding:
                request = self._host.request_of(seq)
                request.output_tokens = step - seq.decode_origin_step
                running.append(request)
        return running

    def _chunked_request(self, seq: SequenceState) -> SGLangRequest:
        request = self._host.request_of(seq)
        request.cached_tokens = seq.num_computed_tokens
        return request

    def _explain(self, waiting: WaitQueue | None) -> ConfigError:
        """Return why nothing is scheduled although sequences wait."""
        seq = None if waiting is None else waiting.peek()
        problem = "flavour sglang schedules nothing, and requests wait"
        if seq is not None:
            free = self._blocks.free * self._blocks.block_size
            needs = f"request {seq.request.id} needs {seq.num_tokens_to_prefill} tokens of KV and those of its answer"
            problem = f"{problem}: {needs}, and {free} are free"
        return ConfigError(problem, hint="increase total_kv_blocks")


class _RoomToDecode(DecodeMemory):
    """The blocks that the next token of each running sequence needs."""

    def __init__(self, host: EngineHost, blocks: BlockManager) -> None:
        self._host, self._blocks = host, blocks

    def fits_decode(self) -> bool:
        return self._blocks.max_steps(1) == 1

    def release(self, request: PrefillRequest) -> None:
        self._host.release(request)

    def evict_until_free(self, tokens: int) -> None:
        self._host.evict_until_free(tokens)


class _RoomFor(_RoomToDecode):
    """A number of blocks."""

    def __init__(self, host: EngineHost, blocks: BlockManager, needed: int) -> None:
        super().__init__(host, blocks)
        self._needed = needed

    def fits_decode(self) -> bool:
        return self._needed <= self._blocks.free
