"""Continuous batching by BLIS's rules, where they differ from vLLM's.

* One that waits is admitted when its first chunk fits, not its whole prompt.
* A victim starts anew: what it has emitted is lost.
* When the one that needs a block is itself the victim, those admitted after it stand still in this step.
* A prompt that is cached as a whole computes nothing and gets its first token nevertheless.
* The last token of an answer needs a block like the others.
* What a prompt finds in the cache does not count as history of its first chunk: no time is charged for reading it.

Blocks are taken sequence by sequence in the order of admission, since in BLIS's cache it matters who evicts whom first.
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.batching.continuous import ContinuousBatch, Step
from maitred.batching.limits import BatchLimits, Chunk, Victims
from maitred.contracts import BatchShape, WaitQueue
from maitred.kv import BlisBlocks
from maitred.seq import Seq
from maitred.units import Micros


class BlisStep(Step):
    stalled: Sequence[Seq] = ()
    """Who decodes, and stands still in this step."""
    fetching: Micros = 0
    """How much longer it takes because KV blocks are fetched for it; it does not repeat itself then."""


class BlisBatch(ContinuousBatch):
    """The running batch of one instance, as BLIS forms it."""

    __slots__ = ("_memory", "_stalled")

    def __init__(self, limits: BatchLimits, blocks: BlisBlocks, victims: Victims) -> None:
        super().__init__(limits, blocks, victims)
        self._memory = blocks
        self._stalled: list[Seq] = []

    def form(self, waiting: WaitQueue | None, now: Micros, limit: int) -> BlisStep:
        step = self._formed(waiting, now, limit)
        step.fetching = self._memory.charge()
        if step.fetching:
            step.repeat = 1
        return step

    def _formed(self, waiting: WaitQueue | None, now: Micros, limit: int) -> BlisStep:
        memory, open_to = self._memory, None if self.full else waiting
        if open_to is None and not (self._prefilling or memory.restless):
            repeat = memory.steps_free(limit)
            if repeat:
                return BlisStep(repeat)
        step = BlisStep(1)
        budget = self._serve(step)
        if step.preempted or step.stalled:
            return step
        if open_to is not None:
            memory.settle()
            open_to.begin(self, now)
            self._let_in(open_to, step, budget, now)
            if not self.sequences and memory.yield_held():
                self._let_in(open_to, step, budget, now)
            limit = memory.steady(limit)
        if not step.chunks:
            step.repeat = memory.steps_free(limit)
        return step

    def shape(self, step: Step) -> BatchShape:
        decodes, context = self.decodes - len(self._stalled), self.context - sum(map(self._held, self._stalled))
        return BatchShape(decodes, context, step.prefill, tuple(chunk for chunk in step.chunks if chunk.tokens))

    def contexts(self, step: Step) -> list[int]:
        return [self._held(seq) for seq in self.sequences.values() if seq.decoding and seq not in self._stalled]

    def run(self, steps: int) -> None:
        super().run(steps)
        for seq in self._stalled:
            seq.origin += 1
            self.context -= 1
            self._memory.join(self._own(seq))
        self._stalled = []
        self._memory.over((seq, self._own(seq) + seq.pending) for seq in self.sequences.values())

    def finish(self, seq: Seq) -> None:
        self._memory.open_for(seq, self._own(seq))
        self.drop(seq)

    def _serve(self, step: BlisStep) -> int:
        """Those that run take their tokens and blocks in turn; what whoever is preempted had serves those after it. Returns
        what is left of the token budget."""
        order, served, budget = list(self.sequences.values()), 0, self._limits.max_num_batched_tokens
        given: dict[Seq, Chunk | None] = {}
        preempted: list[Seq] = []
        while served < len(order) and budget > 0:
            seq = order[served]
            chunk = None if seq.decoding else self._chunk(seq, budget)
            while seq not in preempted and not self._give(seq, chunk):
                if len(order) == 1 and self._memory.relieved():
                    continue
                place = self._victims.choose(order)
                victim = order.pop(place)
                if victim in given:
                    budget += _tokens(given.pop(victim))
                    served -= 1
                preempted.append(self._preempt(victim))
            if seq in preempted:
                break
            given[seq] = chunk
            budget -= _tokens(chunk)
            served += 1
        self._hold(order[served:])
        step.chunks = [chunk for chunk in given.values() if chunk is not None]
        step.prefill = sum(chunk.tokens for chunk in step.chunks)
        step.preempted, step.stalled = preempted, self._stalled
        return budget

    def _chunk(self, seq: Seq, budget: int) -> Chunk:
        return Chunk(min(seq.target - seq.computed, self._chunk_limit, budget), seq.computed, seq.target, seq)

    def _give(self, seq: Seq, chunk: Chunk | None) -> bool:
        """Its blocks for this step, if they are free."""
        if chunk is None:
            return self._memory.open_for(seq, self._own(seq))
        given = self._memory.grow(seq, chunk.start, chunk.tokens)
        if given:
            seq.pending = chunk.tokens
        return given

    def _hold(self, seqs: list[Seq]) -> None:
        """They get nothing in this step."""
        self._stalled = [seq for seq in seqs if seq.decoding]
        for seq in self._stalled:
            self._memory.hold(self._own(seq))

    def _let_in(self, waiting: WaitQueue, step: BlisStep, budget: int, now: Micros) -> None:
        chunks = list(step.chunks)
        while budget > 0 and not self.full and (seq := waiting.peek()) is not None:
            found = self._memory.find(seq)
            tokens = min(seq.target - found.tokens, self._chunk_limit, budget)
            if not self._memory.enter(seq, found, tokens):
                break
            waiting.pop()
            self._enter(seq, found.tokens, tokens, now)
            chunks.append(Chunk(tokens, 0, seq.target, seq))
            budget -= tokens
            step.prefill += tokens
        step.chunks = chunks

    def _decode(self, seq: Seq) -> None:
        super()._decode(seq)
        if seq.borrowed:
            self._memory.hold(seq.computed)
            self._memory.join(self._own(seq))

    def _own(self, seq: Seq) -> int:
        """Tokens of KV for which `seq` has blocks of its own."""
        return self._held(seq) - seq.borrowed

    def _preempt(self, seq: Seq) -> Seq:
        super()._preempt(seq)
        seq.target = seq.request.prompt_tokens
        seq.borrowed = 0
        return seq


def _tokens(chunk: Chunk | None) -> int:
    """What one that runs takes of the token budget."""
    return 1 if chunk is None else chunk.tokens
