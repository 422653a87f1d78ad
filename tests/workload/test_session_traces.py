"""Recorded sessions: TraceV2 of BLIS (absolute times, shared prefixes, the meaning of its optional columns), and the agentic
set, one session with two sub-agents in both encodings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND, from_seconds
from maitred.workload import FORMATS, Job, LineReader, open_trace
from maitred.workload.formats.blis import WRITTEN_COLUMNS
from maitred.workload.trace_format import NotReplayedError, TraceRow


def row(**fields: object) -> str:
    usual: dict[str, object] = {
        "request_id": 0,
        "input_tokens": 9,
        "output_tokens": 4,
        "arrival_time_us": 500,
        "streaming": "true",
    }
    return ",".join(str((usual | fields).get(column, "")) for column in WRITTEN_COLUMNS)


def trace(path: Path, *rows: str, columns: Sequence[str] = WRITTEN_COLUMNS) -> Path:
    path.write_text("\n".join([",".join(columns), *rows]))
    return path


def jobs(path: Path) -> list[Job]:
    with open_trace(str(path)) as opened:
        return list(opened)


def error_of(path: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        jobs(path)
    return str(raised.value)


def test_a_row_is_what_replay_makes_of_it(tmp_path: Path) -> None:
    fields = row(
        request_id=7,
        tenant_id="t1",
        slo_class="critical",
        session_id="s",
        streaming="false",
        model="m",
        deadline_us=9_000,
        send_time_us=22_906,
    )
    (job,) = jobs(trace(tmp_path / "t.csv", fields))
    request = job.request
    assert (request.id, request.arrival, request.deadline) == (7, 22_906, 9_000)
    assert (request.prompt_tokens, request.max_output_tokens, job.output_tokens) == (9, 4, 4)
    assert (request.slo_class, request.priority_class) == ("critical", PriorityClass.INTERACTIVE)
    assert (request.tenant, request.program, request.model, request.stream) == ("t1", "s", "m", False)


def test_times_are_those_of_the_trace_unless_its_clock_is_of_1970(tmp_path: Path) -> None:
    first, second = jobs(trace(tmp_path / "t.csv", row(), row(request_id=1, arrival_time_us=600, send_time_us=0)))
    assert (first.request.arrival, second.request.arrival) == (500, 600)
    now = 1_763_000_000_000_000
    (first,) = jobs(trace(tmp_path / "t.csv", row(arrival_time_us=now, deadline_us=now + 100)))
    assert (first.request.arrival, first.request.deadline) == (0, 100)


def test_blocks_wholly_within_a_groups_prefix_are_shared_and_all_others_are_not(tmp_path: Path) -> None:
    """40 shared tokens are two blocks of 16; the third block, in which they end, belongs to each request alone."""
    group = {"prefix_group": "g", "prefix_length": 40, "input_tokens": 24}
    first, second, other_group, other_model, alone = jobs(
        trace(
            tmp_path / "t.csv",
            row(**group),
            row(**group, request_id=1),
            row(**group | {"prefix_group": "h"}, request_id=2),
            row(**group, model="m", request_id=3),
            row(input_tokens=64, request_id=4),
        )
    )
    assert first.request.prompt_tokens == 64
    keys = [
        list(job.request.prefix.block_keys(16))
        for job in (first, second, other_group, other_model, alone)
        if job.request.prefix
    ]
    assert [len(chain) for chain in keys] == [4] * 5
    assert keys[0][:2] == keys[1][:2]
    assert len({key for chain in keys for key in chain}) == 5 * 4 - 2


def test_what_a_server_counted_holds_where_there_is_no_group(tmp_path: Path) -> None:
    first, second = jobs(
        trace(
            tmp_path / "t.csv",
            row(server_input_tokens=77),
            row(request_id=1, server_input_tokens=77, prefix_group="g", prefix_length=50),
        )
    )
    assert (first.request.prompt_tokens, second.request.prompt_tokens) == (77, 59)


def test_optional_columns_go_by_name(tmp_path: Path) -> None:
    columns = [*WRITTEN_COLUMNS, "vllm_priority", "slo_target_us", "x_request_id", "adapter"]
    (job,) = jobs(trace(tmp_path / "t.csv", row() + ",3,250000,abc,lora-1", columns=columns))
    request = job.request
    assert (request.priority, request.slo_target, request.client_id, request.cache_namespace) == (
        -3.0,
        250_000,
        "abc",
        "lora-1",
    )


def test_ids_that_are_no_numbers_become_client_ids(tmp_path: Path) -> None:
    first, second = jobs(trace(tmp_path / "t.csv", row(request_id="request_8"), row(request_id="request_9")))
    assert [(job.request.id, job.request.client_id) for job in (first, second)] == [(0, "request_8"), (1, "request_9")]


def test_rows_by_id_are_put_in_order_of_arrival(tmp_path: Path) -> None:
    times = [700, 500, 600, 500]
    read = jobs(trace(tmp_path / "t.csv", *(row(request_id=n, arrival_time_us=at) for n, at in enumerate(times))))
    assert [(job.request.arrival, job.request.id) for job in read] == [(500, 1), (500, 3), (600, 2), (700, 0)]


def test_ids_may_come_in_any_order_and_once(tmp_path: Path) -> None:
    ids = [5, 3, 4, 9, 0, 1, 7, 8, 2, 6]
    read = jobs(trace(tmp_path / "t.csv", *(row(request_id=number) for number in ids)))
    assert [job.request.id for job in read] == ids
    for again in ids:
        fields = error_of(trace(tmp_path / "t.csv", *(row(request_id=number) for number in [*ids, again])))
        assert f":12: its id is {again}, as that of a row above" in fields


def test_a_quoted_field_may_hold_commas(tmp_path: Path) -> None:
    (job,) = jobs(trace(tmp_path / "t.csv", row(error_message='"no, never"')))
    assert job.output_tokens == 4


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"request_id": 1}, ":3: its id is 1, as that of a row above"),
        ({"request_id": "x"}, ":3: its id is no whole number"),
        ({"request_id": 2, "input_tokens": 0}, ":3: input_tokens is '0'"),
        ({"request_id": 2, "output_tokens": ""}, ":3: output_tokens is ''"),
        ({"request_id": 2, "arrival_time_us": "1.5"}, ":3: arrival_time_us is '1.5'"),
        ({"request_id": 2, "prefix_length": "-1", "prefix_group": "g"}, ":3: prefix_length is '-1'"),
        ({"request_id": 2, "streaming": "yes"}, ":3: streaming is 'yes'"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, fields: dict[str, object], what: str) -> None:
    assert what in error_of(trace(tmp_path / "t.csv", row(request_id=1), row(**fields)))


def test_where_contexts_accumulate_a_round_says_what_is_new(tmp_path: Path) -> None:
    """Session a has 40 + 30 tokens, then 50 new ones after an answer of 26 (146 in all), then no new ones after an answer of 14
    (160). Each session has a clock of its own. Prompt and answer of the first round are 96 tokens, which are six blocks."""
    (tmp_path / "t.yaml").write_text("trace_version: 3\nsession_context_growth: accumulate\n")
    group = {"prefix_group": "g", "prefix_length": 40}
    read = jobs(
        trace(
            tmp_path / "t.csv",
            row(session_id="a", input_tokens=30, output_tokens=26, arrival_time_us=0, **group),
            row(session_id="a", input_tokens=50, output_tokens=14, arrival_time_us=90, request_id=1, **group),
            row(session_id="a", input_tokens=0, output_tokens=1, arrival_time_us=95, request_id=2),
            row(session_id="b", input_tokens=30, output_tokens=26, arrival_time_us=20, request_id=3, **group),
            row(input_tokens=70, output_tokens=26, arrival_time_us=99, request_id=4),
        )
    )
    assert [(job.request.id, job.request.prompt_tokens) for job in read] == [(0, 70), (3, 70), (1, 146), (2, 160), (4, 70)]
    first, alone = read[0], read[-1]
    keys = [list(job.request.prefix.block_keys(16)) for job in read if job.request.prefix]
    assert first.conversation_prefix is not None
    assert list(first.conversation_prefix.block_keys(16)) == keys[2][:6]
    assert (keys[0], keys[3][:9]) == (keys[2][:4], keys[2])
    assert [mine == theirs for mine, theirs in zip(keys[0], keys[1], strict=True)] == [True, True, False, False]
    assert alone.conversation_prefix is None


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ("trace_version: 1", "trace_version is 1"),
        ("session_context_growth: Accumulate", "this is no header of a BLIS trace"),
        ("trace_version: 2\ntime_unit: ms", "time_unit is 'ms'"),
        ("- 2", "this is no header of a BLIS trace"),
        ("a: [", "this is no header of a BLIS trace"),
        ("goodput_slo_targets: {critical: {ttft_ms: .nan}}", "ttft_ms must be above 0"),
        ("trace_version: true", "trace_version: expected"),
    ],
)
def test_a_header_that_means_something_else_is_refused(tmp_path: Path, header: str, what: str) -> None:
    (tmp_path / "t.yaml").write_text(header)
    assert what in error_of(trace(tmp_path / "t.csv", row()))
    (tmp_path / "t.yaml").write_text("trace_version: 2\ntime_unit: microseconds\nmode: real\n")
    assert len(jobs(tmp_path / "t.csv")) == 1


def test_an_adapter_is_the_routing_key_and_a_cache_of_its_own(tmp_path: Path) -> None:
    (job,) = jobs(trace(tmp_path / "t.csv", f"{row()},lora-1", columns=[*WRITTEN_COLUMNS, "adapter"]))
    assert (job.request.routing_key, job.request.cache_namespace) == ("lora-1", "lora-1")


@pytest.mark.parametrize("wrong", ["nan", "inf", "-inf", "true", "null"])
@pytest.mark.parametrize("name", ["vllm_priority", "slo_target_us", "think_time_us"])
def test_an_optional_column_without_a_number_is_a_bad_row(tmp_path: Path, name: str, wrong: str) -> None:
    message = error_of(trace(tmp_path / "t.csv", f"{row()},{wrong}", columns=[*WRITTEN_COLUMNS, name]))
    assert f"t.csv:2: {name} is {wrong!r}" in message


def rows(path: Path) -> list[TraceRow]:
    lines = LineReader(path)
    parse, found = FORMATS.create("agentic").make_parser(lines), list[TraceRow]()
    for line in lines:
        with suppress(NotReplayedError):
            parsed = parse(line)
            found += [parsed] if isinstance(parsed, TraceRow) else [row for row in parsed if isinstance(row, TraceRow)]
    return found


def keys(job: Job, block_size: int = 64) -> list[int]:
    assert job.request.prefix is not None
    return list(job.request.prefix.block_keys(block_size))


def test_a_session_and_its_sub_agents_as_recorded(samples: Path) -> None:
    """The session has 20 requests; its sub-agents have 5 and 7, and start at 1148.013 s and 1180.553 s."""
    read = jobs(samples / "agentic_one_session.jsonl")
    assert len(read) == 20 + 5 + 7
    by_program = {
        name: [job for job in read if job.request.program == name] for name in ("trace_0291", "trace_0291/16", "trace_0291/17")
    }
    assert [len(found) for found in by_program.values()] == [20, 5, 7]
    assert by_program["trace_0291/16"][0].request.arrival == from_seconds(1148.013)
    second = by_program["trace_0291"][1]
    assert (second.request.arrival, second.request.prompt_tokens, second.output_tokens) == (19 * SECOND, 18_763, 300)


def test_prompts_share_the_blocks_that_they_keep(samples: Path) -> None:
    """The second prompt keeps all 279 blocks of the first, the third all 293 of the second, the fourth 297 of 298."""
    first, second, third, fourth = [
        job for job in jobs(samples / "agentic_one_session.jsonl") if "/" not in job.request.program
    ][:4]
    assert [len(keys(job)) for job in (first, second, third, fourth)] == [279, 293, 298, 1_208]
    assert keys(second)[:279] == keys(first)
    assert keys(fourth)[:297] == keys(third)[:297]
    assert keys(fourth)[297] != keys(third)[297]
    assert keys(second, 16)[: 4 * 279] == keys(first, 16)
    assert len(keys(second, 128)) == 146


def test_what_comes_of_an_answer_is_known_where_the_next_prompt_goes_on_with_all_of_it(tmp_path: Path) -> None:
    def call(t: int, size: int, keep: int, new: list[list[int]], **said: object) -> dict[str, object]:
        return {"t": t, "in": size, "out": 64, "keep": keep, "new": new, **said}

    calls = [
        call(0, 640, 0, [[1, 10]]),
        call(9, 768, 10, [[11, 12]], output_types=["thinking"]),
        call(19, 900, 12, [[13, 14]]),
        call(29, 900, 9, [[20, 24]]),
    ]
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"id": "s", "block_size": 64, "requests": calls}))
    known, thought, rewritten, last = jobs(path)
    assert known.conversation_prefix is not None
    assert list(known.conversation_prefix.block_keys(64))[:10] == keys(known)
    assert list(known.conversation_prefix.block_keys(64)) == keys(thought)[:11]
    assert (thought.conversation_prefix, rewritten.conversation_prefix, last.conversation_prefix) == (None, None, None)


@pytest.mark.parametrize(("next_prompt", "known"), [(703, False), (704, True)])
def test_a_prompt_that_ends_within_the_answer_before_it_does_not_say_what_became_of_that(
    tmp_path: Path, next_prompt: int, known: bool
) -> None:
    """The prompt has 640 tokens, the answer 64."""
    calls = [
        {"t": 0, "in": 640, "out": 64, "keep": 0, "new": [[1, 10]]},
        {"t": 9, "in": next_prompt, "out": 64, "keep": 10, "new": [[11, 11]]},
    ]
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"id": "s", "block_size": 64, "requests": calls}))
    assert (jobs(path)[0].conversation_prefix is not None) == known


def test_pauses_and_parents_of_both_encodings(samples: Path) -> None:
    """The first sub-agent starts at 1148.013 s; the previous request of its parent arrived at 1085 s and took 15.64 s."""
    said = rows(samples / "agentic_one_session.jsonl")
    first = next(row for row in said if row.program == "trace_0291/16")
    assert (first.parent_program, first.think_time) == ("trace_0291", from_seconds(1148.013) - from_seconds(1085 + 15.64))
    assert said[1].think_time == 9 * SECOND
    table = rows(samples / "agentic_one_session.csv")
    first = next(row for row in table if row.program == "trace_0291/16")
    assert (first.parent_program, first.think_time, first.arrival) == ("trace_0291", 0, from_seconds(1085 + 15.64))
    sizes = [(row.program, row.prompt_tokens, row.output_tokens, row.stream) for row in said]
    assert [(row.program, row.prompt_tokens, row.output_tokens, row.stream) for row in table] == sizes


def test_the_table_shares_as_many_blocks_as_it_says(samples: Path) -> None:
    first, second, third, fourth = [job for job in jobs(samples / "agentic_one_session.csv") if "/" not in job.request.program][
        :4
    ]
    assert keys(second)[:279] == keys(first)
    assert keys(fourth)[:297] == keys(third)[:297]
    assert not set(keys(fourth)[297:]) & set(keys(third))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ({"new": [[1, -10]]}, "requests[1].new[0][1]: expected a whole number >= 0"),
        ({"new": [[-1, 10]]}, "requests[1].new[0][0]: expected a whole number >= 0"),
        ({"new": [[1, 2**32]]}, "requests[1].new[0][1]: expected a whole number <= 4294967295"),
        ({"new": [[1, 2**63]]}, "requests[1].new[0][1]: expected a whole number <= 4294967295"),
        ({"keep": -1}, "requests[1].keep: expected a whole number >= 0"),
        ({"new": [[10, 8]]}, "new has the range [10, 8] (its first block comes before its last, as in [11, 13]"),
        ({"keep": 2**64, "new": [[2, 3]]}, "a prompt has the block 2 twice (ids are chained: no prompt can repeat one"),
    ],
)
def test_blocks_that_there_cannot_be_are_an_error(tmp_path: Path, call: dict[str, object], what: str) -> None:
    calls = [{"t": 0, "in": 128, "out": 1, "new": [[1, 2]]}, {"t": 5, "in": 256, "out": 1, **call}]
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"id": "s", "block_size": 64, "requests": calls}))
    with pytest.raises(ConfigError) as raised:
        jobs(path)
    assert str(raised.value).startswith(f"{path}:1: {what}")


def test_a_request_without_tokens_is_counted_and_left_out(tmp_path: Path) -> None:
    calls = [{"t": 0, "in": 64, "out": 0, "new": [[1, 1]]}, {"t": 5, "in": 64, "out": 1, "keep": 1}]
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"id": "s", "block_size": 64, "requests": calls}))
    with open_trace(str(path)) as trace:
        assert [job.request.prompt_tokens for job in trace] == [64]
        assert trace.num_skipped == 1
