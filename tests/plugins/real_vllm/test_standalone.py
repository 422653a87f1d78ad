"""vLLM's own scheduler with our waiting queue: its KV cache manager and block pool are real, the model is left out."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make vllm-test")

from vllm.v1.core.sched.async_scheduler import AsyncScheduler as EngineAsyncScheduler
from vllm.v1.request import RequestStatus
from vllm_engines import StandaloneScheduler, prompt

from maitred.core.errors import ConfigError
from maitred.plugins.vllm.__main__ import compare_steps
from maitred.queueing import SCHEDULERS

EXAMPLES = Path(__file__).parents[3] / "examples" / "plugins"
LENGTHS = (300, 20, 150, 80, 400, 10, 220, 60)


def behind_a_blocker(maitred: dict[str, Any] | None, **settings: Any) -> list[str]:
    """Return the order in which eight prompts are served one by one, called after their lengths."""
    plain = {"scheduler_cls": None} if maitred is None else {}
    engine = StandaloneScheduler(maitred, max_num_seqs=1, **plain, **settings)
    engine.add("blocker", prompt(200), 10)
    engine.step()
    for number, length in enumerate(LENGTHS):
        engine.add(str(length), prompt(length, 1 + number), 4)
    engine.run()
    return engine.finished[1:]


def mixed_load(engine: StandaloneScheduler, seed: int = 5, requests: int = 60, aborts: float = 0) -> None:
    """Let requests of three tenants come, with shared prefixes, priorities and deadlines, and run them all. Before each step
    one is aborted with the chance `aborts`."""
    rng, number = Random(seed), 0
    while number < requests:
        while number < requests and rng.random() < 0.4:
            length, shares = rng.choice([10, 40, 100, 250, 400]), rng.random() < 0.5
            hints = {"tenant": f"t{number % 3}", "routing_key": f"k{number % 2}", "deadline_secs": rng.choice([0.1, 1, 5])}
            tokens = prompt(length, number, shared=length // 2 if shares else 0, group=number % 3)
            engine.add(f"r{number}", tokens, rng.choice([1, 2, 10, 40]), priority=rng.randint(-1, 1), **hints)
            number += 1
        if rng.random() < aborts and engine.scheduler.requests:
            name = rng.choice([*engine.scheduler.requests])
            engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        engine.step()
    engine.run()


def test_first_come_first_served_is_vllms_own_order() -> None:
    expected = [str(length) for length in LENGTHS]
    assert behind_a_blocker(None) == expected
    assert behind_a_blocker({"scheduler": "fcfs"}) == expected


@pytest.mark.parametrize("is_async", [False, True])
def test_with_sjf_short_prompts_overtake(is_async: bool) -> None:
    assert behind_a_blocker({"scheduler": "sjf"}, async_scheduling=is_async) == [str(length) for length in sorted(LENGTHS)]


def test_the_environment_configures_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_SCHEDULER", "sjf")
    assert behind_a_blocker({}) == [str(length) for length in sorted(LENGTHS)]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("is_async", [False, True])
def test_vllms_own_policies_make_the_same_steps_as_ours(policy: str, is_async: bool) -> None:
    """vLLM's fcfs is our fcfs, and its priority our by-priority, over the same memory, with the same victims."""
    ours = {"fcfs": "fcfs", "priority": "by-priority"}[policy]
    settings: dict[str, Any] = {
        "max_num_seqs": 6,
        "num_blocks": 61,
        "max_num_batched_tokens": 256,
        "async_scheduling": is_async,
        "scheduling_policy": policy,
    }
    engines = [StandaloneScheduler(scheduler_cls=None, **settings), StandaloneScheduler({"scheduler": ours}, **settings)]
    for engine in engines:
        mixed_load(engine)

    assert engines[1].num_preemptions > 0
    assert engines[0].steps == engines[1].steps
    assert isinstance(engines[1].scheduler, EngineAsyncScheduler) is is_async


def test_with_lpm_more_is_found_in_the_prefix_cache() -> None:
    """Four families of prompts take turns, and the memory holds the prefix of one. fcfs finds nothing of a prefix that three
    others have evicted; lpm serves a family while its prefix is there."""
    hits = {}
    for policy in ("fcfs", "lpm"):
        engine = StandaloneScheduler({"scheduler": policy}, max_num_seqs=1, num_blocks=30)
        for number in range(24):
            engine.add(f"r{number}", prompt(330, number, shared=320, group=number % 4), 2)
        engine.run()
        assert len(engine.finished) == 24
        hits[policy] = engine.prefix_hits

    assert hits == {"fcfs": 0, "lpm": 20 * 320}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize(
    "policy", [*SCHEDULERS.built_in(), "srpt(hint)", "vtc(lpm, slack=100)", "bounded(lpm, max_wait=0.002)"]
)
def test_every_policy_serves_every_request_as_it_does_in_the_simulator(
    policy: str, caches: bool, is_async: bool, tmp_path: Path
) -> None:
    path = tmp_path / "steps.jsonl"
    engine = StandaloneScheduler(
        {"scheduler": policy, "record_steps": str(path)},
        max_num_seqs=6,
        num_blocks=61,
        max_num_batched_tokens=256,
        enable_prefix_caching=caches,
        async_scheduling=is_async,
    )
    mixed_load(engine)
    engine.scheduler.shutdown()
    pairs = compare_steps(path)

    assert sorted(engine.finished) == sorted(f"r{number}" for number in range(60))
    assert len(pairs) >= len(engine.steps)
    assert [pair for pair in pairs if pair.vllm != pair.simulator] == []


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"scheduling_policy": "priority"},
        {"long_prefill_token_threshold": 40},
        {"max_num_active_seqs": 3},
        {"watermark": 0.1, "scheduler_reserve_full_isl": False},
        {"block_size": 32, "max_num_batched_tokens": 64},
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_other_rules_of_vllm_hold_in_the_simulator_too(
    settings: dict[str, Any], is_async: bool, seed: int, tmp_path: Path
) -> None:
    """With aborts, of waiting and of running requests."""
    path = tmp_path / "steps.jsonl"
    engine = StandaloneScheduler(
        {"scheduler": "sjf", "record_steps": str(path)},
        **{"max_num_seqs": 6, "num_blocks": 61, "max_num_batched_tokens": 256, "async_scheduling": is_async, **settings},
    )
    mixed_load(engine, seed, aborts=0.1)
    engine.scheduler.shutdown()

    assert [pair for pair in compare_steps(path) if pair.vllm != pair.simulator] == []


