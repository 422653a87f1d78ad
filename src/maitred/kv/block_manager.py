"""The KV blocks of one instance: how many are free, now and after k more steps.

`BlockManager` counts blocks that have no content, so those of a sequence are free when it leaves. A decoding sequence adds one
token in each step, so it opens a block every `block_size` steps, always at the same phase of the step counter. It is enough to
know how many sequences open a block at each phase:

    decode_blocks(k) = (k div size) * decodes + sum(openings[phase ... phase + k mod size])

A run of k decode steps costs O(block_size) that way, however long it is and however many sequences it serves, and the last step
that still finds its blocks is found without making the steps before.

Example, with blocks of 4 tokens at phase 0: a sequence that holds 6 tokens fills its second block with 2 more, and opens its
third one in the step after, at phase (0 - 6) mod 4 = 2. In 7 steps it opens 7 div 4 = 1 block, and one more since phase 2 is
among the 7 mod 4 = 3 phases that remain: those after 2 and 6 steps.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from maitred.core.errors import InvariantError
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState


class BlockManager:
    """The KV blocks of one instance. All counts are blocks unless they say tokens."""

    __slots__ = ("_num_decodes", "_num_opened", "_opened_for", "_openings_by_phase", "_phase", "block_size", "free", "total")

    def __init__(self, total: int, block_size: int) -> None:
        """Raises ValueError unless both are at least 1 (`block_size` in tokens)."""
        if total < 1 or block_size < 1:
            raise ValueError("an instance needs at least one block of at least one token")
        self.total = total
        self.block_size = block_size
        self.free = total
        self._phase = 0
        self._num_decodes = 0
        self._openings_by_phase = [0] * block_size
        self._num_opened = 0
        """Blocks that decoding sequences have opened for the step about to be planned."""
        self._opened_for: set[RequestId] = set()
        """The sequences that have opened them, if not all that need one have."""

    @property
    def free_committed(self) -> int:
        """Free blocks as of the steps that have ended."""
        return self.free + self._num_opened

    @property
    def num_fetched_blocks(self) -> int:
        """Blocks that were fetched from another tier of memory so far."""
        return 0

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def blocks_held(self, seq: SequenceState, tokens: int) -> int:
        """Return the number of blocks of `seq`, which runs and has `tokens` tokens of KV."""
        return self.blocks_for(tokens)

    def reserve(self, blocks: int) -> None:
        """Take `blocks` free blocks."""
        self.free -= blocks

    def start_decode(self, tokens: int) -> None:
        """Count a sequence that holds `tokens` tokens among those that decode, from the next step on."""
        self._num_decodes += 1
        # Phase and tokens grow together, so the sequence is found at the same index when it leaves.
        self._openings_by_phase[(self._phase - tokens) % self.block_size] += 1

    def open_block(self, seq: SequenceState) -> None:
        """Take the block that `seq`, which decodes, opens in the step about to be planned. Call it for all sequences that open
        one in that step, or for none: then `run_steps` takes them all."""
        self.reserve(1)
        self._num_opened += 1
        self._opened_for.add(seq.request_id)

    def _close_block(self, seq: SequenceState, tokens: int) -> int:
        """Return how many blocks are open for the next token of `seq`, which holds `tokens` tokens and leaves: 0 or 1."""
        if self._opened_for:
            opened = int(seq.request_id in self._opened_for)
            self._opened_for.discard(seq.request_id)
        else:
            opened = int(tokens % self.block_size == 0)
        self._num_opened -= opened
        return opened

    def release_decoding(self, seq: SequenceState, tokens: int) -> None:
        """Free the blocks of `seq`, which decodes and holds `tokens` tokens by now. It may leave between the planning of a step
        and its end: a block that was opened for its next token goes with it."""
        self.free += -(-tokens // self.block_size)
        if self._num_opened:
            self.free += self._close_block(seq, tokens)
        self._num_decodes -= 1
        self._openings_by_phase[(self._phase - tokens) % self.block_size] -= 1

    def release_prefilling(self, seq: SequenceState, tokens: int) -> None:
        """Free the blocks of `seq`, which does not decode: `tokens` tokens' worth."""
        self.free += -(-tokens // self.block_size)

    def release_reserved(self, seq: SequenceState, computed: int, reserved: int) -> None:
        """Free the blocks of `seq`, which does not decode: `reserved` tokens' worth, of which `computed` have content."""
        self.free += -(-reserved // self.block_size)

    def stop_decode(self, tokens: int) -> None:
        """Count a sequence that decodes and holds `tokens` tokens no longer among those that do, until `start_decode`."""
        self._num_decodes -= 1
        self._openings_by_phase[(self._phase - tokens) % self.block_size] -= 1

    def blocks_of_decodes(self, tokens: int) -> int:
        """Return the number of blocks of the sequences that decode, which hold `tokens` tokens together."""
        size, phase = self.block_size, self._phase
        # A sequence found at index i has (i - phase) mod size places left in its last block.
        places = sum([count * ((index - phase) % size) for index, count in enumerate(self._openings_by_phase) if count])
        return (tokens + places) // size

    def decode_blocks(self, steps: int) -> int:
        """Return how many blocks the decoding sequences open in the next `steps` steps."""
        size, phase = self.block_size, self._phase
        if steps == 1:
            return self._openings_by_phase[phase]
        end = phase + steps % size
        if end <= size:
            opened = sum(self._openings_by_phase[phase:end])
        else:  # all but those of the phases that remain
            opened = self._num_decodes - sum(self._openings_by_phase[end - size : phase])
        return opened if steps < size else opened + steps // size * self._num_decodes

    def run_steps(self, steps: int) -> int:
        """Make `steps` steps: the decoding sequences take the blocks that they open. Return how many these are, without those
        that have been taken already."""
        openings, size, phase = self._openings_by_phase, self.block_size, self._phase
        if steps == 1:
            opened, end = openings[phase], phase + 1
        else:  # as `decode_blocks`
            end = phase + steps % size
            opened = sum(openings[phase:end]) if end <= size else self._num_decodes - sum(openings[end - size : phase])
            if steps >= size:
                opened += steps // size * self._num_decodes
        self._phase = end if end < size else end - size
        if self._num_opened:
            opened -= self._num_opened
            self._num_opened = 0
            self._opened_for.clear()
        self.free -= opened
        return opened

    def max_steps(self, limit: int) -> int:
        """Return the largest number of steps, at most `limit`, for which the blocks are free now."""
        free = self.free + self._num_opened
        # In `block_size` steps each sequence opens exactly one block, so this is the most that `limit` steps can open. Mostly
        # it fits.
        if self._num_decodes * -(-limit // self.block_size) <= free:
            return limit
        return self.max_steps_with(free, limit)

    def max_steps_with(self, free: int, limit: int) -> int:
        """Return the largest number of steps, at most `limit`, that open no more than `free` blocks."""
        size, decodes = self.block_size, self._num_decodes
        if decodes * -(-limit // size) <= free:
            return limit
        cycles, left = divmod(free, decodes)
        # After the cycles that fit as a whole fewer blocks are left than sequences decode, so the loop ends within a cycle.
        steps = cycles * size
        while steps < limit:
            left -= self._openings_by_phase[(self._phase + steps) % size]
            if left < 0:
                break
            steps += 1
        return steps

    def check(self, held: int) -> None:
        """Raise InvariantError unless `held`, the blocks that the sequences hold, and the free ones are all there are."""
        if held + self._num_opened + self.free != self.total or self.free < 0:
            raise InvariantError(f"KV blocks: {held} held + {self._num_opened} open + {self.free} free != {self.total}")
        openings = self._openings_by_phase
        if sum(openings) != self._num_decodes or min(openings) < 0:
            raise InvariantError(f"KV blocks: {openings} open, {self._num_decodes} sequences decode")
