"""Many leave a queue from within: the order of the rest stands."""

from __future__ import annotations

from random import Random

import pytest

from maitred.contracts import Seq
from maitred.queueing import SCHEDULERS
from maitred.request import Request


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_the_order_of_the_rest_stands_when_most_are_removed(name: str) -> None:
    prompts = list(range(1, 201))
    Random(1).shuffle(prompts)
    waiting, reference = (SCHEDULERS.get(name)().queue(None, Random(0)) for _ in range(2))
    for order, prompt in enumerate(prompts):
        seq = Seq(Request(id=order, arrival=order, prompt_tokens=prompt), order, prompt)
        waiting.add(seq, now=order)
        if prompt % 7 == 0:
            reference.add(seq, now=order)
    for order, prompt in enumerate(prompts):
        if prompt % 7:
            waiting.remove(order)
    assert [waiting.pop().order for _ in range(len(waiting))] == [reference.pop().order for _ in range(len(reference))]
    assert waiting.peek() is None
