"""The batch former alone: what one step holds. Blocks have 10 tokens."""

from __future__ import annotations

from random import Random

import pytest

from maitred.batching import BatchLimits, ContinuousBatch, StepPlan
from maitred.core.contracts import WaitQueue
from maitred.core.errors import InvariantError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.kv import BlockManager
from maitred.queueing import SCHEDULERS


class SteppedBatch:
    """A batch with its blocks and a wait queue, stepped by hand."""

    def __init__(self, *prompts: int, seqs: int = 8, budget: int = 100, threshold: int = 0, blocks: int = 100) -> None:
        self.blocks = BlockManager(blocks, 10)
        self.batch = ContinuousBatch(BatchLimits(seqs, budget, threshold), self.blocks)
        self.waiting: WaitQueue = SCHEDULERS.get("fcfs")().make_queue(None, Random(0))
        for prompt in prompts:
            self.add(prompt)

    def add(self, prompt: int) -> None:
        order = len(self.waiting) + self.batch.running
        self.waiting.add(SequenceState(Request(id=order, arrival=0, prompt_tokens=prompt), order, prompt), now=0)

    def form(self, limit: int = 1000) -> StepPlan:
        step = self.batch.schedule(self.waiting if len(self.waiting) else None, 0, limit)
        for seq in step.preempted:
            self.waiting.add(seq, now=0, front=True)
        self.batch.check()
        return step

    def step(self) -> list[tuple[int, int]]:
        """Plan a step and run it once. Return (arrival index, tokens) of its chunks."""
        formed = self.form()
        self.batch.run(formed, 1)
        chunks = [(chunk.seq.arrival_index, chunk.num_tokens) for chunk in formed.chunks]
        self.batch.complete_chunks(formed)
        self.batch.check()
        return chunks


def test_the_budget_is_spent_on_decodes_first_then_chunks_in_order_then_newcomers() -> None:
    stepped = SteppedBatch(30, 90, 50, budget=100)
    assert stepped.step() == [(0, 30), (1, 70)]
    assert stepped.step() == [(1, 20), (2, 50)]  # one token for 0, which decodes; 29 are left over
    assert stepped.step() == []
    assert stepped.batch.num_decodes == 3
    assert stepped.batch.context_tokens == 32 + 91 + 51


def test_the_shape_of_a_step_says_what_it_costs() -> None:
    stepped = SteppedBatch(30, 90, budget=100)
    stepped.step()
    step = stepped.form()
    shape = stepped.batch.batch_shape(step)
    assert (shape.num_decodes, shape.context_tokens, shape.prefill_tokens) == (1, 30, 20)
    assert [(chunk.num_tokens, chunk.num_computed_tokens, chunk.total_tokens) for chunk in shape.chunks] == [(20, 70, 90)]


def test_a_step_without_chunks_may_run_until_the_blocks_run_out() -> None:
    stepped = SteppedBatch(10, 10, blocks=6)
    stepped.step()
    assert stepped.form().max_repeats == 20  # two blocks held; four free, two sequences: two more blocks each
    assert stepped.form(limit=7).max_repeats == 7


def test_a_step_with_a_victim_runs_once_and_admits_no_sequence() -> None:
    stepped = SteppedBatch(10, 10, 5, blocks=3)  # the third waits for a block
    assert stepped.step() == [(0, 10), (1, 10), (2, 5)]
    step = stepped.form()  # 0 and 1 both need a block and none is free: 2 goes, then 0 has its own; 1 goes as well
    assert [seq.arrival_index for seq in step.preempted] == [2, 1]
    assert (step.max_repeats, list(step.chunks)) == (1, [])
    head = stepped.waiting.peek()
    assert head is not None
    assert (
        head.arrival_index,
        head.num_tokens_to_prefill,
        head.num_output_tokens,
        head.num_computed_tokens,
        head.num_preemptions,
    ) == (1, 11, 1, 0, 1)


def test_a_chunk_in_progress_holds_its_blocks_and_gives_them_back() -> None:
    stepped = SteppedBatch(95, budget=50)
    step = stepped.form()
    assert stepped.blocks.free == 95
    stepped.batch.remove(step.chunks[0].seq)
    assert stepped.blocks.free == 100
    stepped.batch.run(step, 1)
    assert stepped.batch.complete_chunks(step) == []
    stepped.batch.check()


def test_books_that_do_not_balance_are_reported() -> None:
    stepped = SteppedBatch(10)
    stepped.step()
    stepped.batch.context_tokens += 1
    with pytest.raises(InvariantError, match="1 decodes over 11 tokens"):
        stepped.batch.check()
