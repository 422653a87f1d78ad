"""SGLang's steps, by chance: the ledger balances after every event, no budget is exceeded, every request ends or is refused,
and skipping steps changes nothing."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from maitred.compat.instance_rules import new_instance
from maitred.compat.sglang.engine_host import DecodingRequests
from maitred.core.request import Request
from maitred.instance import EventKind, Instance, InstanceConfig, LinearLatency
from maitred.instance.sglang_config import SGLangConfig
from maitred.instance.step_meter import ItlLog, StepMeter
from maitred.kv import PromptTokenIds

Workload: TypeAlias = tuple[dict[str, Any], list[tuple[Request, int]], list[tuple[int, int]]]


@st.composite
def options(draw: st.DrawFn) -> SGLangConfig:
    """Draw options, most of them as they are by default."""
    rarely = draw(st.booleans())
    whole = rarely and draw(st.booleans())
    return SGLangConfig(
        max_prefill_tokens=draw(st.sampled_from([16, 200, 16384])),
        disable_chunked_prefill=whole,
        prefill_max_requests=draw(st.sampled_from([None, 1, 3])) if rarely else None,
        enable_mixed_chunk=not whole and draw(st.booleans()),
        schedule_conservativeness=draw(st.sampled_from([0.0, 0.1, 1.0, 2.0])),
        new_token_ratio_decay_steps=draw(st.sampled_from([5, 600])),
        clip_max_new_tokens=draw(st.sampled_from([4, 4096])),
        ignore_eos=draw(st.booleans()) if rarely else False,
        min_free_slots_delay=draw(st.sampled_from([None, None, 2, 100])),
        prefill_decode_interval=draw(st.sampled_from([0, 0, 1, 5])),
        scheduler_recv_interval=draw(st.sampled_from([1, 1, 3, 10])),
        enable_prefill_delayer=draw(st.booleans()) if rarely else False,
        prefill_delayer_max_delay_passes=draw(st.sampled_from([2, 30])),
        prefill_delayer_queue_min_ratio=draw(st.sampled_from([None, 0.5])),
        prefill_delayer_max_delay_ms=draw(st.sampled_from([0.05, 5000.0])),
        priority_scheduling_preemption_threshold=draw(st.sampled_from([0, 2])),
        disable_priority_preemption=draw(st.booleans()),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw the configuration of an instance, requests with their answers, and aborts (instant, request)."""
    size, blocks = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([12, 20, 60, 200]))
    held = min(300, size * blocks - 2 * size - 1)
    keys = {
        "flavour": "sglang",
        "scheduler": draw(
            st.sampled_from(
                ["sglang(fcfs)", "sglang(lpm)", "sglang(dfs-weight)", "sglang(shortest-prefill-first)", "fcfs", "lpm"]
                + ["sglang(lof, priority=low-first)", "sglang(fcfs, priority=high-first)"] * 2
            )
        ),
        "max_num_seqs": draw(st.sampled_from([1, 3, 8, 64])),
        "max_num_batched_tokens": draw(st.sampled_from([16, 32, 512])),
        "total_kv_blocks": blocks,
        "block_size_in_tokens": size,
        "enable_prefix_caching": True,
        "prefix_cache": draw(st.sampled_from(["radix", "radix", "blocks"])),
        "sglang": draw(options()),
        "latency": LinearLatency((draw(st.sampled_from([10, 97])), draw(st.sampled_from([0, 1, 2.5])), 0.7)),
    }
    if "(s" not in keys["scheduler"] and draw(st.booleans()):
        keys["enable_prefix_caching"] = False
    jobs, now = [], 0
    for number in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0, 0, 1, 10, 100, 1000]))
        deadline = draw(st.one_of(st.none(), st.none(), st.integers(1, 3000)))
        prompt = draw(st.integers(1, max(1, held // 2)))
        tokens = (*[draw(st.integers(0, 2))] * prompt, number)[1:]
        request = Request(
            id=number,
            arrival=now,
            prompt_tokens=prompt,
            max_output_tokens=draw(st.sampled_from([None, max(1, held - prompt), 1, 20])),
            deadline=None if deadline is None else now + deadline,
            priority=draw(st.sampled_from([0, 0, 1, 5])),
            prefix=PromptTokenIds(tokens),
        )
        jobs.append((request, draw(st.integers(1, held))))
    aborts = draw(st.lists(st.tuples(st.integers(0, now + 2000), st.integers(0, len(jobs) - 1)), max_size=6))
    return keys, jobs, aborts


class Seen:
    """What could be seen of an instance."""

    def __init__(self, instance: Instance, config: InstanceConfig, *, is_logged: bool) -> None:
        self.events: list[tuple[int, str, int, int]] = []
        self.ends: dict[int, tuple[int, int, int]] = {}
        self.log = ItlLog()
        log = self.log if is_logged else None
        self.meter = StepMeter(config.latency_model(), log)
        instance.observe(self.meter, log)

    def note(self, instance: Instance, now: int) -> None:
        for each in instance.advance(now):
            seq = each.seq
            self.events.append((each.at, each.kind.name, seq.request.id, seq.num_output_tokens))
            if each.kind >= EventKind.FINISHED:
                self.ends[seq.request.id] = (seq.num_cached_tokens, seq.recomputed_tokens, seq.num_preemptions)
        instance.check()

    def gaps(self) -> dict[int, tuple[int, int]]:
        """Return of each request how many gaps between tokens it had, and how long they were together (µs)."""
        log = self.log
        counts: Counter[int] = Counter()
        times: Counter[int] = Counter()
        for number, first, end in zip(log.request_ids, log.first_stretches, log.end_stretches, strict=True):
            counts[number] += sum(log.stretch_steps[first:end])
            times[number] += sum(log.stretch_times[first:end])
        for number, gap in zip(log.single_gap_request_ids, log.single_gaps, strict=True):
            counts[number] += 1
            times[number] += gap
        return {number: (counts[number], times[number]) for number in sorted(counts)}


def drive(
    config: InstanceConfig,
    jobs: list[tuple[Request, int]],
    aborts: list[tuple[int, int]],
    looks: set[int],
    *,
    is_logged: bool = True,
) -> Seen:
    """Return what is seen of the instance, which is looked at at the instants `looks`, too."""
    instance = new_instance(config, Random(0))
    seen = Seen(instance, config, is_logged=is_logged)
    inputs = sorted(
        [(request.arrival, 0, number) for number, (request, _) in enumerate(jobs)]
        + [(at, 1, number) for at, number in aborts]
        + [(at, 2, 0) for at in looks]
    )
    while True:
        due, coming = instance.next_event(), inputs[0][0] if inputs else None
        check_budgets(instance, config)
        if due is None and coming is None:
            break
        now = min(instant for instant in (due, coming) if instant is not None)
        while inputs and inputs[0][0] == now:
            _, verb, number = inputs.pop(0)
            if verb == 0:
                instance.enqueue(*jobs[number], now)
            elif verb == 1:
                instance.abort(number, now)
        seen.note(instance, now)
    assert instance.free_blocks == instance.total_blocks
    seen.log.close()
    return seen


def check_budgets(instance: Instance, config: InstanceConfig) -> None:
    """Raise AssertionError if the step in progress holds more than it may."""
    run = instance._core.run
    if run is None:
        return
    plan, options = run.plan, config.sglang
    assert instance.running <= config.max_num_seqs
    if not options.disable_chunked_prefill:
        assert plan.prefill_tokens + run.shape.num_decodes * bool(plan.chunks) <= config.max_num_batched_tokens
    elif not options.ignore_eos:
        total = sum(chunk.num_tokens for chunk in plan.chunks)
        assert total <= options.max_prefill_tokens or len(plan.chunks) == 1
    if options.prefill_max_requests is not None:
        assert len(plan.chunks) <= options.prefill_max_requests
    cut = [chunk for chunk in plan.chunks if chunk.num_computed_tokens + chunk.num_tokens < chunk.total_tokens]
    assert len(cut) <= 1  # one chunked request at a time
    if plan.chunks and not options.enable_mixed_chunk:
        assert not run.shape.num_decodes  # prefill alone


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workloads(), st.sets(st.integers(0, 4000), max_size=5))
def test_skipping_changes_nothing(workload: Workload, looks: set[int]) -> None:
    keys, jobs, aborts = workload
    skipping = drive(InstanceConfig(**keys), jobs, aborts, looks)
    stepping = drive(InstanceConfig(**keys, step_by_step=True), jobs, aborts, set())
    assert skipping.events == stepping.events
    assert skipping.ends == stepping.ends
    assert skipping.gaps() == stepping.gaps()
    assert skipping.meter.itl_sketch == stepping.meter.itl_sketch
    assert sorted(skipping.ends) == list(range(len(jobs)))  # every request ends, and once
    counted = drive(InstanceConfig(**keys), jobs, aborts, looks, is_logged=False)  # gaps that are counted and not logged
    assert counted.events == skipping.events
    assert counted.meter.itl_sketch == skipping.meter.itl_sketch
    event(f"kinds {sorted({kind for _, kind, _, _ in skipping.events})}")


def test_a_request_that_was_seen_and_withdrawn_lets_no_other_in_between_two_looks() -> None:
    # Request 1 waits when the scheduler looks, and leaves. The next one comes between two looks, and no step is planned in
    # between that could see the queue empty.
    config = {"flavour": "sglang", "scheduler": "sglang(fcfs, priority=high-first)", "max_num_seqs": 1}
    config |= {"sglang": SGLangConfig(scheduler_recv_interval=10), "latency": LinearLatency((10, 0, 0.7))}
    jobs = [(Request(id=0, arrival=0, prompt_tokens=1), 66), (Request(id=1, arrival=0, prompt_tokens=1), 9)]
    jobs.append((Request(id=2, arrival=490, prompt_tokens=1, priority=20), 9))
    skipping = drive(InstanceConfig(**config), jobs, [(125, 1)], set())
    stepping = drive(InstanceConfig(**config, step_by_step=True), jobs, [(125, 1)], set())
    assert skipping.events == stepping.events
    assert (510, "KV_PREEMPTED", 0, 51) in skipping.events


def test_requests_that_run_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(DecodingRequests, "__getitem__", lambda self, index: looks.append(index))
    jobs = [(Request(id=n, arrival=400 * n, prompt_tokens=20, max_output_tokens=60), 60) for n in range(6)]
    config = InstanceConfig(flavour="sglang", latency=LinearLatency((100, 0, 0)))
    seen = drive(config, jobs, [], set(), is_logged=False)
    assert [(number, tokens) for _, kind, number, tokens in seen.events if kind == "FINISHED"] == [(n, 60) for n in range(6)]
    assert looks == []
    # Each of the five that come later holds those before it for a step.
    assert seen.meter.itl_sketch.count == 6 * 59


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workloads())
def test_every_request_that_is_not_refused_gets_its_whole_answer(workload: Workload) -> None:
    keys, jobs, _ = workload
    config = InstanceConfig(**keys)
    plain = [(Request(**{**_fields(request), "deadline": None}), length) for request, length in jobs]
    seen = drive(config, plain, [], set())
    instance = new_instance(config, Random(0))
    gaps = seen.gaps()
    ends = {number: (kind, tokens, at) for at, kind, number, tokens in seen.events if kind in {"FINISHED", "REFUSED"}}
    first = {number: at for at, kind, number, _ in seen.events if kind == "FIRST_TOKEN"}
    for request, length in plain:
        kind, tokens, at = ends[request.id]
        if kind == "REFUSED":
            assert instance.lengths.rejection_reason(request)
            continue
        assert tokens == instance.lengths.output_length(request, length)
        # Every gap is counted, once: they fill the time from the first token to the last one.
        assert gaps.get(request.id, (0, 0)) == (tokens - 1, at - first[request.id])


def _fields(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__struct_fields__}
