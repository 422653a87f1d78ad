"""The agentic set: one recorded session with two sub-agents, in both encodings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maitred.core.errors import ConfigError
from maitred.core.units import SECOND, from_seconds
from maitred.workload import Job, open_trace
from maitred.workload.trace_format import TraceRow


def jobs(path: Path) -> list[Job]:
    with open_trace(str(path)) as trace:
        return list(trace)


def rows(path: Path) -> list[TraceRow]:
    with open_trace(str(path)) as trace:
        return list(trace._usable_rows())


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
