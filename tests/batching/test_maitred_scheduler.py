"""The scheduler `maitred`: in an instance, in one decision, and what holds whatever comes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instance_driver import Event, config, drive, request
from trtllm_conformance.kv_cache_manager import KvCacheManager
from trtllm_conformance.requests import EngineRequest

from maitred.batching import (
    ContextChunkingConfig,
    LlmRequestState,
    SchedulerResources,
    make_scheduler,
)
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.instance import InstanceConfig
from maitred.kv import PromptTokenIds

GENERATING = LlmRequestState.GENERATION_IN_PROGRESS


def times(events: list[Event], kind: str) -> dict[int, int]:
    return {number: at for at, what, number, _ in events if what == kind}


def scheduler(spec: str = "maitred", *, blocks: int = 100, tokens: int = 1000, places: int = 100) -> tuple[Any, KvCacheManager]:
    """Return a scheduler over empty memory in blocks of 10 tokens."""
    kv_cache = KvCacheManager({1 << 20: blocks}, 10)
    chunking = ContextChunkingConfig(chunk_unit_size=10)
    return make_scheduler(spec, SchedulerResources(places, kv_cache, places, tokens, chunking)), kv_cache


def generating(kv_cache: KvCacheManager, number: int, prompt: int, answer: int, **fields: Any) -> EngineRequest:
    made = EngineRequest(number, prompt, answer, **fields)
    kv_cache.add_sequence(made)
    made.context_current_position, made.state, made.num_generated_tokens = prompt, GENERATING, 1
    return made


def ids(requests: list[EngineRequest]) -> list[int]:
    return [each.request_id for each in requests]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    jobs = [(request(0, 0, 6000, 1), 1), (request(1, 5, 10, 1), 1)]
    sizes = {"total_kv_blocks": 1000, "max_num_batched_tokens": 100}
    first_come = times(drive(config("guaranteed-no-evict", **sizes), jobs), "FINISHED")
    ours = times(drive(config("maitred", **sizes), jobs), "FINISHED")
    assert first_come == {0: 600, 1: 610}
    assert ours == {0: 610, 1: 20}


@pytest.mark.parametrize("state", ["DISAGG_GENERATION_INIT", "DISAGG_GENERATION_TRANS_COMPLETE", "ENCODER_INIT"])
def test_a_request_in_a_state_that_no_instance_has_is_refused(state: str) -> None:
    made, _ = scheduler()
    with pytest.raises(ValueError, match=rf"request 7 is in state {state}: the scheduler maitred serves"):
        made.schedule_request([EngineRequest(1, 30, 30), EngineRequest(7, 30, 30, state=LlmRequestState[state])], set())


@pytest.mark.parametrize(("field", "value"), [("num_draft_tokens", 3), ("beam_width", 4), ("beam_width", 0)])
@pytest.mark.parametrize("begins", [True, False])
def test_a_request_that_takes_more_than_a_token_per_step_is_refused(field: str, value: int, begins: bool) -> None:
    """A limit of 4 tokens, and 4 requests: with 3 draft tokens of one of them a step would have 7."""
    made, kv_cache = scheduler(tokens=4)
    requests = [generating(kv_cache, number, 10, 10) for number in range(3)]
    requests.append(EngineRequest(7, 10, 10) if begins else generating(kv_cache, 7, 10, 10))
    made.schedule_request(requests, set())
    setattr(requests[-1], field, value)
    with pytest.raises(ValueError, match=r"request 7 has beams: [014], draft tokens: [03]; the scheduler maitred gives each"):
        made.schedule_request(requests, set())


def test_the_long_one_keeps_its_share_of_the_tokens() -> None:
    jobs = [(request(0, 0, 500, 1), 1), *((request(number, 0, 100, 1), 1) for number in range(1, 30))]
    finished = times(drive(config("maitred(first_share=0.5)", total_kv_blocks=1000, max_num_seqs=64), jobs), "FINISHED")
    assert finished[0] == 90  # 50 of 100 tokens in each of 8 steps; the rest is as short as the others then


def test_a_shorter_prompt_takes_no_tokens_without_which_one_before_it_could_not_begin() -> None:
    """Of 100 tokens the first prompt keeps 90, and the second one begins with the others."""
    prompts = [EngineRequest(number, tokens, 1) for number, tokens in enumerate((1000, 100, 50))]
    made, _ = scheduler(blocks=1000, tokens=100)
    output = made.schedule_request(prompts, frozenset())
    assert {each.request_id: each.context_chunk_size for each in output.context_requests} == {0: 90, 1: 10}
    assert made.why_waiting(prompts[2]) == "the tokens of the step are used up"


def test_what_always_reaches_its_limit_is_never_paused() -> None:
    """The example of capacity.py: two requests that would fill 18 of 10 blocks run one after the other."""
    jobs = [(request(0, 0, 10, 80), 80), (request(1, 0, 10, 80), 80)]
    events = drive(config("maitred", total_kv_blocks=10), jobs)
    assert times(events, "FINISHED") == {0: 800, 1: 1600}


def test_limits_that_nobody_needs_cost_nothing_once_that_is_known() -> None:
    """Answers have 10 of 200 tokens that are allowed, 12 requests come every 200 µs, and one of 21 blocks would fill half of
    the memory. Under guaranteed-no-evict one runs at a time; here as many as fit, after the first answers."""
    jobs = [(request(number, number // 12 * 200, 10, 200), 10) for number in range(120)]
    keys = {"total_kv_blocks": 40, "max_num_seqs": 64}
    worst = max(times(drive(config("guaranteed-no-evict", **keys), jobs), "FINISHED").values())
    ours = max(times(drive(config("maitred", **keys), jobs), "FINISHED").values())
    assert worst == 120 * 100
    assert ours < 3000


def test_a_request_that_does_not_fit_is_passed_but_not_forever() -> None:
    """Request 1 needs 9 of 10 blocks while request 0 holds some. 10 of the later ones, which would all fit, pass it."""
    jobs = [(request(0, 0, 10, 30), 30), (request(1, 5, 85, 1), 1), *((request(n, 5 + n, 5, 2), 2) for n in range(2, 60))]
    keys = {"total_kv_blocks": 10, "max_num_seqs": 3}
    events = drive(config("maitred(max_skips=10)", **keys), jobs)
    first = times(events, "FIRST_TOKEN")
    assert sum(first[n] < first[1] for n in range(2, 60)) == 10
    blocked = times(drive(config("maitred(max_skips=0)", **keys), jobs), "FIRST_TOKEN")
    assert not [n for n in range(2, 60) if blocked[n] < blocked[1]]


def test_half_computed_prompts_are_never_stuck() -> None:
    """Five prompts of 6 blocks in memory for two: their blocks are all taken when they begin."""
    jobs = [(request(number, 0, 60, 1), 1) for number in range(5)]
    events = drive(config("maitred", total_kv_blocks=13, max_num_batched_tokens=20), jobs)
    assert sorted(times(events, "FINISHED")) == [0, 1, 2, 3, 4]
    assert not times(events, "KV_PREEMPTED")


def test_the_urgent_come_first_and_lose_their_memory_last() -> None:
    serving = {"enable_priority_scheduling": True, "total_kv_blocks": 12, "max_num_seqs": 8}
    jobs = [(request(n, 0, 10, None, priority=float(n % 2)), 45) for n in range(6)]
    events = drive(config("maitred(max_pauses=9)", **serving), jobs)
    paused = [number for _, kind, number, _ in events if kind == "KV_PREEMPTED"]
    finished = times(events, "FINISHED")
    assert paused
    assert all(number % 2 == 0 for number in paused)
    assert max(finished[n] for n in (1, 3, 5)) <= min(finished[n] for n in (0, 2, 4))


def test_an_urgent_request_is_seen_though_many_wait() -> None:
    """Request 0 runs, and 12 others of 9 blocks wait for it, of which the scheduler sees 9. The urgent one needs one block."""
    jobs = [(request(0, 0, 10, 30), 30), *((request(n, 5, 85, 1), 1) for n in range(1, 13))]
    jobs.append((request(13, 55, 5, 2, priority=5.0), 2))
    keys = {"total_kv_blocks": 10, "max_num_seqs": 64, "enable_priority_scheduling": True}
    first = times(drive(config("maitred(max_skips=0)", **keys), jobs), "FIRST_TOKEN")
    assert first[13] == 70
    assert min(first[n] for n in range(1, 13)) > 300


def test_an_urgent_request_takes_the_memory_of_a_less_urgent_one() -> None:
    """Two requests of 5 blocks run when a third comes that is more urgent than the first. The first gives way, is the last to
    go on, and has lost nothing of its answer."""
    jobs = [(request(n, 0, 20, 30, priority=float(n)), 30) for n in range(2)]
    jobs.append((request(2, 95, 40, 10, priority=1.0), 10))
    events = drive(config("maitred", enable_priority_scheduling=True, total_kv_blocks=12), jobs)
    assert [(at, number) for at, kind, number, _ in events if kind == "KV_PREEMPTED"] == [(100, 0)]
    finished = times(events, "FINISHED")
    assert (finished[1], finished[2]) == (300, 210)
    assert finished[0] > 300
    assert [tokens for _, kind, number, tokens in events if (kind, number) == ("FINISHED", 0)] == [30]


def test_a_request_that_gave_way_waits_until_another_one_has_ended() -> None:
    active, kv_cache = scheduler(blocks=12)
    running = generating(kv_cache, 1, 50, 20, priority=0.1)
    active.schedule_request([running, EngineRequest(2, 10, 10, priority=0.1)], set())
    urgent = EngineRequest(3, 80, 10, priority=0.9)
    assert ids(active.schedule_request([running, urgent], set()).paused_requests) == [1]
    kv_cache.remove_sequence(running)
    running.pause(1 << 20)
    assert ids(active.schedule_request([running, urgent], set()).context_requests) == [3]
    assert active.why_waiting(running) == "it was paused, and no request has ended since"


def test_memory_that_will_suffice_in_some_steps_is_taken_then() -> None:
    """Request 2 finds no blocks. Without request 1, which is less urgent, it would lack a token for each of some steps yet:
    just before request 0 ends, 65 + 35 + 2 x 55 tokens are needed at first, of 200."""
    jobs = [
        (request(0, 0, 60, 55, priority=1.0), 55),
        (request(1, 0, 100, 14), 14),
        (request(2, 25, 30, 100, priority=1.0), 100),
    ]
    keys = {"total_kv_blocks": 20, "max_num_batched_tokens": 200, "enable_priority_scheduling": True}
    events = drive(config("maitred", **keys), jobs)
    assert [number for _, kind, number, _ in events if kind == "KV_PREEMPTED"] == [1]
    assert events == drive(config("maitred", step_by_step=True, **keys), jobs)


def test_none_gives_way_for_nothing() -> None:
    """Neither to a request that is as urgent, nor if those that are less urgent do not suffice, nor more often than it may be
    paused, nor for a place, which takes no computed KV to wait for."""
    running = [(request(n, 0, 20, 30, priority=float(n)), 30) for n in range(2)]
    for batching, places, late in [
        ("maitred", 8, request(2, 95, 40, 10, priority=0.0)),
        ("maitred", 8, request(2, 95, 90, 10, priority=1.0)),
        ("maitred(max_pauses=0)", 8, request(2, 95, 40, 10, priority=1.0)),
        ("maitred", 2, request(2, 95, 10, 10, priority=1.0)),
    ]:
        serving = {"enable_priority_scheduling": True, "total_kv_blocks": 12, "max_num_seqs": places}
        events = drive(config(batching, **serving), [*running, (late, 10)])
        assert not times(events, "KV_PREEMPTED")


def test_prompts_take_a_bounded_part_of_a_step_that_generates() -> None:
    jobs = [(request(0, 0, 10, 50), 50), (request(1, 95, 200, 1), 1)]
    finished = times(drive(config("maitred(max_prefill_tokens=10)", total_kv_blocks=100), jobs), "FINISHED")
    assert finished == {0: 500, 1: 300}  # 20 steps of 10 tokens, from 100 on


def test_by_default_prompts_beside_decodes_get_sixteen_times_the_prefill_speed() -> None:
    """Alone they get the whole step, and so they do if they are computed whole, since a larger one would never begin."""
    active, kv_cache = scheduler("maitred(prefill_speed=10)", blocks=1000)
    running, long = generating(kv_cache, 1, 100, 50), EngineRequest(2, 700, 10)
    active.schedule_request([running, long], set())
    assert long.context_chunk_size == 160
    active.schedule_request([long], set())
    assert long.context_chunk_size == 700

    resources = SchedulerResources(100, kv_cache, 100, 1000, None)
    whole = make_scheduler("maitred(prefill_speed=10)", resources)
    assert ids(whole.schedule_request([running, long], set()).context_requests) == [2]


def test_a_paused_request_waits_until_another_one_has_ended() -> None:
    active, kv_cache = scheduler("maitred(max_pauses=5)", blocks=10)
    first, second = (generating(kv_cache, number, 50, 1000, priority=0.5) for number in (1, 2))
    output = active.schedule_request([first, second], set())
    assert (ids(output.paused_requests), ids(output.generation_requests)) == ([2], [1])
    kv_cache.remove_sequence(second)
    second.pause(1 << 20)
    small = EngineRequest(3, 10, 5)
    small.num_pauses = 1
    assert active.schedule_request([first, small], set()).context_requests == []
    assert active.why_waiting(small) == "it was paused, and no request has ended since"
    active.on_request_end(EngineRequest(4, 10, 10), is_complete=True)
    assert ids(active.schedule_request([first, small], set()).context_requests) == [3]


def test_what_a_pause_frees_is_for_those_that_generate() -> None:
    """The blocks of request 2 would hold the small one, and it begins in the next step at the earliest."""
    active, kv_cache = scheduler(blocks=10)
    first, second = (generating(kv_cache, number, 50, 1000) for number in (1, 2))
    output = active.schedule_request([first, second, EngineRequest(3, 10, 5)], set())
    assert (ids(output.paused_requests), ids(output.context_requests)) == ([2], [])


def test_an_empty_step_is_explained() -> None:
    active, kv_cache = scheduler(blocks=30, tokens=10, places=2)
    running = generating(kv_cache, 1, 100, 50)
    waiting = [EngineRequest(2, 300, 10), EngineRequest(3, 90, 500), EngineRequest(4, 10, 10), EngineRequest(5, 10, 10)]
    output = active.schedule_request([running, *waiting], set())
    assert (ids(output.generation_requests), ids(output.context_requests)) == ([1], [4])
    assert active.why_waiting(waiting[0]) == "its prompt needs 30 KV blocks, and 19 are free"  # the running one opens a block
    assert active.why_waiting(waiting[1]) == "it is predicted to need 595 KV tokens, 295 more than there will be"
    assert active.why_waiting(waiting[2]) is None
    assert active.why_waiting(waiting[3]) == "all places in the batch are taken"


def test_a_block_that_another_request_computes_is_waited_for() -> None:
    """Two prompts of 30 tokens, of which the first 20 are the same. The second one finds those when they are computed."""
    kv_cache = KvCacheManager({1 << 20: 100}, 10, enable_block_reuse=True)
    active = make_scheduler("maitred", SchedulerResources(9, kv_cache, 9, 1000, ContextChunkingConfig(chunk_unit_size=10)))
    alike = [EngineRequest(number, 30, 10) for number in (1, 2)]
    for each in alike:
        each.block_hashes = [7, 8, 100 + each.request_id]
    assert ids(active.schedule_request([*alike], set()).context_requests) == [1]
    assert active.why_waiting(alike[1]) == "another request computes the block of its prompt that it needs first"


def test_shared_blocks_that_only_their_users_hold_are_counted_once() -> None:
    """Request 2 shares 5 blocks with request 1, which has ended: of the 20 that there are, 15 are left for tokens of its own
    and of request 3. These need 159 tokens just before request 2 ends."""
    kv_cache = KvCacheManager({1 << 20: 20}, 10, enable_block_reuse=True)
    active = make_scheduler("maitred", SchedulerResources(9, kv_cache, 9, 1000, ContextChunkingConfig(chunk_unit_size=10)))
    owner, user = (EngineRequest(number, 60, 40) for number in (1, 2))
    for each in (owner, user):
        each.block_hashes = [11, 12, 13, 14, 15, 100 + each.request_id]
        kv_cache.add_sequence(each)
        each.context_current_position, each.state, each.num_generated_tokens = 60, GENERATING, 1
    user.num_shared_blocks = 5
    kv_cache.remove_sequence(owner)
    late = EngineRequest(3, 60, 40)
    assert active.schedule_request([user, late], set()).context_requests == []
    assert active.why_waiting(late) == "it is predicted to need 105 KV tokens, 9 more than there will be"


def test_a_request_that_can_never_fit_is_rejected_at_once() -> None:
    events = drive(config("maitred", total_kv_blocks=10), [(request(0, 0, 50, 51), 5), (request(1, 0, 50, 50), 5)])
    assert [(at, kind, number) for at, kind, number, _ in events] == [
        (0, "REFUSED", 0),
        (10, "FIRST_TOKEN", 1),
        (50, "FINISHED", 1),
    ]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("look_past=-1", "look_past must be at least 0, not -1"),
        ("first_share=0", r"first_share must be above 0 and at most 1, not 0\.0"),
        ("prefill_speed=0", "prefill_speed must be at least 1, not 0"),
    ],
)
def test_impossible_parameters_are_refused(parameters: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scheduler(f"maitred({parameters})")


def test_the_flavour_runs_it() -> None:
    assert InstanceConfig(flavour="maitred").batching == "maitred"


@st.composite
def workloads(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[Request, int]]]:
    """Draw the parameters of an instance with little memory, and requests with their answers."""
    size, blocks = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([6, 12, 40]))
    rules = {
        "max_skips": draw(st.integers(0, 4)),
        "max_pauses": draw(st.integers(0, 2)),
        "look_past": draw(st.integers(0, 4)),
        "prefill_speed": draw(st.sampled_from([1, 256, 100_000])),
    }
    keys = {
        "batching": f"maitred({','.join(f'{name}={value}' for name, value in rules.items())})",
        "block_size_in_tokens": size,
        "total_kv_blocks": blocks,
        "max_num_seqs": draw(st.sampled_from([3, 64])),
        "max_num_batched_tokens": draw(st.sampled_from([16, 128])),
        "enable_prefix_caching": draw(st.booleans()),
    }
    jobs, now = [], 0
    for number in range(draw(st.integers(1, 30))):
        now += draw(st.sampled_from([0, 0, 10, 400]))
        prompt, answer = draw(st.integers(1, size * blocks // 2)), draw(st.integers(1, size * blocks // 2))
        most = draw(st.sampled_from([answer, size * blocks - prompt, None]))
        prefix = PromptTokenIds(tuple(range(number % 3 * 10_000, number % 3 * 10_000 + prompt)))
        urgency = draw(st.sampled_from([0.0, 0.0, 1.0, 2.0]))
        jobs.append((request(number, now, prompt, most, prefix=prefix, priority=urgency), answer))
    return keys, jobs


@given(workloads())
@settings(max_examples=30, deadline=None)
def test_no_request_is_paused_more_often_than_it_may_be(
    workload: tuple[dict[str, Any], list[tuple[Request, int]]],
) -> None:
    keys, jobs = workload
    events = drive(config(**keys), jobs)
    limits = {name: int(value) for name, value in (part.split("=") for part in keys["batching"][8:-1].split(","))}
    paused = Counter(number for _, kind, number, _ in events if kind == "KV_PREEMPTED")
    assert max(paused.values(), default=0) <= limits["max_pauses"]
    first = times(events, "FIRST_TOKEN")
    assert sorted(first) == sorted(times(events, "FINISHED")) == [*range(len(jobs))]


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[EngineRequest], SchedulerResources, set[int]]:
    """Draw some requests that have begun, with their blocks, requests that wait, and which are in flight."""
    kv_cache = KvCacheManager({1 << 20: draw(st.integers(5, 60))}, 10)
    active = []
    for number in range(draw(st.integers(1, 12))):
        made = EngineRequest(
            number, draw(st.integers(1, 80)), draw(st.integers(1, 200)), priority=draw(st.sampled_from([0.1, 0.5]))
        )
        made.num_pauses = draw(st.sampled_from([0, 0, 1, 2, 3]))
        if kv_cache.free_blocks[0] > made.prompt_len // 10 + 2 and draw(st.booleans()):
            kv_cache.add_sequence(made)
            if draw(st.booleans()) or made.prompt_len == 1:
                made.context_current_position, made.state, made.num_generated_tokens = made.prompt_len, GENERATING, 1
            else:
                made.context_current_position = draw(st.integers(1, made.prompt_len - 1))
        active.append(made)
    limits = SchedulerResources(
        12, kv_cache, 12, draw(st.sampled_from([5, 30, 300])), ContextChunkingConfig(chunk_unit_size=10)
    )
    return active, limits, set(draw(st.lists(st.integers(0, 11), max_size=2)))


@given(situations())
@settings(max_examples=50, deadline=None)
def test_a_step_does_nothing_only_if_nothing_can_be_done(
    situation: tuple[list[EngineRequest], SchedulerResources, set[int]],
) -> None:
    active, limits, inflight = situation
    made = make_scheduler("maitred", limits)
    free = limits.kv_cache_manager.free_blocks[0]
    begun = [each for each in active if each.is_started]
    output = made.schedule_request(active, inflight)
    runs = [*output.context_requests, *output.generation_requests]
    if runs or output.paused_requests:
        return
    # Whatever could run is in flight, and each request that is tried says what it lacks.
    assert all(each.request_id in inflight for each in begun)
    waiting = [each for each in active if not each.is_started and each.request_id not in inflight]
    fits = [each for each in waiting if -(-each.prompt_len // 10) <= free]
    assert not fits or any(each.request_id in inflight for each in active)
    tried = sorted(waiting, key=lambda each: -each.priority)[:9]
    assert all(made.why_waiting(each) for each in tried)
