"""Continuous batching, as vLLM forms its steps.

    1. Running sequences first, in the order in which they were admitted: one token each that decodes, a chunk each that
       prefills, at most `long_prefill_token_threshold`, as far as the token budget goes.
    2. If their KV blocks do not all fit, a victim is preempted, usually the last admitted: it loses its KV, keeps the tokens
       it has emitted, and goes back to the front of the wait queue. Then nobody is admitted in this step.
    3. Otherwise the wait queue is admitted, head first, until the budget, the sequence limit or the blocks are used up. One
       that does not fit blocks those behind it; it is admitted only when its whole prompt fits.

A step without chunks or victims repeats itself until a sequence ends, one arrives or the blocks run out, so `Step.repeat`
says how often it may run. Sequences that decode are never touched on the way: their number and their context are kept as
sums, and each one's progress follows from the step counter (`Seq.origin`). Every decoding sequence finds room in every step:
it was admitted when the budget held it beside all before it, and what those take never grows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from maitred.batching.limits import BatchLimits, Chunk, Victims
from maitred.contracts import BatchShape, WaitQueue
from maitred.errors import InvariantError
from maitred.kv import NOTHING, BlockCounts, PrefixedBlocks
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros


class Step:
    """What one step does: a token for every decoding sequence, and these chunks. It may run `repeat` times unchanged."""

    preempted: Sequence[Seq] = ()

    def __init__(self, repeat: int, chunks: Sequence[Chunk] = (), prefill: int = 0) -> None:
        """`prefill`: tokens of the chunks, summed."""
        self.repeat = repeat
        self.chunks = chunks
        self.prefill = prefill


class ContinuousBatch:
    """The running batch of one instance. It is the `StepView` of the step about to be formed."""

    __slots__ = (
        "_blocks",
        "_chunk_limit",
        "_entered",
        "_limits",
        "_prefilling",
        "_prefixed",
        "_victims",
        "context",
        "decodes",
        "leaving",
        "number",
        "resuming",
        "sequences",
    )

    def __init__(self, limits: BatchLimits, blocks: BlockCounts, victims: Victims = Victims.NEWEST) -> None:
        self._limits = limits
        self._victims = victims
        self._entered = 0
        self._chunk_limit = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        self._blocks = blocks
        self._prefixed = blocks if isinstance(blocks, PrefixedBlocks) else None
        self.sequences: dict[RequestId, Seq] = {}
        """In order of admission."""
        self.leaving = 0
        """Slots of sequences that have ended and that are not free yet, if the next step is planned while they run."""
        self._prefilling: list[Seq] = []
        self.resuming = 0
        """Sequences that enter in this step with their KV from elsewhere: each has one token to compute, as if it decoded."""
        self.number = 0
        self.decodes = 0
        self.context = 0
        """Tokens of KV that the decoding sequences hold together."""

    @property
    def running(self) -> int:
        return len(self.sequences)

    @property
    def free_blocks(self) -> int:
        return self._blocks.free

    def running_routing_keys(self) -> Mapping[str, int]:
        return Counter(seq.request.routing_key for seq in self.sequences.values() if seq.request.routing_key)

    @property
    def full(self) -> bool:
        """Nobody can be admitted, whoever comes."""
        return len(self.sequences) + self.leaving >= self._limits.max_num_seqs

    def emitted(self, seq: Seq) -> int:
        """Tokens that `seq` has emitted by now."""
        return self.number - seq.origin if seq.decoding else seq.emitted

    def form(self, waiting: WaitQueue | None, now: Micros, limit: int) -> Step:
        """The step that begins at `now`, to be repeated at most `limit` times. `waiting`: None when nobody waits.

        Takes the blocks of its chunks; those of the decodes are taken as the step runs. Who is preempted has left the batch,
        and is the caller's to put back into the wait queue.
        """
        blocks, self.resuming = self._blocks, 0
        open_to = None if waiting is None or self.full else waiting
        if open_to is None and not self._prefilling:
            repeat = blocks.steps_free(limit)
            return Step(repeat) if repeat else self._make_room(())
        budget = room = self._limits.max_num_batched_tokens - self.decodes
        chunks, needed = self._chunks(budget), 0
        if chunks:
            needed = sum([self._new_blocks(chunk) for chunk in chunks])
            budget -= sum([chunk.tokens for chunk in chunks])
        spare = blocks.free - blocks.opens(1) - needed
        if spare < 0:
            return self._make_room(chunks)
        if chunks:
            self._take(chunks, needed)
        if open_to is not None:
            budget = self._admit(open_to, chunks, spare, budget, now)
        if chunks:
            return Step(1, chunks, room - budget)
        if self._prefixed is not None:  # somebody waits, and finds what he finds now
            limit = self._prefixed.steady(limit)
        return Step(blocks.steps_free(limit))

    def shape(self, step: Step) -> BatchShape:
        """The work of `step`, which has just been formed."""
        if not step.chunks:
            return BatchShape(self.decodes, self.context)
        if not self.resuming:
            return BatchShape(self.decodes, self.context, step.prefill, tuple(step.chunks))
        decode = [chunk for chunk in step.chunks if chunk.start == chunk.seq.carried > 0]
        chunks = tuple(chunk for chunk in step.chunks if chunk not in decode)
        context = self.context + sum(chunk.start for chunk in decode)
        return BatchShape(self.decodes + len(decode), context, step.prefill - len(decode), chunks)

    def contexts(self, step: Step) -> list[int]:
        """Tokens of KV of each sequence that decodes in `step`, in no order."""
        ahead = self.number - 1
        contexts = [seq.request.prompt_tokens - seq.origin + ahead for seq in self.sequences.values() if seq.decoding]
        if self.resuming:
            contexts += [chunk.start for chunk in step.chunks if chunk.start == chunk.seq.carried > 0]
        return contexts

    def run(self, steps: int) -> None:
        """`steps` steps are over, as far as the decoding sequences go."""
        self._blocks.run(steps)
        self.number += steps
        self.context += self.decodes * steps

    def prefilled(self, step: Step) -> list[Seq]:
        """The chunks of `step` are computed. Returns the sequences whose prompt is complete: each has emitted one token
        more and decodes from now on."""
        complete: list[Seq] = []
        for chunk in step.chunks:
            seq = chunk.seq
            if seq.request.id not in self.sequences:
                continue
            seq.computed += chunk.tokens
            seq.pending = 0
            if seq.computed == seq.target:
                self._prefilling.remove(seq)
                self._decode(seq)
                complete.append(seq)
        return complete

    def finish(self, seq: Seq) -> None:
        """`seq`, which is complete, leaves the batch."""
        self.drop(seq)

    def drop(self, seq: Seq) -> None:
        """`seq` leaves the batch, finished or not: its blocks are free, its progress is settled."""
        del self.sequences[seq.request.id]
        if not seq.decoding:
            self._prefilling.remove(seq)
            self._blocks.give_back(seq, seq.computed + seq.pending)
            return
        seq.decoding = False
        seq.emitted = emitted = self.number - seq.origin
        seq.computed = held = seq.request.prompt_tokens + emitted - 1
        self.decodes -= 1
        self.context -= held
        self._blocks.leave(seq, held - seq.borrowed)

    def check(self) -> None:
        """Raises InvariantError if the sums do not follow from the sequences."""
        held = {seq: self._held(seq) for seq in self.sequences.values()}
        self._blocks.check(sum(self._blocks.blocks(tokens + seq.pending - seq.borrowed) for seq, tokens in held.items()))
        decoding = [seq for seq in held if seq.decoding]
        if len(decoding) != self.decodes or sum(held[seq] for seq in decoding) != self.context:
            raise InvariantError(f"{self.decodes} decodes over {self.context} tokens, but {len(decoding)} sequences decode")
        if [seq for seq in held if not seq.decoding] != self._prefilling or len(held) > self._limits.max_num_seqs:
            raise InvariantError("the prefilling sequences are not the running ones that do not decode")

    def _chunks(self, budget: int) -> list[Chunk]:
        """The chunks of the sequences that prefill already, `budget` tokens at most."""
        chunks: list[Chunk] = []
        for seq in self._prefilling:
            tokens = min(seq.target - seq.computed, self._chunk_limit, budget)
            budget -= tokens
            chunks.append(Chunk(tokens, seq.computed, seq.target, seq))
        return chunks

    def _take(self, chunks: list[Chunk], blocks: int) -> None:
        """The running sequences' chunks are in this step, and take `blocks` blocks."""
        self._blocks.take(blocks)
        for chunk in chunks:
            chunk.seq.pending = chunk.tokens
            if self._prefixed is not None:
                self._prefixed.fill(chunk.seq, chunk.start + chunk.tokens)

    def _admit(self, waiting: WaitQueue, chunks: list[Chunk], spare: int, budget: int, now: Micros) -> int:
        """Adds a chunk for each sequence that enters the batch, within `spare` blocks and `budget` tokens. Returns what is left
        of the budget."""
        sequences, size, prefixed = self.sequences, self._blocks.block_size, self._prefixed
        most = self._limits.max_num_seqs - self.leaving
        if prefixed is not None:
            prefixed.open_next()
            prefixed.settle()
        waiting.begin(self, now)
        while budget > 0 and len(sequences) < most:
            seq = waiting.peek()
            if seq is None:
                break
            found = NOTHING if prefixed is None else prefixed.find(seq)
            if seq.target - found.tokens > (spare - found.idle) * size:
                break
            waiting.pop()
            start = found.tokens
            if seq.carried:
                start = seq.carried
                self.resuming += 1
            tokens = min(seq.target - start, self._chunk_limit, budget)
            taken = -(-(start + tokens - found.tokens) // size)
            if prefixed is not None:
                prefixed.admit(seq, found)
            self._blocks.take(taken)
            if prefixed is not None:
                prefixed.fill(seq, start + tokens)
            spare -= found.idle + taken
            budget -= tokens
            self._enter(seq, start, tokens, now)
            chunks.append(Chunk(tokens, start, seq.target, seq))
        return budget

    def _enter(self, seq: Seq, computed: int, pending: int, now: Micros) -> None:
        seq.computed, seq.pending = computed, pending
        if seq.lost:
            seq.wasted += max(0, seq.lost - computed)
            seq.lost = 0
        seq.scheduled_at = now
        seq.entered = self._entered
        self._entered += 1
        self.sequences[seq.request.id] = seq
        self._prefilling.append(seq)

    def _make_room(self, chunks: Sequence[Chunk]) -> Step:
        """Running sequences take their blocks in order, for their token or their chunk of `chunks`; while one finds none, a
        victim is preempted."""
        order = list(self.sequences.values())
        ready = {chunk.seq: chunk for chunk in chunks}
        needs = {seq: self._new_blocks(ready[seq]) if seq in ready else self._opens(seq) for seq in order}
        spare, preempted, served = self._blocks.free, [], 0
        while served < len(order):
            seq = order[served]
            while needs[seq] > spare:
                place = self._victims.choose(order)
                victim = order.pop(place)
                free = self._blocks.free
                preempted.append(self._preempt(victim))
                spare += self._blocks.free - free
                if place < served:
                    served -= 1
                    spare += needs[victim]
                if victim is seq:
                    break
            else:
                spare -= needs[seq]
                served += 1
        left = [ready[seq] for seq in self._prefilling]
        self._take(left, sum(self._new_blocks(chunk) for chunk in left))
        step = Step(1, left, sum(chunk.tokens for chunk in left))
        step.preempted = preempted
        return step

    def _opens(self, seq: Seq) -> int:
        """Blocks that `seq`, which decodes, opens in the next step."""
        return int(self._held(seq) % self._blocks.block_size == 0)

    def _preempt(self, seq: Seq) -> Seq:
        """It loses its KV, and will compute it again with the tokens it has emitted."""
        if self._prefixed is not None:
            self._prefixed.returns(seq)
        self.drop(seq)
        seq.target = seq.request.prompt_tokens + seq.emitted
        seq.lost, seq.computed, seq.carried = seq.computed, 0, 0
        seq.preemptions += 1
        return seq

    def _new_blocks(self, chunk: Chunk) -> int:
        return self._blocks.blocks(chunk.start + chunk.tokens) - self._blocks.blocks(chunk.start)

    def _held(self, seq: Seq) -> int:
        """Tokens of KV that `seq` holds."""
        return seq.request.prompt_tokens + self.number - seq.origin - 1 if seq.decoding else seq.computed

    def _decode(self, seq: Seq) -> None:
        seq.decoding = True
        seq.origin = self.number - seq.emitted - 1
        self.decodes += 1
        self.context += seq.computed
        self._blocks.join(seq.computed)
