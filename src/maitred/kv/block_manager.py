"""The KV blocks of one instance: how many are free, now and after k more steps.

`BlockManager` counts blocks that have no content, so those of a sequence are free when it leaves. A decoding sequence adds one
token in each step, so it opens a block every `block_size` steps, always at the same phase of the step counter. It is enough to
know how many sequences open a block at each phase:

    decode_blocks(k) = (k div size) * decodes + sum(openings[phase ... phase + k mod size])

Decode steps cost O(block_size) that way, however many there are and however many sequences they serve, and the last step that
still finds its blocks is found without making the steps before. What steps have opened is counted when somebody asks how many
blocks are free: mostly a bound says that there is room (`has_room`).

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

    __slots__ = (
        "_free",
        "_num_decodes",
        "_num_opened",
        "_opened_for",
        "_openings_by_phase",
        "_phase",
        "_uncounted",
        "block_size",
        "total",
    )

    def __init__(self, total: int, block_size: int) -> None:
        """Raises ValueError unless both are at least 1 (`block_size` in tokens)."""
        if total < 1 or block_size < 1:
            raise ValueError("an instance needs at least one block of at least one token")
        self.total = total
        self.block_size = block_size
        self._free = total
        """Free blocks before the uncounted steps; so is the next one, and what is known of each sequence that decodes."""
        self._phase = 0
        self._uncounted = 0
        """Steps that have ended and whose openings are not counted yet; 0 while blocks are open for the next step."""
        self._num_decodes = 0
        self._openings_by_phase = [0] * block_size
        self._num_opened = 0
        """Blocks that decoding sequences have opened for the step about to be planned."""
        self._opened_for: set[RequestId] = set()
        """The sequences that have opened them, if not all that need one have."""

    @property
    def free(self) -> int:
        """Free blocks, without those that have been opened for the step about to be planned."""
        if self._uncounted:
            self._count_steps()
        return self._free

    @free.setter
    def free(self, blocks: int) -> None:
        self._free = blocks

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
        self._free -= blocks

    def has_room(self, blocks: int, steps: int) -> bool:
        """Return whether `blocks` blocks are free beside those that the decoding sequences open in the next `steps` steps."""
        # In `block_size` steps each sequence opens exactly one block, so they open no more than this. Mostly it fits.
        most = self._num_decodes * ((self._uncounted + steps) // self.block_size + 1)
        return blocks + most <= self._free or blocks <= self.free - self.decode_blocks(steps)

    def start_decode(self, tokens: int) -> None:
        """Count a sequence that holds `tokens` tokens among those that decode, from the next step on."""
        self._num_decodes += 1
        tokens_before = tokens - self._uncounted  # as if it had decoded in the uncounted steps
        self._free += -(-tokens // self.block_size) + -tokens_before // self.block_size
        # Phase and tokens grow together, so the sequence is found at the same index when it leaves.
        self._openings_by_phase[(self._phase - tokens_before) % self.block_size] += 1

    def open_block(self, seq: SequenceState) -> None:
        """Take the block that `seq`, which decodes, opens in the step about to be planned. Call it for all sequences that open
        one in that step, or for none: then `run_steps` takes them all."""
        if self._uncounted:
            self._count_steps()
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
        tokens_before = tokens - self._uncounted
        self._free += -(-tokens_before // self.block_size)
        if self._num_opened:
            self._free += self._close_block(seq, tokens)
        self._num_decodes -= 1
        self._openings_by_phase[(self._phase - tokens_before) % self.block_size] -= 1

    def release_prefilling(self, seq: SequenceState, tokens: int) -> None:
        """Free the blocks of `seq`, which does not decode: `tokens` tokens' worth."""
        self._free += -(-tokens // self.block_size)

    def release_reserved(self, seq: SequenceState, computed: int, reserved: int) -> None:
        """Free the blocks of `seq`, which does not decode: `reserved` tokens' worth, of which `computed` have content."""
        self._free += -(-reserved // self.block_size)

    def stop_decode(self, tokens: int) -> None:
        """Count a sequence that decodes and holds `tokens` tokens no longer among those that do, until `start_decode`."""
        self._num_decodes -= 1
        tokens_before = tokens - self._uncounted
        self._free -= -(-tokens // self.block_size) + -tokens_before // self.block_size
        self._openings_by_phase[(self._phase - tokens_before) % self.block_size] -= 1

    def blocks_of_decodes(self, tokens: int) -> int:
        """Return the number of blocks of the sequences that decode, which hold `tokens` tokens together."""
        if self._uncounted:
            self._count_steps()
        size, phase = self.block_size, self._phase
        # A sequence found at index i has (i - phase) mod size places left in its last block.
        places = sum([count * ((index - phase) % size) for index, count in enumerate(self._openings_by_phase) if count])
        return (tokens + places) // size

    def decode_blocks(self, steps: int) -> int:
        """Return how many blocks the decoding sequences open in the next `steps` steps."""
        if self._uncounted:
            self._count_steps()
        return self._openings_within(steps)

    def _openings_within(self, steps: int) -> int:
        """Return how many blocks the decoding sequences open in the `steps` steps after those that are counted."""
        size, phase = self.block_size, self._phase
        if steps == 1:
            return self._openings_by_phase[phase]
        end = phase + steps % size
        if end <= size:
            opened = sum(self._openings_by_phase[phase:end])
        else:  # all but those of the phases that remain
            opened = self._num_decodes - sum(self._openings_by_phase[end - size : phase])
        return opened if steps < size else opened + steps // size * self._num_decodes

    def run_steps(self, steps: int) -> None:
        """Make `steps` steps: the decoding sequences take the blocks that they open."""
        self._uncounted += steps
        if self._num_opened:
            self._count_steps()

    def _count_steps(self) -> int:
        """Count the blocks that the uncounted steps have opened. Return how many these are, without those that had been taken
        already."""
        steps = self._uncounted
        opened = self._openings_within(steps) - self._num_opened
        self._phase, self._uncounted = (self._phase + steps) % self.block_size, 0
        if self._num_opened:
            self._num_opened = 0
            self._opened_for.clear()
        self._free -= opened
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
