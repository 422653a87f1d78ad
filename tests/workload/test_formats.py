"""Formats of load generators and of published traces: rows by hand, and the prefixes that they give to prompts; the samples."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND
from maitred.workload import FORMATS, BadRows, Job, open_trace, sample_jobs, sample_names
from maitred.workload.prefix_keys import ChainedBlockIds

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*rows: str | dict[str, object]) -> Path:
        path = tmp_path / "trace"
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return path

    return write


def jobs(spec: object, bad_rows: BadRows = BadRows.REFUSE) -> list[Job]:
    with open_trace(str(spec), bad_rows=bad_rows) as trace:
        return list(trace)


def error_of(spec: object) -> str:
    with pytest.raises(ConfigError) as raised:
        jobs(spec)
    return str(raised.value)


def keys(job: Job, block_size: int = 16) -> list[int]:
    assert job.request.prefix is not None
    return list(job.request.prefix.block_keys(block_size))


def shape(job: Job) -> tuple[int, int, int]:
    return job.request.arrival, job.request.prompt_tokens, job.output_tokens


# BurstGPT

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def test_burstgpt_in_seconds_from_its_first_row_with_models_and_sessions(write: Write) -> None:
    first, second = jobs(write(BURST, "5,ChatGPT,472,18,490,Conversation log", "45.5,GPT-4,1087,230,1317,API log"))
    assert (shape(first), shape(second)) == ((0, 472, 18), (40_500_000, 1087, 230))
    assert (first.request.model, second.request.model) == ("ChatGPT", "GPT-4")
    (job,) = jobs(write(BURST_3, "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log"))
    assert (shape(job), job.request.program) == ((0, 906, 446), "1722ac82")


def test_burstgpts_failures_are_counted_and_not_replayed(write: Write) -> None:
    path = write(BURST, "5,GPT-4,9,0,9,API log", "7,GPT-4,9,1,10,API log")
    with open_trace(str(path)) as trace:
        assert [job.request.arrival for job in trace] == [0]
        assert trace.num_skipped == 1
        assert str(trace.first_skipped) == f"{path}:2: a request that failed: it has no response tokens (it is not replayed)"
    assert "there is no row" not in error_of(write(BURST, "5,GPT-4,9,0,9,API log"))


@pytest.mark.parametrize(("row", "what"), [("x,m,1,1,2,l", "Timestamp is 'x'"), ("1,m,0,1,1,l", "Request tokens is '0'")])
def test_a_bad_burstgpt_row_is_named_by_its_line(write: Write, row: str, what: str) -> None:
    assert f"trace:3: {what}" in error_of(write(BURST, "1,m,1,1,2,l", row))


def test_a_quote_that_is_not_closed_is_an_error_of_its_line(write: Write) -> None:
    path = write(BURST, "1,m,1,1,2,l", '2,m,1,"' + "1" * 200_000)
    assert f"{path}:3: no CSV: '2,m,1,\"111" in error_of(path)
    assert len(error_of(path)) < 500
    assert "the first line does not tell the format" in error_of(write('"' + "1" * 200_000))


@pytest.mark.parametrize("name", ["mooncake", "timed_trace", "agentic", "aiperf", "bailian"])
def test_json_that_is_nested_too_deeply_is_an_error_of_its_line(write: Write, name: str) -> None:
    path = write('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert f"{path}:1: it is nested too deeply" in error_of(f"{name}:{path}")
    assert "the first line does not tell the format" in error_of(path)


def test_mooncakes_ids_are_chained_and_so_never_twice_in_a_prompt(write: Write) -> None:
    path = write('{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [7, 7]}')
    assert "hash_ids has an id twice" in error_of(path)


# Bailian


def test_bailians_chats_are_programs_and_its_blocks_of_16_are_prefixes(write: Write) -> None:
    row = {"timestamp": 61.114, "input_length": 40, "output_length": 9, "type": "text", "turn": 1}
    root, other, child, grandchild = jobs(
        write(
            {**row, "chat_id": 159, "parent_chat_id": -1, "hash_ids": [1, 2, 3]},
            {**row, "chat_id": 7, "parent_chat_id": -1, "hash_ids": [4, 2, 3]},
            {**row, "chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 48, "hash_ids": [1, 2, 9]},
            {**row, "chat_id": 161, "parent_chat_id": 160, "timestamp": 63, "hash_ids": [1, 2]},
        )
    )
    assert [job.request.program for job in (root, other, child, grandchild)] == ["159", "7", "159", "159"]
    assert shape(child) == (1_386_000, 48, 9)
    assert keys(root) == keys(grandchild) == keys(child)[:2]
    assert not set(keys(root)) & set(keys(other)), "2 after 4 is another prefix than 2 after 1"


def test_bailians_chats_are_forgotten_after_the_largest_number_of_chats(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chats are remembered. Chat 1 is forgotten when 3 arrives, and 2, which continued 1, when 4 arrives: 5, which
    continues 2, is no longer in the program of 1."""
    monkeypatch.setattr("maitred.workload.formats.hash_ids._MAX_CHATS", 2)
    parents = {1: -1, 2: 1, 3: -1, 4: 2, 5: 2}
    row = {"timestamp": 0, "input_length": 40, "output_length": 9}
    read = jobs(write(*({**row, "chat_id": chat, "parent_chat_id": parent} for chat, parent in parents.items())))
    assert [job.request.program for job in read] == ["1", "1", "3", "1", "2"]


