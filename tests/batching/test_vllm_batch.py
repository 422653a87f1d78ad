"""The rules of vLLM's scheduler, each in a batch of its own with numbers worked out by hand. Blocks have 10 tokens."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from maitred.batching import BatchLimits, ContinuousBatch, PreemptionPolicy, StepPlan
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.kv import BlockManager
from maitred.queueing import SCHEDULERS


class Stepped:
    """A batch with its blocks and a wait queue, stepped by hand. Requests have the numbers 0, 1, 2, ..."""

    def __init__(
        self, *prompts: int, blocks: int = 100, policy: PreemptionPolicy = PreemptionPolicy.LAST_ADMITTED, **limits: Any
    ) -> None:
        whole = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "long_prefill_token_threshold": 0, **limits}
        self.blocks = BlockManager(blocks, 10)
        self.batch = ContinuousBatch(BatchLimits(**whole), self.blocks, policy)
        self.waiting = SCHEDULERS.get("fcfs")().make_queue(None, Random(0))
        self.number = 0
        for prompt in prompts:
            self.add(prompt)

    def add(self, prompt: int, priority: float = 0.0) -> None:
        request = Request(id=self.number, arrival=self.number, prompt_tokens=prompt, priority=priority)
        self.waiting.add(SequenceState(request, self.number, prompt), now=0)
        self.number += 1

    def step(self) -> StepPlan:
        """Plan a step and run it once."""
        plan = self.batch.schedule(self.waiting if len(self.waiting) else None, 0, 1000)
        for seq in plan.preempted:
            self.waiting.add(seq, now=0, front=True)
        self.batch.check()
        self.batch.run(plan, 1)
        self.batch.complete_chunks(plan)
        self.batch.check()
        return plan

    def chunks(self) -> list[tuple[int, int]]:
        """Make a step, and return (request, tokens) of its chunks."""
        return [(chunk.seq.request.id, chunk.num_tokens) for chunk in self.step().chunks]


def test_the_threshold_does_not_hold_for_the_only_request() -> None:
    stepped = Stepped(90, long_prefill_token_threshold=20)
    assert stepped.chunks() == [(0, 90)]


def test_a_request_that_waits_makes_the_threshold_hold() -> None:
    stepped = Stepped(90, 90, long_prefill_token_threshold=20, max_num_seqs=1)
    assert stepped.chunks() == [(0, 20)]


@pytest.mark.parametrize(("requests", "tokens"), [(2, 50), (3, 33), (6, 20)])
def test_an_adaptive_threshold_is_at_least_an_equal_share_of_the_budget(requests: int, tokens: int) -> None:
    limits = {"long_prefill_token_threshold": 20, "long_prefill_token_threshold_adaptive": True}
    assert Stepped(*[90] * requests, **limits).chunks()[0] == (0, tokens)


def test_a_chunk_has_a_limit_that_holds_for_the_only_request_too() -> None:
    assert Stepped(90, max_chunk_tokens=40).chunks() == [(0, 40)]
    assert Stepped(90, 90, max_chunk_tokens=40, long_prefill_token_threshold=60).chunks() == [(0, 40), (1, 40)]


def test_without_chunked_prefill_a_prompt_waits_until_the_budget_holds_it() -> None:
    stepped = Stepped(70, 60, 20, enable_chunked_prefill=False)
    assert stepped.chunks() == [(0, 70)]  # 30 tokens are left: not enough for 1, which keeps 2 waiting, too
    assert stepped.chunks() == [(1, 60), (2, 20)]


def test_without_full_isl_a_first_chunk_that_fits_is_admitted() -> None:
    assert Stepped(30, 90, blocks=8).chunks() == [(0, 30)]  # 5 blocks are left, and the second prompt needs 9
    stepped = Stepped(30, 90, blocks=8, scheduler_reserve_full_isl=False, long_prefill_token_threshold=40)
    assert stepped.chunks() == [(0, 30), (1, 40)]


def test_the_watermark_stays_free_beside_others_and_not_in_an_empty_instance() -> None:
    stepped = Stepped(40, 40, blocks=10, watermark_blocks=3)
    assert stepped.chunks() == [(0, 40)]  # 6 blocks are left; 4 + 3 do not fit
    assert Stepped(90, blocks=10, watermark_blocks=3).chunks() == [(0, 90)]
    assert Stepped(30, 30, blocks=10, watermark_blocks=3).chunks() == [(0, 30), (1, 30)]


def test_the_least_urgent_is_the_victim_and_what_it_was_to_do_is_free_for_others() -> None:
    stepped = Stepped(blocks=7, policy=PreemptionPolicy.LEAST_URGENT_CLIENT)
    for prompt, priority in ((20, 0), (20, 2), (20, 1)):
        stepped.add(prompt, priority)
    assert stepped.chunks() == [(0, 20), (1, 20), (2, 20)]
    # Each needs a third block, and one is free: request 0 takes it. Request 1 needs one, and 0 gives way, the block included.
    plan = stepped.step()
    assert [seq.request.id for seq in plan.preempted] == [0]
    assert stepped.batch.num_decodes == 2
    assert stepped.blocks.free == 1


def test_the_tokens_of_a_victim_are_for_the_prompts_behind_it() -> None:
    stepped = Stepped(
        blocks=16, policy=PreemptionPolicy.LEAST_URGENT_CLIENT, max_num_batched_tokens=50, scheduler_reserve_full_isl=False
    )
    for prompt, priority in ((100, 0), (10, 1), (300, 1)):
        stepped.add(prompt, priority)
    assert [stepped.chunks() for _ in range(3)] == [[(0, 50)], [(0, 50)], [(1, 10), (2, 39)]]
    # All 16 blocks are taken. 0 has had its token when 1 needs a block, and gives way: 50 - 1 tokens are left for 2.
    assert stepped.chunks() == [(2, 49)]


def test_those_behind_the_one_that_gives_way_to_itself_stand_still() -> None:
    stepped = Stepped(blocks=6, policy=PreemptionPolicy.LEAST_URGENT_CLIENT)
    for prompt, priority in ((20, 1), (20, 0), (20, 2)):
        stepped.add(prompt, priority)
    stepped.step()
    # No block is free. 0 needs one: 1 gives way, and 0 takes one of its blocks. The other one is for 2.
    assert [seq.request.id for seq in stepped.step().preempted] == [1]

    stepped = Stepped(blocks=6, policy=PreemptionPolicy.LEAST_URGENT_CLIENT)
    for prompt, priority in ((20, 0), (20, 1), (20, 2)):
        stepped.add(prompt, priority)
    stepped.step()
    plan = stepped.step()
    assert [seq.request.id for seq in plan.preempted] == [0]
    assert stepped.batch.step_index == 2
    assert [stepped.batch.num_output_tokens(seq) for seq in stepped.batch.sequences.values()] == [1, 1]
    stepped.step()
    assert [stepped.batch.num_output_tokens(seq) for seq in stepped.batch.sequences.values()] == [2, 2]


def test_in_033_those_behind_the_one_that_gives_way_to_itself_go_on() -> None:
    stepped = Stepped(blocks=6, policy=PreemptionPolicy.LEAST_URGENT_CLIENT, goes_on_after_own_preemption=True)
    for prompt, priority in ((20, 0), (20, 1), (20, 2)):
        stepped.add(prompt, priority)
    stepped.step()
    # No block is free. 0 needs one, and gives way itself: of its two blocks 1 and 2 take one each.
    assert [seq.request.id for seq in stepped.step().preempted] == [0]
    assert [stepped.batch.num_output_tokens(seq) for seq in stepped.batch.sequences.values()] == [2, 2]
    assert stepped.blocks.free == 0


def test_prefill_is_held_back_until_the_interval_is_over() -> None:
    stepped = Stepped(30, prefill_schedule_interval=4)
    assert stepped.chunks() == [(0, 30)]
    stepped.add(20)
    assert [stepped.chunks() for _ in range(4)] == [[], [], [], [(1, 20)]]
    assert [stepped.batch.num_output_tokens(seq) for seq in stepped.batch.sequences.values()] == [5, 1]


def test_a_prompt_that_is_half_computed_is_held_back_too() -> None:
    stepped = Stepped(30, prefill_schedule_interval=3, max_num_batched_tokens=50)
    stepped.chunks()
    stepped.add(80)
    # The step that admits it leaves nothing waiting, so the rest of the prompt waits for the next one.
    assert [stepped.chunks() for _ in range(6)] == [[], [], [(1, 49)], [], [], [(1, 31)]]


def test_nothing_is_held_back_where_nothing_decodes() -> None:
    stepped = Stepped(120, prefill_schedule_interval=5)
    assert [stepped.chunks() for _ in range(2)] == [[(0, 100)], [(0, 20)]]


def test_a_backlog_ends_the_interval() -> None:
    stepped = Stepped(60, 60, 60, prefill_schedule_interval=5)
    # The first step leaves request 2 waiting, so the next one admits, too; then the queue is empty.
    assert [stepped.chunks() for _ in range(2)] == [[(0, 60), (1, 40)], [(1, 20), (2, 60)]]
    stepped.add(10)
    assert stepped.chunks() == []


def test_of_equals_the_last_to_arrive_gives_way_and_of_those_the_first_admitted() -> None:
    def running(*urgencies: tuple[float, int]) -> list[SequenceState]:
        requests = [
            Request(id=n, arrival=arrival, prompt_tokens=1, priority=priority)
            for n, (priority, arrival) in enumerate(urgencies)
        ]
        return [SequenceState(request, 0, 1) for request in requests]

    victims = PreemptionPolicy.LEAST_URGENT_CLIENT
    assert victims.choose_victim(running((1, 5), (0, 3), (0, 4))) == 2
    assert victims.choose_victim(running((1, 5), (0, 4), (0, 4))) == 1
