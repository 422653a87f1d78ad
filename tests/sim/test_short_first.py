"""Shortest first starves a long prompt as long as short ones arrive; ageing and bounds cure that. Computed by hand.

One request runs at a time. A short one of 100 tokens takes 105 µs, and one arrives every 100 µs, which is more than can be
served. The long one, of 1,000 tokens, arrives at 1, while the first short one runs. The next request is chosen at 105, 210,
315, ...
"""

from __future__ import annotations

import pytest

from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.sim import Results, simulate
from maitred.workload import Job

SHORTS = 40
LONG = SHORTS
"""The id of the long request."""
EVERY = 100


def load() -> list[Job]:
    shorts = [Job(Request(id=i, arrival=EVERY * i, prompt_tokens=100), 1) for i in range(SHORTS)]
    long = Job(Request(id=LONG, arrival=1, prompt_tokens=1000), 1)
    return sorted([*shorts, long], key=lambda job: job.request.arrival)


def run(policy: str) -> Results:
    latency = LinearLatency((5.0, 1.0, 0.0))  # a step takes 5 µs and one more per token
    return simulate(load(), instance=InstanceConfig(scheduler=policy, max_num_seqs=1, latency=latency))


def before_the_long_one(policy: str) -> int:
    """Return how many short requests were served while the long one waited."""
    results = run(policy)
    long = int((results.request_id == LONG).argmax())
    return int((results.scheduled < results.scheduled[long]).sum())


def test_in_the_order_of_arrival_it_waits_for_the_one_before_it() -> None:
    assert before_the_long_one("fcfs") == 1


def test_shortest_first_serves_it_when_no_other_request_comes_any_more() -> None:
    assert before_the_long_one("sjf") == SHORTS


def test_ageing_serves_it_when_its_age_outweighs_its_length() -> None:
    # a token per µs: it weighs 1000 - (now - 1), the short one i weighs 100 - (now - 100 i), which is less up to i = 9
    assert before_the_long_one("aged-sjf(tokens_per_second=1000000)") == 10


def test_a_ceiling_on_waiting_serves_it_at_the_first_choice_after_that() -> None:
    assert before_the_long_one("bounded(sjf, max_wait=0.001)") == 10  # due at 1001, chosen at 1050


def test_a_ceiling_on_being_passed_over_serves_it_after_so_many() -> None:
    assert before_the_long_one("bounded(sjf, max_displacement=7)") == 1 + 7  # the first one had come before it


@pytest.mark.parametrize("cured", ["aged-sjf(tokens_per_second=1000000)", "bounded(sjf, max_displacement=7)"])
def test_the_short_ones_behind_it_lose_its_time_and_no_more(cured: str) -> None:
    shortest, cure = run("sjf"), run(cured)
    later = cure.first_token.max() - shortest.first_token[shortest.request_id < LONG].max()
    assert later == 1005
