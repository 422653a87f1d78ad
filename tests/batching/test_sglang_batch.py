"""SGLang's steps on timelines that are worked out by hand: a step takes 100 µs, 1 more per token of prefill, 10 per decode."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from maitred import is_compiled
from maitred.compat.instance_rules import new_instance
from maitred.compat.sglang.engine_host import EngineHost
from maitred.compat.sglang.rules import PassRules, PrefillLimits, SGLangRules
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.instance import Instance, InstanceConfig, LinearLatency
from maitred.instance.sglang_config import SGLangConfig
from maitred.instance.step_meter import ItlLog, StepMeter
from maitred.kv import BlockManager, PrefixBlockManager, PromptTokenIds, RadixCache

Job = tuple[Request, int]


def job(number: int, arrival: int, prompt: int, output: int, **fields: Any) -> Job:
    return Request(id=number, arrival=arrival, prompt_tokens=prompt, max_output_tokens=output, **fields), output


def sglang(options: dict[str, Any] = {}, **keys: Any) -> Instance:  # noqa: B006
    plain = {"block_size_in_tokens": 1, "total_kv_blocks": 2000, "latency": LinearLatency((100, 1, 10))}
    return new_instance(InstanceConfig(flavour="sglang", **{**plain, "sglang": SGLangConfig(**options), **keys}), Random(0))


class Played:
    """What came of some requests: events as (at, kind, request), and the chunks of each step with prefill."""

    def __init__(self, instance: Instance, *jobs: Job) -> None:
        self.events: list[tuple[int, str, int]] = []
        self.steps: list[tuple[int, list[tuple[int, int]], int]] = []
        """Start, (request, tokens) of each chunk, and how many decode beside."""
        self.cached: dict[int, int] = {}
        now = -1
        for request, output in jobs:
            if request.arrival > now:  # before the next event is asked for, all arrivals of an instant are in
                now = request.arrival
                while (due := instance.next_event()) is not None and due <= now:
                    self.note(instance, due)
            instance.enqueue(request, output, now)
        while (due := instance.next_event()) is not None:
            self.note(instance, due)

    def note(self, instance: Instance, now: int) -> None:
        run = instance._core.run
        if run is not None and run.plan.chunks and run.ends_at <= now:
            chunks = [(chunk.seq.request.id, chunk.num_tokens) for chunk in run.plan.chunks]
            decodes = run.shape.num_decodes
            self.steps += [(run.starts_at + run.time_of(step), chunks, decodes) for step in range(run.steps)]
        for each in instance.advance(now):
            self.events.append((each.at, each.kind.name, each.seq.request.id))
            self.cached[each.seq.request.id] = each.seq.num_cached_tokens
        instance.check()

    def of(self, kind: str) -> list[tuple[int, int]]:
        return [(at, number) for at, name, number in self.events if name == kind]


PRIORITIES = {"scheduler": "sglang(fcfs, priority=high-first)"}
TWO = [job(0, 0, 50, 10), job(1, 200, 50, 3)]


def test_a_step_of_prefill_goes_before_the_decodes() -> None:
    """Request 0 has tokens at 150 and 260. Request 1 came at 200: its prefill, to 410, holds request 0; then both decode."""
    instance = sglang()
    log = ItlLog()
    instance.observe(StepMeter(instance._core.latency, log), log)
    played = Played(instance, *TWO)
    assert played.steps == [(0, [(0, 50)], 0), (260, [(1, 50)], 0)]
    assert played.of("FIRST_TOKEN") == [(150, 0), (410, 1)]
    assert played.of("FINISHED") == [(650, 1), (1310, 0)]
    # The gap before the token at 530 began with the token at 260.
    assert [*zip(log.single_gap_request_ids, log.single_gaps, strict=True)] == [(0, 270)]
    assert (instance.num_steps, instance._batch.step_index) == (11, 9)


def test_a_mixed_batch_decodes_beside() -> None:
    played = Played(sglang({"enable_mixed_chunk": True}), *TWO)
    assert played.steps == [(0, [(0, 50)], 0), (260, [(1, 50)], 1)]
    assert played.of("FIRST_TOKEN") == [(150, 0), (420, 1)]


@pytest.mark.parametrize(("blocks", "decodes"), [(4, 0), (5, 2)])
def test_a_mixed_batch_leaves_out_decodes_without_a_block(blocks: int, decodes: int) -> None:
    """At 359 two requests hold a full block each and need another one. Request 2 takes a block, which leaves 1 of 4 free."""
    jobs = [job(0, 0, 14, 9), job(1, 50, 15, 9), job(2, 300, 1, 1)]
    options = {"enable_mixed_chunk": True, "schedule_conservativeness": 0.0}
    keys = {"total_kv_blocks": blocks, "block_size_in_tokens": 16, "enable_prefix_caching": False}
    played = Played(sglang(options, **keys), *jobs)
    assert played.steps[1:] == [(114, [(1, 15)], 1), (359, [(2, 1)], decodes)]


def test_a_prompt_is_cut_at_pages_and_the_next_one_takes_the_rest() -> None:
    jobs = [job(0, 0, 70, 1), job(1, 0, 40, 1)]
    played = Played(sglang(block_size_in_tokens=16, max_num_batched_tokens=32), *jobs)
    # The last piece of request 0 is charged a page, which leaves one for request 1.
    assert [chunks for _, chunks, _ in played.steps] == [[(0, 32)], [(0, 32)], [(0, 6), (1, 16)], [(1, 24)]]


@pytest.mark.parametrize(
    ("scheduler", "second"), [("sglang(shortest-prefill-first)", [(0, 32), (1, 20)]), ("sglang(fcfs)", [(0, 64)])]
)
def test_a_shorter_prompt_gets_its_part_of_the_chunk(scheduler: str, second: list[tuple[int, int]]) -> None:
    jobs = [job(0, 0, 300, 1), job(1, 100, 20, 1)]
    keys = {"block_size_in_tokens": 16, "max_num_batched_tokens": 64, "scheduler": scheduler}
    assert [chunks for _, chunks, _ in Played(sglang(**keys), *jobs).steps][:2] == [[(0, 64)], second]


def test_without_chunks_a_prompt_is_computed_whole_and_the_first_may_be_too_long() -> None:
    jobs = [job(0, 0, 70, 1), job(1, 0, 20, 1), job(2, 0, 20, 1)]
    options = {"disable_chunked_prefill": True, "max_prefill_tokens": 48}
    played = Played(sglang(options, max_num_batched_tokens=32), *jobs)
    assert [chunks for _, chunks, _ in played.steps] == [[(0, 70)], [(1, 20), (2, 20)]]


def test_what_a_step_computes_is_cached_when_it_has_ended() -> None:
    prompt = PromptTokenIds(tuple(range(40)))
    jobs = [job(0, 0, 40, 1, prefix=prompt), job(1, 0, 40, 1, prefix=prompt), job(2, 500, 40, 1, prefix=prompt)]
    played = Played(sglang(block_size_in_tokens=10), *jobs)
    assert played.steps == [(0, [(0, 40), (1, 40)], 0), (500, [(2, 10)], 0)]
    assert played.cached == {0: 0, 1: 0, 2: 30}


@pytest.mark.parametrize(("output", "begins"), [(25, True), (26, False)])
def test_a_cached_prefix_is_no_room_for_the_answer(output: int, begins: bool) -> None:
    """At 720 request 1 holds 11 of 60 tokens, and the 20 that request 0 has left are those that request 2 begins with: 29 are
    left for its 2 other tokens, its answer and a page, and must be more than that."""
    prefix = tuple(range(20))
    jobs = [
        job(0, 0, 20, 1, prefix=PromptTokenIds(prefix)),
        job(1, 500, 10, 30, prefix=PromptTokenIds(tuple(range(100, 110)))),
        job(2, 650, 22, output, prefix=PromptTokenIds((*prefix, 200, 201))),
    ]
    played = Played(sglang({"schedule_conservativeness": 0.0}, total_kv_blocks=60), *jobs)
    assert ((720, [(2, 2)], 0) in played.steps) is begins


RETRACTED = [job(0, 0, 10, 15), job(1, 200, 12, 15), job(2, 1000, 5, 2)]
"""With 40 tokens, and nothing reserved for answers. Requests 0 and 1 decode from 332 on and hold 11 and 12 tokens. After 8
steps 1 token is free and 2 are needed: request 1, with 9 tokens against 10, gives way at 1292, to the end of the queue.
Request 2 has been refused at 1052, with 5 tokens free, and now goes first."""


@pytest.mark.parametrize("scheduler", ["sglang(fcfs)", "fcfs"])
def test_when_decoding_lacks_blocks_the_request_with_the_fewest_tokens_goes_to_the_end_of_the_queue(scheduler: str) -> None:
    played = Played(sglang({"schedule_conservativeness": 0.0}, total_kv_blocks=40, scheduler=scheduler), *RETRACTED)
    assert played.of("KV_PREEMPTED") == [(1292, 1)]
    assert played.of("FIRST_TOKEN") == [(110, 0), (332, 1), (1507, 2)]
    # Request 1 comes back when request 0 has ended, and computes its 12 + 9 tokens but for those that are still cached.
    ends = played.of("FINISHED")
    assert [number for _, number in ends] == [2, 0, 1]
    assert played.steps[-1][1][0][0] == 1
    assert played.steps[-1][0] == ends[1][0]


def test_the_ratio_that_is_reserved_sinks_with_each_step_and_rises_with_a_retraction() -> None:
    instance = sglang({"schedule_conservativeness": 0.0}, total_kv_blocks=40)
    ratio = instance._batch._host.new_token_ratio  # type: ignore[attr-defined]
    for request, output in RETRACTED[:2]:
        instance.enqueue(request, output, request.arrival)
        instance.advance(request.arrival)
    while not instance.num_preemptions:
        assert ratio.value == 0
        due = instance.next_event()
        assert due is not None
        instance.advance(due)
    assert ratio.value == 1  # the survivor has (O + 20) / (15 + 1) of its limit, at most 1
    Played(instance)
    assert ratio.value == 0  # idle


def test_the_ratio_sinks_with_each_decode_step_alone() -> None:
    """At 1,000 the steps that have ended are prefill to 150, six of decode to 810, and prefill to 960."""
    instance = sglang()
    for request, output in (job(0, 0, 50, 100), job(1, 800, 50, 100)):
        instance.enqueue(request, output, request.arrival)
        while (due := instance.next_event()) is not None and due < 800:
            instance.advance(due)
        instance.advance(800)
    instance.advance(1000)
    ratio = instance._batch._host.new_token_ratio  # type: ignore[attr-defined]
    assert ratio.value == pytest.approx(0.7 - 6 * (0.7 - 0.098) / 600)


def test_what_a_retracted_request_has_generated_is_computed_again_but_not_its_prompt() -> None:
    """With 70 tokens request 1 gives way when request 0 holds 34, and comes back when that has ended. Its prompt was published
    when it began to decode, and is not evicted meanwhile; its 24 tokens of output were not."""
    played = Played(sglang({"schedule_conservativeness": 0.0}, total_kv_blocks=70), job(0, 0, 10, 30), job(1, 200, 12, 30))
    assert played.of("KV_PREEMPTED") == [(332 + 23 * 120, 1)]
    assert played.steps[-1][1] == [(1, 24)]


@pytest.mark.parametrize("blocks", [93, 94, 95, 96, 97])
def test_where_a_chunk_and_the_last_running_request_lack_memory_the_request_is_retracted(blocks: int) -> None:
    """Five decode steps come between two chunks of 8, so request 0 takes what request 1 was admitted for. SGLang would end with
    an error where a chunk lacks memory, and abort request 0 where its next token does."""
    jobs = [job(0, 0, 9, 75), job(1, 800, 72, 1)]
    options = {"schedule_conservativeness": 0.0, "prefill_decode_interval": 5}
    keys = {"total_kv_blocks": blocks, "max_num_batched_tokens": 8, "enable_prefix_caching": False}
    played = Played(sglang(options, **keys), *jobs)
    assert [number for _, number in played.of("KV_PREEMPTED")] == [0]
    assert sorted(number for _, number in played.of("FINISHED")) == [0, 1]


def test_a_gap_counts_from_the_last_token_also_where_the_held_request_gives_way() -> None:
    """Request 0 has tokens at 150 and 260, is held to 410 while request 1 prefills, and then gives way to request 2, which ends
    at 560. It finds its prompt again, computes its 2 tokens, and emits at 662."""
    instance = sglang({"priority_scheduling_preemption_threshold": 0}, max_num_seqs=2, **PRIORITIES)
    log = ItlLog()
    instance.observe(StepMeter(instance._core.latency, log), log)
    played = Played(instance, job(0, 0, 50, 3), job(1, 200, 50, 9, priority=5), job(2, 300, 50, 1, priority=20))
    assert played.of("KV_PREEMPTED") == [(410, 0)]
    assert (560, [(0, 2)], 0) in played.steps
    assert (0, 662 - 260) in [*zip(log.single_gap_request_ids, log.single_gaps, strict=True)]


def host(blocks: BlockManager) -> EngineHost:
    rules = SGLangRules(passes=PassRules(PrefillLimits(), 8), max_model_len=100)
    return EngineHost(rules, blocks, lambda seq: None)


def test_a_request_that_comes_back_has_a_new_place_in_the_queue() -> None:
    engine = host(BlockManager(60, 1))
    seq = SequenceState(job(0, 100, 50, 10)[0], 0, 50)
    request = engine.request_of(seq)
    assert (request.queued_at, request.max_new_tokens, request.output_tokens) == (100, 10, 0)
    seq.num_output_tokens, request.cached_tokens = 7, 50
    engine.requeue(request, 900)
    assert engine.request_of(seq) is request
    assert (request.queued_at, request.output_tokens, request.cached_tokens) == (900, 7, 0)


def test_room_is_made_by_eviction() -> None:
    blocks = PrefixBlockManager(RadixCache(1, 60))
    blocks.cache.insert([*range(30)])
    host(blocks).evict_until_free(30)
    assert blocks.cache.free_uncached == 30
    host(blocks).evict_until_free(31)
    assert blocks.cache.free_uncached == 60  # whole leaves


def test_nothing_is_kept_of_a_request_that_has_ended() -> None:
    instance = sglang({"schedule_conservativeness": 0.0}, total_kv_blocks=40)
    Played(instance, *RETRACTED)
    assert not instance._batch._host._requests  # type: ignore[attr-defined]


def test_a_full_batch_looks_at_no_request_until_one_leaves() -> None:
    """Request 1 lacks memory at 220, and so the small request 2 waits too, although it would fit."""
    jobs = [job(0, 0, 10, 20), job(1, 200, 30, 2), job(2, 300, 2, 1)]
    played = Played(sglang(total_kv_blocks=50), *jobs)
    end = {number: at for at, number in played.of("FINISHED")}[0]
    assert [start for start, _, _ in played.steps] == [0, end]
    assert played.steps[1][1] == [(1, 30), (2, 2)]


@pytest.mark.parametrize(("priority", "preempted"), [(11, [(260, 0)]), (10, [])])
def test_a_request_that_is_much_more_urgent_takes_the_place_of_a_running_one(
    priority: int, preempted: list[tuple[int, int]]
) -> None:
    jobs = [job(0, 0, 50, 10), job(1, 200, 50, 3, priority=priority)]
    played = Played(sglang(max_num_seqs=1, **PRIORITIES), *jobs)
    assert played.of("KV_PREEMPTED") == preempted
    assert [number for _, number in played.of("FINISHED")] == ([1, 0] if preempted else [0, 1])


def test_low_numbers_are_urgent_where_the_client_says_so() -> None:
    jobs = [job(0, 0, 50, 10, priority=20), job(1, 200, 50, 3, priority=0)]
    plain = {"max_num_seqs": 1, "scheduler": "sglang(fcfs)", "enable_priority_scheduling": True}
    assert not Played(sglang(**plain), *jobs).of("KV_PREEMPTED")
    assert Played(sglang(**plain, schedule_low_priority_values_first=True), *jobs).of("KV_PREEMPTED") == [(260, 0)]
    off = {"disable_priority_preemption": True}
    assert not Played(sglang(off, **plain, schedule_low_priority_values_first=True), *jobs).of("KV_PREEMPTED")


def test_the_prompt_of_a_fresh_request_is_not_counted_when_others_give_way_for_it() -> None:
    """SGLang's defect, kept: one request gives way, whose memory is not enough, and the urgent one is not admitted."""
    jobs = [job(0, 0, 10, 10), job(1, 50, 2, 10), job(2, 300, 25, 2, priority=20)]
    played = Played(sglang(total_kv_blocks=40, max_num_seqs=2, **PRIORITIES), *jobs)
    # At 332 the requests hold 11 and 3 tokens. The younger one gives way: 29 are free, of which the other may need 5 yet, and
    # request 2 asks for 28.
    assert played.of("KV_PREEMPTED") == [(332, 1)]
    assert 332 not in [start for start, _, _ in played.steps]
    assert [number for _, number in played.of("FINISHED")] == [0, 2, 1]


