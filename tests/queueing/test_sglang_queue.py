"""SGLang's own queue: what is kept from pass to pass, and where ours do the same and where not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_cache import FakeCache, IdleStep, LetterPrompt, seq

from maitred.compat.sglang.orders import SGLangPolicy
from maitred.compat.sglang.wait_queue import SGLang
from maitred.core.contracts import PrefixCacheView, WaitQueue
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.queueing import SCHEDULERS, QueueingConfig
from maitred.queueing.base import CacheAware, PolicyInfo
from maitred.queueing.orders import FirstComeFirstServed

VECTORS = Path(__file__).parents[1] / "vectors" / "sglang_policies.jsonl.gz"


def queue(name: str, prefix: PrefixCacheView | None, *seqs: SequenceState, seed: int = 0) -> WaitQueue:
    waiting = SCHEDULERS.get(name)().make_queue(prefix, Random(seed))
    for now, each in enumerate(seqs):
        waiting.add(each, now)
    return waiting


def drained(waiting: WaitQueue) -> list[int]:
    return [waiting.pop().arrival_index for _ in range(len(waiting))]


def after_a_pass(waiting: WaitQueue) -> list[int]:
    waiting.on_step_start(IdleStep(), 0)
    return drained(waiting)


def test_a_tie_goes_to_the_request_that_was_first_in_the_pass_before() -> None:
    cache = FakeCache(1)
    cache.store("xy")
    late = seq(2, "xyz", extra=0)
    waiting = queue("sglang(lpm)", cache, seq(0, "a", extra=0), seq(1, "b", extra=0), late)
    waiting.on_step_start(IdleStep(), 0)
    assert waiting.peek() is late
    cache.evict("x")
    assert after_a_pass(waiting) == [2, 0, 1]


def test_beyond_128_nothing_is_sorted_and_what_was_stays() -> None:
    cache = FakeCache(1)
    cache.store("xy")
    waiting = queue("sglang(lpm)", cache, *(seq(i, "a") for i in range(3)), seq(3, "xyz"))
    waiting.on_step_start(IdleStep(), 0)
    for order in range(4, 129):
        waiting.add(seq(order, "xyz" if order == 128 else "b"), 0)
    assert len(waiting) == 129
    assert after_a_pass(waiting) == [3, 0, 1, 2, *range(4, 129)]


def test_128_are_still_sorted() -> None:
    cache = FakeCache(1)
    cache.store("xy")
    waiting = queue("sglang(lpm)", cache, *(seq(i, "xyz" if i == 127 else "b") for i in range(128)))
    assert after_a_pass(waiting)[0] == 127


def test_dfs_weight_has_no_such_limit() -> None:
    cache = FakeCache(1)
    cache.store("xy")
    waiting = queue("sglang(dfs-weight)", cache, *(seq(i, "xyz" if i == 199 else "b") for i in range(200)))
    assert after_a_pass(waiting)[0] == 199


def test_equal_branches_go_in_the_order_in_which_they_were_cached() -> None:
    cache = FakeCache(1)
    seqs = seq(0, "ab"), seq(1, "xy")
    waiting, ours = queue("sglang(dfs-weight)", cache, *seqs), queue("dfs-weight", cache, *seqs)
    cache.store("x", "a")
    waiting.on_step_start(IdleStep(), 0)
    assert waiting.peek() is seqs[1]
    assert after_a_pass(ours) == [0, 1], "in the order of arrival"
    cache.evict("x")
    cache.store("x")
    assert after_a_pass(waiting) == [0, 1]


def test_a_beginning_that_is_no_whole_number_of_pages_is_told_by_its_tokens() -> None:
    cache = FakeCache(16)
    same, other = "a" * 32 + "b" * 32, "a" * 33 + "b" * 31
    seqs = [
        SequenceState(Request(id=i, arrival=i, prompt_tokens=64, prefix=LetterPrompt(text)), i, 64)
        for i, text in enumerate([same, other])
    ]
    cache.block_hashes = lambda request: ()  # type: ignore[method-assign]
    seqs.append(seq(2, "x"))
    assert after_a_pass(queue("sglang(lpm, deprioritize=33)", cache, *seqs)) == [0, 1, 2]
    assert after_a_pass(queue("sglang(lpm, deprioritize=31)", cache, *seqs)) == [0, 2, 1]


def test_a_request_that_begins_like_another_goes_last_in_this_pass() -> None:
    cache = FakeCache(16)
    waiting = queue("sglang(lpm)", cache, seq(0, "abc"), seq(1, "abd"), seq(2, "x"))
    waiting.on_step_start(IdleStep(), 0)
    assert waiting.pop().arrival_index == 0
    assert after_a_pass(waiting) == [2, 1], "it leads now, but the list is as it was"


def test_a_preempted_one_goes_to_the_end() -> None:
    waiting = queue("sglang(fcfs)", None, seq(0, "a"), seq(1, "b"))
    waiting.add(seq(2, "c"), 5, front=True)
    assert after_a_pass(waiting) == [0, 1, 2]


def test_random_is_the_shuffle_of_cpython() -> None:
    waiting = queue("sglang(random)", None, *(seq(i, "a") for i in range(20)), seed=7)
    expected = list(range(20))
    Random(7).shuffle(expected)
    assert after_a_pass(waiting) == expected


def prioritised(order: int, priority: float, output: int | None = None) -> SequenceState:
    return SequenceState(Request(id=order, arrival=0, prompt_tokens=8, priority=priority, max_output_tokens=output), order, 8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sglang(fcfs)", [0, 1, 2, 3]),
        ("sglang(lof)", [3, 1, 0, 2]),  # no limit before all
        ("sglang(fcfs, priority=high-first)", [1, 3, 2, 0]),
        ("sglang(fcfs, priority=low-first)", [0, 2, 1, 3]),
        ("sglang(lof, priority=high-first)", [3, 1, 2, 0]),
    ],
)
def test_priorities_have_a_sign(name: str, expected: list[int]) -> None:
    seqs = [prioritised(0, 1, 50), prioritised(1, 3, 200), prioritised(2, 2, 20), prioritised(3, 3)]
    assert after_a_pass(queue(name, None, *seqs)) == expected


def test_routing_keys_that_run_go_first_and_the_others_by_name() -> None:
    class Running(IdleStep):
        def running_routing_keys(self) -> dict[str, int]:
            return {"a": 1, "b": 2}

    keys = ["z", "a", "", "b", "c"]
    seqs = [SequenceState(Request(id=i, arrival=0, prompt_tokens=8, routing_key=key), i, 8) for i, key in enumerate(keys)]
    waiting = queue("sglang(routing-key)", None, *seqs)
    waiting.on_step_start(IdleStep(), 0)
    assert waiting.peek() is seqs[0], "no running sequence has a key"
    waiting.on_step_start(Running(), 0)
    assert drained(waiting) == [3, 1, 2, 4, 0]


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "hrrn"])
def test_without_a_prefix_cache_the_fallback_that_is_printed_makes_the_queue(policy: str) -> None:
    config = QueueingConfig(scheduler=f"sglang({policy})")
    assert any("sglang(fcfs) takes the place of what needs it" in line for line in config.warnings(prefix_cache=False))
    waiting = config.policy().make_queue(None, Random(0))
    for order in (0, 1):
        waiting.add(seq(order, "a" * (9 - order)), 0)
    waiting.add(seq(2, "b"), 0, front=True)
    assert after_a_pass(waiting) == [0, 1, 2]  # SGLang has no front: a preempted request goes to the end


@pytest.mark.parametrize("wrap", ["{}", "bounded({}, max_wait=1)"])
def test_what_sglang_refuses_without_a_prefix_cache_is_an_error_and_no_warning(wrap: str) -> None:
    config = QueueingConfig(scheduler=wrap.format("sglang(shortest-prefill-first)"))
    assert config.warnings(prefix_cache=True) == []
    with pytest.raises(ConfigError, match="SGLang refuses shortest-prefill-first without a prefix cache"):
        config.warnings(prefix_cache=False)


class BrokenWithoutCache(FirstComeFirstServed):
    about = PolicyInfo(summary="by the cache", complexity="O(1)", starves="nothing", cache_aware=CacheAware.YES)

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        raise AttributeError("no prefix")


def test_warnings_make_no_queue_of_a_policy_of_the_users_own() -> None:
    config = QueueingConfig(scheduler=f"{__name__}:BrokenWithoutCache")
    assert ["which is off" in line for line in config.warnings(prefix_cache=False)] == [True]


class ShortestUntilCached(SGLang):
    fallback = "sjf"


def test_a_subclass_may_name_another_fallback() -> None:
    waiting = ShortestUntilCached(SGLangPolicy.LPM).make_queue(None, Random(0))
    for order, prompt in enumerate(("aaa", "a", "aa")):
        waiting.add(seq(order, prompt), 0)
    assert drained(waiting) == [1, 2, 0]


def test_a_subclass_may_name_a_fallback_for_what_sglang_refuses() -> None:
    waiting = ShortestUntilCached(SGLangPolicy.SHORTEST_PREFILL_FIRST).make_queue(None, Random(0))
    for order, prompt in enumerate(("aaa", "a", "aa")):
        waiting.add(seq(order, prompt), 0)
    assert drained(waiting) == [1, 2, 0]


def test_what_sglang_refuses_is_refused() -> None:
    with pytest.raises(ConfigError, match="priorities are for fcfs and lof, not for lpm"):
        SCHEDULERS.get("sglang(lpm, priority=high-first)")
    with pytest.raises(ConfigError, match="SGLang refuses shortest-prefill-first without a prefix cache"):
        queue("sglang(shortest-prefill-first)", None)
    assert after_a_pass(queue("sglang(dfs-weight)", None, seq(0, "a"), seq(1, "b"))) == [0, 1]


def recorded_seq(case: dict[str, Any], index: int) -> SequenceState:
    """Return the sequence of a recorded request, with a letter for each token."""
    recorded = case["requests"][index]
    request = Request(
        id=index,
        client_id=recorded["rid"],
        arrival=index,
        prompt_tokens=sum(count for _, count in recorded["prompt"]),
        prefix=LetterPrompt(letters(recorded["prompt"])),
    )
    return SequenceState(request, index, request.prompt_tokens)


def letters(runs: list[tuple[int, int]]) -> str:
    return "".join(chr(0x4000 + token) for start, count in runs for token in range(start, start + count))


def plain_cases() -> list[dict[str, Any]]:
    """Return the cases that our requests can express: those with pages of one token, one namespace, nothing retracted and no
    log-probabilities."""
    with gzip.open(VECTORS) as file:
        cases = [json.loads(line) for line in file]
    return [
        case
        for case in cases
        if case["page_size"] == 1
        and len(case["requests"]) <= 128
        and not any(r.get("output") or r.get("return_logprob") or r["extra_key"] or r["cache_salt"] for r in case["requests"])
        and not any(entry["extra_key"] or entry["cache_salt"] for entry in case["cache"])
    ]


def test_there_are_plain_cases() -> None:
    assert len(plain_cases()) >= 3


@pytest.mark.parametrize("case", plain_cases(), ids=lambda case: case["id"])
@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_the_queue_makes_the_recorded_orders(case: dict[str, Any], policy: str) -> None:
    cache = FakeCache(1)
    name = f"sglang({policy}, check={case['check_threshold']}, deprioritize={case['deprioritize_threshold']})"
    waiting = queue(name, cache, *(recorded_seq(case, i) for i in range(len(case["requests"]))))
    cache.store(*(letters(entry["tokens"]) for entry in case["cache"]))
    assert after_a_pass(waiting) == case["expected"][policy]["order"]


@pytest.mark.parametrize("case", plain_cases(), ids=lambda case: case["id"])
def test_where_arrival_breaks_the_ties_our_lpm_makes_the_same_order(case: dict[str, Any]) -> None:
    cache = FakeCache(1)
    name = f"lpm(check={case['check_threshold']}, deprioritize={case['deprioritize_threshold']})"
    waiting = queue(name, cache, *(recorded_seq(case, i) for i in range(len(case["requests"]))))
    cache.store(*(letters(entry["tokens"]) for entry in case["cache"]))
    assert after_a_pass(waiting) == case["expected"]["lpm"]["order"]
