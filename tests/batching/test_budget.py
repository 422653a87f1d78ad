"""How the token budget is shared among chunks of several steps. Blocks of 10 tokens."""

from __future__ import annotations

from random import Random

from maitred.batching import BatchLimits, ContinuousBatch
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.kv import BlockManager
from maitred.queueing import SCHEDULERS


def test_what_prefills_already_shares_what_the_decodes_and_those_before_it_leave() -> None:
    batch = ContinuousBatch(BatchLimits(8, 30, 20), BlockManager(100, 10))
    waiting = SCHEDULERS.get("fcfs")().make_queue(None, Random(0))
    for order, prompt in enumerate((5, 100, 100)):
        waiting.add(SequenceState(Request(id=order, arrival=0, prompt_tokens=prompt), order, prompt), now=0)
    chunks = []
    for _ in range(3):
        step = batch.schedule(waiting if len(waiting) else None, 0, 1)
        batch.run(step, 1)
        batch.complete_chunks(step)
        batch.check()
        chunks.append([(chunk.seq.arrival_index, chunk.num_tokens) for chunk in step.chunks])
    # a chunk is 20 at most, a step 30; from the second step on 0 decodes with a token of its own
    assert chunks == [[(0, 5), (1, 20), (2, 5)], [(1, 20), (2, 9)], [(1, 20), (2, 9)]]
