"""The straight line says what the layers say: run by run, with meter, log and memory."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import maitred
from maitred.core.request import Request
from maitred.instance import Instance, InstanceConfig, LinearLatency
from maitred.instance.batch_former import standard_parts
from maitred.instance.catalogue import resolve_instance
from maitred.instance.engine_core import EngineCore
from maitred.instance.latency import AIConfiguratorLatency, Grid, SiliconTable
from maitred.instance.plain_core import PlainCore, make_core
from maitred.instance.step_meter import ItlLog, StepMeter

Input = tuple[int, int, int]
"""Instant, verb (0: enqueue, 1: abort, 2: look, 3: another limit), and request or limit."""

MEASURED = AIConfiguratorLatency(
    table=SiliconTable(
        shared=((0, 20.0), (16, 30.0), (64, 130.0)),
        prompts=Grid(((1, 4), (0, 10, 100), (0, 50)), (0.0, 0.0, 3.0, 5.5, 40.0, 80.0, 0.0, 0.0, 7.0, 9.0, 90.0, 99.0)),
        decode=Grid(((1, 6), (0, 20, 60, 150)), (10.0, 12.0, 13.0, 40.0, 20.0, 22.0, 30.0, 100.0)),
        beside=Grid(((1, 6), (0, 40, 90)), (0.0, 3.25, 8.0, 1.0, 9.0, 30.0)),
    ),
    sequence_overhead=0.3,
)
"""Steps on several lines: runs go over their corners."""


@st.composite
def workloads(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[Request, int]], list[Input]]:
    """Draw the configuration of an instance, requests with their answers, and inputs."""
    size, blocks = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([20, 60, 400]))
    held = min(300, size * blocks)
    latency: Any = LinearLatency((draw(st.sampled_from([0, 10, 97])), draw(st.sampled_from([0, 1, 2.5])), 0.7))
    config = {
        "scheduler": draw(st.sampled_from(["fcfs", "fcfs", "sjf", "priority-fcfs"])),
        "max_num_seqs": draw(st.sampled_from([2, 8, 256])),
        "max_num_batched_tokens": draw(st.sampled_from([8, 64, 2048])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 5, 30])),
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 1, 3])),
        "vllm_release": "0.33",
        "total_kv_blocks": blocks,
        "block_size_in_tokens": size,
        "enable_prefix_caching": draw(st.sampled_from([False, False, True])),
        **draw(
            st.sampled_from(
                [{"latency": latency}] * 2 + [{"latency": MEASURED}, {"model": "meta-llama/llama-3.1-8b-instruct"}],
            )
        ),
    }
    jobs, inputs, now = list[tuple[Request, int]](), list[Input](), 0
    for number in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0, 1, 10, 100, 1000, 1000]))
        late = draw(st.sampled_from([None, None, None, 500, 3000]))
        request = Request(
            id=number,
            arrival=now,
            prompt_tokens=draw(st.integers(1, max(1, held // 3))),
            deadline=None if late is None else now + late,
        )
        jobs.append((request, draw(st.integers(1, held))))
        inputs.append((now, 0, number))
    end = st.integers(0, now + 2000)
    inputs += draw(st.lists(st.tuples(end, st.just(1), st.integers(0, len(jobs) - 1)), max_size=4))
    inputs += draw(st.lists(st.tuples(end, st.just(2), st.just(0)), max_size=6))
    inputs += draw(st.lists(st.tuples(end, st.just(3), st.sampled_from([1, 4, 256])), max_size=1))
    return config, jobs, sorted(inputs)


def drive(
    core: type[EngineCore], config: InstanceConfig, jobs: list[tuple[Request, int]], inputs: list[Input], *, logs: bool
) -> Any:
    """Return all that can be seen of an instance with a core of this kind, and the number of its runs on the straight line."""
    parts = standard_parts(config)
    engine = Instance(config, Random(0), parts)
    engine._core = core(config, config.policy().make_queue(parts.prefix_cache, Random(0)), parts)
    log = ItlLog() if logs else None
    meter = StepMeter(config.latency_model(), log)
    engine.observe(meter, log)
    inputs, seen, straight = list(inputs), list[Any](), 0
    while True:
        coming = inputs[0][0] if inputs else None
        due = engine.next_event((1 << 60) if coming is None else coming)
        seen.append((due, engine.num_steps))
        straight += engine._core.run is getattr(engine._core, "_plain_run", 0)
        if due is None and coming is None:
            break
        now = min(instant for instant in (due, coming) if instant is not None)
        while inputs and inputs[0][0] == now:
            _, verb, number = inputs.pop(0)
            if verb == 0:
                engine.enqueue(*jobs[number], now)
            elif verb == 1:
                engine.abort(number, now)
            elif verb == 2:
                engine.commit_ended_steps(now)
                seen.append((engine.waiting, engine.running, engine.free_blocks, engine._core.batch.context_tokens))
            else:
                engine.set_limit(number, now)
        for happened in engine.advance(now):
            seq = happened.seq
            seen.append((happened.at, happened.kind, seq.request_id, seq.num_output_tokens, seq.num_computed_tokens))
            seen.append((seq.scheduled_at, seq.first_token_at, seq.admission_index, seq.recomputed_tokens))
        engine.check()
    seen += [engine.num_steps, engine.num_preemptions, engine.free_blocks, meter.busy_time, meter.itl_sketch]
    if log is not None:
        log.close()
        seen += [log.stretch_steps, log.stretch_times, log.request_ids, log.first_stretches, log.end_stretches]
        seen += [log.single_gap_request_ids, log.single_gaps]
    return seen, straight


@settings(max_examples=60, deadline=None)
@given(workloads(), st.booleans())
def test_the_straight_line_says_what_the_layers_say(
    workload: tuple[dict[str, Any], list[tuple[Request, int]], list[Input]], logs: bool
) -> None:
    config, jobs, inputs = resolve_instance(InstanceConfig(**workload[0])), workload[1], workload[2]
    usual = type(make_core(config, Random(0), standard_parts(config)))
    seen, straight = drive(usual, config, jobs, inputs, logs=logs)
    assert seen == drive(EngineCore, config, jobs, inputs, logs=logs)[0]
    event("straight" if straight else "never straight")


def test_the_usual_runs_take_the_straight_line() -> None:
    """Each of two requests joins in a step of its own, the prompt of the first one is complete before that, and both end."""
    engine = Instance(InstanceConfig(latency=LinearLatency((100, 1, 0))), Random(0))
    engine.omit_first_tokens()
    dues = []
    for number, arrival in enumerate((0, 500, 1 << 60)):
        if number < 2:
            engine.enqueue(Request(id=number, arrival=arrival, prompt_tokens=50), 20, arrival)
        while (due := engine.next_event()) is not None and due < (500 if number == 0 else 1 << 60):
            assert engine._core.run is engine._core._plain_run
            dues.append(due)
            engine.advance(due)
    assert dues == [150, 550, 700, 2100, 2600]


@pytest.mark.parametrize(
    ("keys", "is_plain"),
    [
        ({}, True),
        ({"enable_prefix_caching": True}, True),
        ({"scheduler": "vtc"}, False),  # is told of what is served
        ({"step_by_step": True}, False),
        ({"async_scheduling": True}, False),
        ({"batching": "max-utilization"}, False),
    ],
)
def test_instances_have_it_whose_rules_allow_it(keys: dict[str, Any], is_plain: bool) -> None:
    config = InstanceConfig(**keys)
    assert (type(make_core(config, Random(0), standard_parts(config))) is PlainCore) == is_plain


def test_no_policy_reads_how_long_an_answer_is() -> None:
    """The engine core knows it, to know when the answer ends. A scheduler that read it would know the future."""
    package = Path(maitred.__file__).parent
    files = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    readers = {name for name, text in files.items() if re.search(r"\.answer_length\b", text)}
    assert readers == {"instance/engine_core.py", "instance/plain_core.py"}