def test_a_block_of_the_cache_may_be_several_of_the_trace(write: Write) -> None:
    row = {"timestamp": 0, "output_length": 9, "chat_id": 1}
    first, second = jobs(
        write({**row, "input_length": 64, "hash_ids": [1, 2, 3, 4]}, {**row, "input_length": 70, "hash_ids": [1, 2, 3, 5, 6]})
    )
    assert [len(keys(job, 32)) for job in (first, second)] == [2, 2]
    assert keys(first, 32)[0] == keys(second, 32)[0]
    assert keys(first, 32)[1] != keys(second, 32)[1]
    assert len(keys(second, 64)) == 1


def test_bailian_ids_must_fit_the_prompt(write: Write) -> None:
    row = {"timestamp": 0, "input_length": 64, "output_length": 9, "chat_id": 1, "hash_ids": [1]}
    assert "trace:1: 1 hash_ids for 64 tokens (they are 4 blocks of 16" in error_of(write(row))


# vLLM timed_trace


def test_timed_trace_is_in_seconds_and_blocks_of_16(write: Write) -> None:
    path = write(
        {"timestamp": 1, "input_length": 40, "output_length": 3, "hash_ids": [7, 8, 9]},
        {"timestamp": 1.5, "input_length": 32, "output_length": 4, "hash_ids": [7, 8]},
    )
    first, second = jobs(f"timed_trace:{path}")
    assert (shape(first), shape(second)) == ((0, 40, 3), (500_000, 32, 4))
    assert keys(first) == keys(second)


def test_a_mooncake_file_is_no_timed_trace(write: Write) -> None:
    path = write({"timestamp": 0, "input_length": 1200, "output_length": 3, "hash_ids": [7, 8, 9]})
    assert "a file with blocks of 512 is mooncake:FILE" in error_of(f"timed_trace:{path}")


def test_timed_trace_has_the_units_and_keys_that_its_parameters_name(write: Write) -> None:
    path = write({"ts": 3000, "in": 1200, "out": 3, "ids": [7, 8, 9]}, {"ts": 6000, "in": 600, "out": 4, "ids": [7, 8]})
    keys_named = "label_timestamp=ts, label_input_length=in, label_output_length=out, label_hash_ids=ids"
    first, second = jobs(f"timed_trace(0.001, 512, {keys_named}):{path}")
    assert (shape(first), shape(second)) == ((0, 1200, 3), (3_000_000, 600, 4))
    assert keys(first, 512)[:1] == keys(second, 512)
    assert "timestamp" in error_of(f"timed_trace:{path}")


def test_timed_trace_reads_no_ids_beyond_the_prompt(write: Write) -> None:
    path = write({"timestamp": 0, "input_length": 40, "output_length": 3, "hash_ids": [7, 8, 9, 10, 11]})
    (job,) = jobs(f"timed_trace:{path}")
    assert (job.request.prompt_tokens, len(keys(job))) == (40, 2)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("sec_multiplier=0", "sec_multiplier must be from 1e-9"),
        ("sec_multiplier=nan", "sec_multiplier must be from 1e-9"),
        ("chunk_hash_size=0", "chunk_hash_size must be from 1"),
        ("sec_multiplier=1e9", "timestamp is 2e+09"),
        ("chunk_hash_size=8", "chunk_hash_size says how many tokens an id stands for"),
    ],
)
def test_a_wrong_unit_of_a_timed_trace_is_an_error(write: Write, parameters: str, said: str) -> None:
    path = write({"timestamp": 2e9, "input_length": 40, "output_length": 3, "hash_ids": [7, 8, 9]})
    assert said in error_of(f"timed_trace({parameters}):{path}")