@pytest.mark.parametrize("caches", [False, True])
def test_policies_that_look_at_what_waits_see_aborts_in_their_order(caches: bool, tmp_path: Path) -> None:
    """Before step 91 of this load, requests of three tenants come, and the only other one of the last is aborted then."""
    path = tmp_path / "steps.jsonl"
    engine = StandaloneScheduler(
        {"scheduler": "vtc(sjf)", "record_steps": str(path)},
        max_num_seqs=6,
        num_blocks=61,
        max_num_batched_tokens=256,
        enable_prefix_caching=caches,
        async_scheduling=True,
    )
    mixed_load(engine, seed=5, aborts=0.1)
    engine.scheduler.shutdown()

    assert [pair for pair in compare_steps(path) if pair.vllm != pair.simulator] == []


def test_a_policy_that_a_user_wrote_for_the_simulator_runs_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    path = tmp_path / "steps.jsonl"
    policy = "queue_policy:WeightedShortestFirst(interactive=8)"
    engine = StandaloneScheduler({"scheduler": policy, "record_steps": str(path)}, max_num_seqs=1)
    engine.add("blocker", prompt(200), 10)
    engine.step()
    engine.add("default", prompt(60, 1), 4)
    engine.add("interactive", prompt(200, 2), 4, priority_class="interactive")
    engine.add("short", prompt(10, 3), 4)
    engine.run()
    engine.scheduler.shutdown()

    assert engine.finished == ["blocker", "short", "interactive", "default"]
    assert all(pair.vllm == pair.simulator for pair in compare_steps(path))


def test_an_aborted_request_leaves_the_queue() -> None:
    engine = StandaloneScheduler({"scheduler": "vtc"}, max_num_seqs=1)
    for name in "abc":
        engine.add(name, prompt(40), 5)
    engine.step()
    engine.scheduler.finish_requests(["b", "a"], RequestStatus.FINISHED_ABORTED)
    engine.run()

    assert engine.finished == ["c"]


@pytest.mark.parametrize("policy", SCHEDULERS.built_in())
def test_a_request_that_waits_for_its_grammar_holds_up_nothing_and_is_served(policy: str) -> None:
    """vLLM pops it in every step, and puts it back."""
    engine = StandaloneScheduler({"scheduler": policy}, max_num_seqs=3)
    for name in ("first", "grammar", "last"):
        engine.add(name, prompt(40), 30, tenant=name)
    request = engine.scheduler.requests["grammar"]
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    for _ in range(20):
        engine.step()
    assert sorted(engine.steps[-1]) == ["first", "last"]
    assert [waiting.request_id for waiting in engine.scheduler.waiting] == ["grammar"]
    assert engine.scheduler.make_stats().num_skipped_waiting_reqs == 1
    request.status = RequestStatus.WAITING
    engine.run()

    assert engine.finished[-1] == "grammar"


def test_a_reset_of_the_prefix_cache_is_followed() -> None:
    """Two families wait. The cache holds one of them, and then nothing."""
    order = {}
    for resets in (False, True):
        engine = StandaloneScheduler({"scheduler": "lpm"}, max_num_seqs=1)
        engine.add("warm", prompt(80, shared=64, group=1), 1)
        engine.run()
        engine.add("cold", prompt(80, 1, shared=64, group=2), 1)
        engine.add("hit", prompt(80, 2, shared=64, group=1), 1)
        if resets:
            assert engine.scheduler.reset_prefix_cache()
        engine.run()
        order[resets] = engine.finished[1:]

    assert order == {False: ["hit", "cold"], True: ["cold", "hit"]}


@pytest.mark.parametrize(
    ("maitred", "message"),
    [
        ({"scheduler": "sjff"}, r"--additional-config maitred: unknown scheduler 'sjff' \(did you mean 'sjf'\?\)"),
        ({"record_steps": "/no/such/folder/steps"}, "record_steps /no/such/folder/steps: cannot be written: No such file"),
    ],
)
def test_a_mistake_ends_the_start(maitred: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StandaloneScheduler(maitred)