def test_decode_steps_come_between_two_steps_of_prefill() -> None:
    jobs = [job(0, 0, 50, 20), job(1, 200, 50, 10), job(2, 500, 50, 10)]
    assert [start for start, _, _ in Played(sglang(), *jobs).steps] == [0, 260, 530]
    # Three decode steps after each: to 150 + 330 = 480, and from 630 to 630 + 360.
    played = Played(sglang({"prefill_decode_interval": 3}), *jobs)
    assert [start for start, _, _ in played.steps] == [0, 480, 990]
    played = Played(sglang({"prefill_decode_interval": 3, "prefill_decode_interval_min_bs": 2}), *jobs)
    assert [start for start, _, _ in played.steps] == [0, 260, 770]


def test_prefill_is_held_back_while_few_slots_are_free() -> None:
    """Of 3 slots 2 are taken, and the last batch had 2: the first such pass is let through, the next one waits two steps."""
    jobs = [job(0, 0, 50, 40), job(1, 0, 50, 40), job(2, 300, 50, 2), job(3, 900, 50, 2)]
    options = {"enable_prefill_delayer": True, "prefill_delayer_max_delay_passes": 3}
    starts = [start for start, _, _ in Played(sglang(max_num_seqs=3), *jobs).steps]
    delayed = [start for start, _, _ in Played(sglang(options, max_num_seqs=3), *jobs).steps]
    assert delayed[:2] == starts[:2]
    assert delayed[2] == starts[2] + 2 * 120