# AIPerf


def test_aiperfs_turns_are_prompts_that_grow(write: Write) -> None:
    """700 + 52 tokens, then 100 new ones: a prompt of 852. 47 of its blocks of 16 come from the first round (752 tokens)."""
    path = write(
        {"session_id": "a", "timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]},
        {"session_id": "b", "timestamp": 5, "input_length": 600, "output_length": 9, "hash_ids": [0, 2]},
        {"session_id": "a", "timestamp": 2000.5, "input_length": 100, "output_length": 10},
    )
    first, other, second = jobs(path)
    assert (shape(first), shape(second)) == ((0, 700, 52), (2_000_500, 852, 10))
    assert [job.request.program for job in (first, other, second)] == ["a", "b", "a"]
    assert first.conversation_prefix is not None
    whole = list(first.conversation_prefix.block_keys(16))
    assert (len(keys(first)), len(whole), len(keys(second))) == (43, 47, 53)
    assert whole[:43] == keys(first)
    assert keys(second)[:47] == whole
    assert [mine == theirs for mine, theirs in zip(keys(first), keys(other), strict=False)] == [True] * 32 + [False] * 5


def test_aiperf_rows_that_stand_by_session_are_put_in_order(write: Write) -> None:
    turn = {"input_length": 5, "output_length": 1}
    rows = [
        {**turn, "session_id": "a", "timestamp": 0},
        {**turn, "session_id": "a", "timestamp": 90},
        {**turn, "session_id": "b", "timestamp": 50},
    ]
    assert [job.request.program for job in jobs(write(*rows))] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"session_id": "a", "timestamp": 0, "text_input": "Hello"}, "it has no input_length"),
        ({"session_id": "a", "timestamp": 0, "input_length": 5}, "it has no output_length"),
        ({"session_id": "a", "input_length": 5, "output_length": 5}, "it has no timestamp"),
        ({"session_id": "a", "timestamp": 0, "input_length": 0, "output_length": 5}, "input_length is 0"),
    ],
)
def test_a_bad_aiperf_row_is_named_by_its_line(write: Write, row: dict[str, object], what: str) -> None:
    assert f"trace:1: {what}" in error_of(write(row))


def test_a_delay_alone_is_no_time(write: Write) -> None:
    turn = {"session_id": "a", "input_length": 5, "output_length": 1}
    said = error_of(write({**turn, "timestamp": 0}, {**turn, "delay": 100}))
    assert "trace:2: it has no time of its own" in said
    assert "--session-mode closed-loop" in said


@pytest.mark.parametrize("name", [name for name in FORMATS if "..." not in FORMATS.get(name)().example])
def test_an_example_is_recognised_by_its_own_format_alone(name: str) -> None:
    """Rows of `timed_trace` look like Mooncake's, so it must be named."""
    example = FORMATS.get(name)().example
    claimed = [other for other in FORMATS if FORMATS.get(other)().recognises(example)]
    assert claimed == (["mooncake"] if name == "timed_trace" else [name])


def test_think_times_and_continued_prompts_of_our_own_format(tmp_path: Path) -> None:
    header = "arrival_secs,class,prompt_tokens,output_tokens,program,think_secs,continues\n"
    file = tmp_path / "t.csv"
    file.write_text(header + "0,bulk,32,16,a,,false\n1,bulk,64,16,a,0.5,true\n2,bulk,64,16,,,true\n3,bulk,64,16,a,,\n")
    with open_trace(f"maitred:{file}") as trace:
        jobs = list(trace)
    keys = [None if job.request.prefix is None else job.request.prefix.block_keys(16) for job in jobs]
    assert keys[1][:3] == jobs[0].conversation_prefix.block_keys(16)
    assert not set(keys[2]) & set(keys[1])
    assert keys[3] is None
    file.write_text(header + "0,bulk,32,16,a,,perhaps\n")
    with open_trace(f"maitred:{file}") as trace, pytest.raises(ConfigError, match="continues is 'perhaps'"):
        list(trace)


def test_a_prompt_that_is_shorter_than_what_it_continues_is_the_beginning_of_it(tmp_path: Path) -> None:
    header = "arrival_secs,class,prompt_tokens,output_tokens,program,continues\n"
    file = tmp_path / "t.csv"
    file.write_text(header + "0,bulk,64,16,a,false\n1,bulk,32,16,a,true\n2,bulk,64,16,a,true\n")
    with open_trace(f"maitred:{file}") as trace:
        first, shorter, third = (job.request.prefix.block_keys(16) for job in trace)
    assert shorter == first[:2]
    assert third[:2] == first[:2]


