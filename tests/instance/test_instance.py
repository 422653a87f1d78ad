"""An instance as a timeline. Steps last 100 µs + 1 µs per prefill token + 10 µs per decode, so sums are easy by hand."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from instance_timeline import ABORTED, FINISHED, FIRST, PREEMPTED, TIMED_OUT, instance, request, run

from maitred.core.errors import ConfigError
from maitred.instance import EventKind, Instance, InstanceConfig, LinearLatency, parse_latency


def test_a_prompt_is_prefilled_then_each_step_emits_a_token() -> None:
    engine = instance()
    engine.enqueue(request(0, prompt=50), output_tokens=4, now=1000)
    # prefill 100 + 50, then three decodes of 100 + 10
    assert run(engine) == [(1150, FIRST, 0), (1480, FINISHED, 0)]
    assert engine.num_steps == 4


def test_an_answer_of_one_token_ends_with_its_prefill() -> None:
    engine = instance()
    engine.enqueue(request(0), output_tokens=1, now=0)
    assert run(engine) == [(150, FIRST, 0), (150, FINISHED, 0)]


def test_usage_is_what_is_used_of_all_so_that_equal_shares_are_equal_numbers() -> None:
    """A router that finds two instances equal must find them equal to the last bit: 1 - 9/10 is not 1/10."""
    engine = instance(total_kv_blocks=10)
    engine.enqueue(request(0, prompt=16), output_tokens=2, now=0)
    engine.next_event()
    assert engine.kv_usage == 1 / 10


def test_an_arrival_joins_at_the_next_step_boundary() -> None:
    engine = instance()
    engine.enqueue(request(0, prompt=50), output_tokens=10, now=0)
    assert engine.next_event() == 150
    assert [e.kind for e in engine.advance(150)] == [FIRST]
    assert engine.next_event() == 150 + 9 * 110  # nine decodes, skipped in one run
    engine.enqueue(request(1, prompt=30), output_tokens=1, now=300)
    assert engine.next_event() == 370  # 150 + 2 * 110: the step in progress ends
    assert not engine.advance(370)
    # one step of both: 100 + 10 + 30; then six decodes are left for the first
    assert run(engine) == [(510, FIRST, 1), (510, FINISHED, 1), (510 + 6 * 110, FINISHED, 0)]


def test_an_arrival_at_a_boundary_joins_the_step_that_begins_there() -> None:
    engine = instance()
    engine.enqueue(request(0), output_tokens=3, now=0)
    assert engine.next_event() == 150
    engine.enqueue(request(1, prompt=40), output_tokens=1, now=150)
    assert run(engine) == [(150, FIRST, 0), (300, FIRST, 1), (300, FINISHED, 1), (410, FINISHED, 0)]


def test_a_long_prompt_is_prefilled_in_chunks_beside_the_decodes() -> None:
    engine = instance(max_num_batched_tokens=64)
    engine.enqueue(request(0, prompt=10), output_tokens=20, now=0)
    engine.enqueue(request(1, prompt=150), output_tokens=1, now=0)
    # chunks: 54 beside the prompt of 10; 63 and 33 beside one decode
    ends = [100 + 64, 164 + 100 + 10 + 63, 337 + 100 + 10 + 33]
    assert run(engine)[:3] == [(ends[0], FIRST, 0), (ends[2], FIRST, 1), (ends[2], FINISHED, 1)]


def test_the_threshold_lets_others_in_beside_a_long_prompt() -> None:
    engine = instance(max_num_batched_tokens=64, long_prefill_token_threshold=40)
    engine.enqueue(request(0, prompt=80), output_tokens=1, now=0)
    engine.enqueue(request(1, prompt=20), output_tokens=1, now=0)
    assert run(engine) == [(160, FIRST, 1), (160, FINISHED, 1), (300, FIRST, 0), (300, FINISHED, 0)]


def test_the_sequence_limit_keeps_others_waiting() -> None:
    engine = instance(max_num_seqs=1)
    for number in (0, 1):
        engine.enqueue(request(number), output_tokens=2, now=0)
    assert run(engine) == [(150, FIRST, 0), (260, FINISHED, 0), (410, FIRST, 1), (520, FINISHED, 1)]


def test_when_blocks_run_out_the_last_admitted_is_recomputed() -> None:
    # 4 blocks of 10 tokens. Both prompts fill two blocks, so the first decode of each needs a third.
    engine = instance(total_kv_blocks=4, block_size_in_tokens=10)
    for number in (0, 1):
        engine.enqueue(request(number, prompt=20), output_tokens=3, now=0)
    events = run(engine)
    assert events == [
        (140, FIRST, 0),
        (140, FIRST, 1),
        (140, PREEMPTED, 1),
        (360, FINISHED, 0),
        # 20 prompt tokens and the one it had emitted are computed again, which gives its second token; a decode the third
        (360 + 121 + 110, FINISHED, 1),
    ]
    assert engine.num_preemptions == 1
    assert engine.free_blocks == 4


def test_a_prompt_is_admitted_only_when_all_of_it_fits_and_blocks_those_behind() -> None:
    engine = instance(total_kv_blocks=4, block_size_in_tokens=10)
    engine.enqueue(request(0, prompt=15), output_tokens=2, now=0)
    engine.enqueue(request(1, prompt=25), output_tokens=1, now=0)
    engine.enqueue(request(2, prompt=5), output_tokens=1, now=0)
    assert [(at, number) for at, kind, number in run(engine) if kind is FINISHED] == [(225, 0), (355, 1), (355, 2)]


def test_an_answer_ends_where_the_client_or_the_model_length_limits_it() -> None:
    engine = instance(max_model_len=60)
    engine.enqueue(request(0, prompt=50, max_output_tokens=3), output_tokens=100, now=0)
    engine.enqueue(request(1, prompt=50), output_tokens=100, now=0)
    emitted: dict[int, int] = {}
    while (now := engine.next_event()) is not None:
        emitted |= {e.seq.request.id: e.seq.num_output_tokens for e in engine.advance(now) if e.kind is FINISHED}
    assert emitted == {0: 3, 1: 10}


def test_what_can_never_run_is_refused() -> None:
    engine = instance(max_model_len=60)
    assert engine.lengths.rejection_reason(request(0, prompt=59)) is None
    assert "60 prompt and 1 output tokens are more than the model length of 60" in (
        engine.lengths.rejection_reason(request(0, prompt=60)) or ""
    )
    assert engine.lengths.rejection_reason(request(0, prompt=50, max_output_tokens=11)) is not None
    assert engine.lengths.rejection_reason(request(0, prompt=0)) == "the prompt has no tokens"
    engine.enqueue(request(0, prompt=60), output_tokens=1, now=5)
    assert engine.next_event() == 5  # there is something to be fetched
    assert [(e.at, e.kind) for e in engine.advance(5)] == [(5, EventKind.REFUSED)]
    assert engine.next_event() is None


def test_a_deadline_takes_a_request_out_and_the_step_in_progress_goes_on() -> None:
    engine = instance()
    engine.enqueue(request(0, deadline=200), output_tokens=50, now=0)
    engine.enqueue(request(1, prompt=20), output_tokens=3, now=0)
    # prefill of both 170; the first decode, of both, 170..290, goes on without 0; then one decode of 110
    assert run(engine) == [(170, FIRST, 0), (170, FIRST, 1), (200, TIMED_OUT, 0), (400, FINISHED, 1)]


def test_what_ends_at_its_deadline_is_complete() -> None:
    engine = instance()
    engine.enqueue(request(0, deadline=150), output_tokens=1, now=0)
    assert [kind for _, kind, _ in run(engine)] == [FIRST, FINISHED]


def test_a_request_that_comes_after_its_deadline_is_timed_out() -> None:
    engine = instance()
    engine.enqueue(request(0, deadline=10), output_tokens=1, now=20)
    assert [(e.at, e.kind) for e in engine.advance(20)] == [(20, TIMED_OUT)]


@pytest.mark.parametrize("keys", [{}, {"async_scheduling": True}, {"async_scheduling": True, "batching": "maitred"}])
def test_an_aborted_request_frees_its_blocks_at_once(keys: dict[str, Any]) -> None:
    """Before its first step has ended, and in the middle of its answer; also if the scheduler plans one step ahead."""
    engine = instance(**keys)
    engine.enqueue(request(0, prompt=50), output_tokens=50, now=0)
    engine.enqueue(request(1, prompt=50), output_tokens=50, now=0)
    engine.next_event()
    assert engine.abort(0, now=60)
    held = engine.total_blocks - engine.free_blocks
    while engine.num_output_tokens(1) < 3:
        engine.advance(engine.next_event() or 0)
        engine.advance(500)
    assert engine.total_blocks - engine.free_blocks == held
    assert engine.abort(1, now=510)
    assert engine.free_blocks == engine.total_blocks


def test_after_an_abort_the_step_in_progress_ends_as_before() -> None:
    engine = instance()
    engine.enqueue(request(0, prompt=50), output_tokens=50, now=0)
    engine.next_event()
    assert engine.abort(0, now=60)
    assert engine.free_blocks == engine.total_blocks
    assert not engine.abort(0, now=60)
    engine.enqueue(request(1), output_tokens=1, now=70)  # the prefill in progress ends at 150 all the same
    assert run(engine) == [(60, ABORTED, 0), (300, FIRST, 1), (300, FINISHED, 1)]


def test_emitted_counts_tokens_in_the_middle_of_a_run() -> None:
    engine = instance()
    engine.enqueue(request(0), output_tokens=50, now=0)
    engine.advance(engine.next_event() or 0)
    assert engine.num_output_tokens(0) == 1
    assert engine.next_event() == 150 + 49 * 110
    engine.advance(150 + 5 * 110 + 7)
    assert engine.num_output_tokens(0) == 6
    assert engine.sequence(0).num_output_tokens == 6
    with pytest.raises(KeyError):
        engine.num_output_tokens(1)


def test_an_id_that_is_here_already_is_the_drivers_mistake() -> None:
    engine = instance()
    engine.enqueue(request(0), output_tokens=1, now=0)
    with pytest.raises(ValueError, match="request 0 is here already"):
        engine.enqueue(request(0), output_tokens=1, now=0)


def test_a_driver_that_comes_late_gets_the_same_events() -> None:
    engine = instance()
    engine.enqueue(request(0), output_tokens=3, now=0)
    assert [(e.at, e.kind) for e in engine.advance(10_000)] == [(150, FIRST), (370, FINISHED)]


def test_an_unknown_scheduler_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="unknown scheduler 'fifo'"):
        Instance(InstanceConfig(scheduler="fifo"), Random(0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be from 1 to 1,000,000, not 0"),
        ({"block_size_in_tokens": 10**12}, "block_size_in_tokens must be from 1 to 65,536"),
        ({"total_kv_blocks": 0}, "total_kv_blocks must be from 1"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0"),
        ({"max_model_len": 1}, "max_model_len must be at least 2"),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InstanceConfig(**fields)  # type: ignore[arg-type]


def test_coefficients_may_be_numbers_of_numpy() -> None:
    fitted = np.array([5000, 17, 60])
    assert LinearLatency(tuple(fitted)) == LinearLatency((5000, 17, 60))


def test_latency_is_parsed_as_flags_write_it() -> None:
    assert parse_latency("linear:5000,17.5,60") == LinearLatency((5000, 17.5, 60))
    for wrong in ("linear:1,2", "linear:", "linear:a,b,c", "linear:-1,2,3", "linear:nan,0,0", "linear:1e308,0,0"):
        with pytest.raises(ConfigError, match="three numbers from 0 to"):
            parse_latency(wrong)
    with pytest.raises(ConfigError, match="did you mean 'linear'"):
        parse_latency("liner:1,2,3")