def test_prefill_waits_until_several_slots_are_free() -> None:
    """Of 3 slots one is free at 300, and two when request 0 has ended. With nothing that runs, nothing waits."""
    jobs = [job(0, 0, 50, 10), job(1, 0, 50, 40), job(2, 300, 50, 2), job(3, 400, 50, 2)]
    plain = Played(sglang(max_num_seqs=3), *jobs)
    waits = Played(sglang({"min_free_slots_delay": 2}, max_num_seqs=3), *jobs)
    assert [chunks for _, chunks, _ in plain.steps] == [[(0, 50), (1, 50)], [(2, 50)], [(3, 50)]]
    assert [chunks for _, chunks, _ in waits.steps] == [[(0, 50), (1, 50)], [(2, 50), (3, 50)]]
    assert waits.of("FINISHED")[0] == (200 + 9 * 120, 0)
    assert waits.steps[1][0] == 200 + 9 * 120
    assert Played(sglang({"min_free_slots_delay": 1}, max_num_seqs=3), *jobs).steps == plain.steps
    # More slots than there are count as all of them.
    assert [start for start, _, _ in Played(sglang({"min_free_slots_delay": 9}, max_num_seqs=1), *jobs[:1]).steps] == [0]


@pytest.mark.skipif(is_compiled(), reason="a compiled object takes no stand-in for its batch")
@pytest.mark.parametrize(
    ("options", "keys", "late"),
    [
        ({}, PRIORITIES, job(2, 500, 50, 2, priority=9.0)),
        ({"min_free_slots_delay": 2}, {"max_num_seqs": 3}, job(2, 500, 50, 2)),
    ],
)
def test_a_wait_for_slots_is_one_run(options: dict[str, Any], keys: dict[str, Any], late: Job) -> None:
    """A request that may not preempt, and one that waits for several slots, are looked at again when another has ended."""
    jobs = [job(0, 0, 50, 100), job(1, 0, 50, 100), late]
    instance = sglang(options, **{"max_num_seqs": 2, **keys})
    plans: list[int] = []
    plan_step = instance._batch.schedule

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(instance_batch, name)

        def schedule(self, *args: Any) -> Any:
            plan = plan_step(*args)
            plans.append(plan.max_repeats)
            return plan

    instance_batch = instance._batch
    instance._core.batch = Counted()  # type: ignore[assignment]
    Played(instance, *jobs)
    assert sum(plans) > 100
    assert len(plans) < 8