ROWS: dict[str, list[str | dict[str, object]]] = {
    "azure": ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,{},9"],
    "burstgpt": [BURST, "{},ChatGPT,472,18,490,Conversation log"],
    "maitred": ["arrival_secs,class,prompt_tokens,output_tokens,think_secs", "1,default,9,9,{}"],
    "blis": ["request_id,prefix_group,input_tokens,output_tokens,arrival_time_us", "0,,9,{},5"],
    "mooncake": ['{{"timestamp": {}, "input_length": 7, "output_length": 5}}'],
    "timed_trace": ['{{"timestamp": 1, "input_length": 7, "output_length": {}}}'],
    "aiperf": ['{{"session_id": "s", "timestamp": 1, "input_length": {}, "output_length": 5}}'],
    "bailian": ['{{"chat_id": 1, "timestamp": {}, "input_length": 7, "output_length": 5}}'],
}


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", "-5", "true", "1e999"])
@pytest.mark.parametrize("name", ROWS)
def test_what_is_no_number_is_a_bad_row_of_every_format(write: Write, name: str, wrong: str) -> None:
    *header, row = ROWS[name]
    path = write(*header, str(row).format(wrong))
    place = f"trace:{len(header) + 1}: "
    assert place in error_of(f"{name}:{path}")
    good = str(row).format("2023" if name == "azure" else "5")
    with open_trace(f"{name}:{write(*header, str(row).format(wrong), good)}", bad_rows=BadRows.SKIP) as trace:
        assert (len(list(trace)), trace.num_skipped) == (1, 1)


sizes = st.sampled_from([1, 2, 16, 64, 128, 512])


def test_a_partial_last_block_has_keys_for_its_full_small_blocks_only() -> None:
    assert len(ChainedBlockIds((1, 2), 512 + 40, 512).block_keys(16)) == 32 + 2


def test_prompts_that_part_after_the_first_block() -> None:
    one, other = ChainedBlockIds((1, 2), 1024, 512).block_keys(256), ChainedBlockIds((1, 3), 1024, 512).block_keys(256)
    assert list(one[:2]) == list(other[:2])
    assert one[2] != other[2]


@pytest.mark.parametrize("block_size", [0, 48, 768, -16])
def test_a_block_size_that_does_not_divide_is_refused_with_what_would(block_size: int) -> None:
    with pytest.raises(ConfigError, match="divisor of 512"):
        ChainedBlockIds((1,), 512, 512).block_keys(block_size)


@given(st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 5), max_size=4), sizes)
def test_first_n_keys_are_equal_if_and_only_if_the_first_n_blocks_are(one: list[int], other: list[int], size: int) -> None:
    """Two chains share their common ids times the number of small blocks in a large one."""
    mine = ChainedBlockIds(tuple(one), 512 * len(one), 512).block_keys(size)
    yours = ChainedBlockIds(tuple(other), 512 * len(other), 512).block_keys(size)
    assert _shared(mine, yours) == _shared(one, other) * (512 // size)
    assert len(set(ChainedBlockIds(tuple(set(one)), 512 * len(set(one)), 512).block_keys(size))) == len(set(one)) * (
        512 // size
    )


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


ROOT = Path(__file__).parents[2]


def test_mixed_is_what_its_script_makes() -> None:
    """Other bytes would mean that drawing changed, and every seeded workload with it."""
    make = runpy.run_path(str(ROOT / "tools" / "make_samples.py"))
    assert (make["SAMPLES"] / "mixed.csv").read_text(encoding="utf-8").splitlines() == list(make["mixed_lines"]())


def test_mixed_is_a_minute_of_chats_over_waves_of_bulk_that_two_engines_of_16_slots_cannot_hold() -> None:
    jobs = list(sample_jobs("mixed"))
    arrivals = {cls: [j.request.arrival for j in jobs if j.request.priority_class is cls] for cls in PriorityClass}
    assert set(sample_names()) == {"mixed"}
    assert 55 * SECOND < jobs[-1].request.arrival < 60 * SECOND
    assert 90 < len(arrivals[PriorityClass.INTERACTIVE]) < 150
    assert sum(1 for at in arrivals[PriorityClass.BULK] if at < 4 * SECOND) > 32
    assert sum(job.output_tokens for job in jobs) / 60 < 1_500


def test_an_unknown_sample_suggests_one_that_is_there() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mixed'"):
        sample_jobs("mixd")