def test_a_request_that_could_never_be_admitted_is_refused_at_once() -> None:
    """Admission wants a page and a token more than prompt and answer have."""
    for output, kind in ((19, "FINISHED"), (20, "REFUSED")):
        played = Played(sglang(total_kv_blocks=61, block_size_in_tokens=1), job(0, 0, 40, output))
        assert played.events[-1][1] == kind


def test_an_empty_schedule_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is too long for admission, and was accepted nevertheless, would wait for ever."""
    monkeypatch.setattr(SGLangConfig, "unused_tokens", lambda options, block_size: 0)
    with pytest.raises(ConfigError, match="request 0 needs 40 tokens of KV and those of its answer, and 61 are free"):
        Played(sglang(total_kv_blocks=61), job(0, 0, 40, 21))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"batching": "max-utilization"}, "batching is not for flavour sglang"),
        ({"async_scheduling": True}, "async_scheduling is not for flavour sglang"),
        ({"long_prefill_token_threshold": 5}, "long_prefill_token_threshold is not for flavour sglang"),
        ({"preemption_policy": "priority"}, "preemption_policy is not for flavour sglang: sglang.retraction_policy"),
        ({"kv_cpu_blocks": 5}, "kv_cpu_blocks must be 0"),
        ({"max_num_batched_tokens": 9}, "max_num_batched_tokens 9 holds no chunk of block_size_in_tokens 16"),
    ],
)
def test_what_does_not_combine_is_an_error_at_once(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=r"must be|not for|holds no") as caught:
        InstanceConfig(flavour="sglang", **keys)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_prefill_tokens": 0}, "max_prefill_tokens must be from 1"),
        ({"schedule_conservativeness": -1}, "schedule_conservativeness must be from 0"),
        ({"init_new_token_ratio": 1.5}, "init_new_token_ratio must be from 0 to 1"),
        ({"prefill_max_requests": 0}, "prefill_max_requests must be from 1"),
        (
            {"enable_mixed_chunk": True, "disable_chunked_prefill": True},
            "enable_mixed_chunk is not for disable_chunked_prefill",
        ),
    ],
)
def test_options_out_of_range_are_an_error(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SGLangConfig(**options)


def test_retraction_by_priority_needs_priorities() -> None:
    with pytest.raises(ConfigError, match="retraction_policy priority needs priorities"):
        sglang({"retraction_policy": "priority"})
    sglang({"retraction_policy": "priority"}, **PRIORITIES)


def test_options_without_the_flavour_have_no_effect_and_say_so() -> None:
    warnings = InstanceConfig(sglang=SGLangConfig(ignore_eos=True)).warnings(prefix_cache=False)
    assert warnings == ["the keys of sglang have no effect without flavour sglang"]


def test_what_has_arrived_is_seen_every_so_many_decode_steps() -> None:
    """A step of prefill takes 150 µs here, one that decodes 110 or 120. Decode steps begin at 150, and it looks after every
    third: at 480 and then at 630, because a step of prefill ends there, where request 2 has come meanwhile."""
    jobs = [job(0, 0, 50, 30), job(1, 200, 50, 40), job(2, 500, 50, 40)]
    played = Played(sglang({"scheduler_recv_interval": 3}), *jobs)
    assert [start for start, _, _ in played.steps] == [0, 480, 630]


def test_an_arrival_waits_for_the_next_look_however_long_ago_the_last_prompt_was() -> None:
    """The seventh decode step begins at 150 + 6 * 110 = 810, and it looks before that and at 1,140."""
    jobs = [job(0, 0, 50, 30), job(1, 811, 50, 10)]
    played = Played(sglang({"scheduler_recv_interval": 3}), *jobs)
    assert [start for start, _, _ in played.steps] == [0, 1140]


def test_an_idle_instance_sees_an_arrival_at_once() -> None:
    played = Played(sglang({"scheduler_recv_interval": 30}), job(0, 0, 50, 2), job(1, 900, 50, 2))
    assert [start for start, _, _ in played.steps] == [0, 900]
