"""Traces written and read again: fields that a format has come back as they were, the others are counted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.request import PrefixKeys, PriorityClass, Request
from maitred.core.slo_classes import SLO_PRIORITIES, priority_class_of
from maitred.workload import WRITERS, Client, Job, LostField, TraceWriter, Workload, open_trace
from maitred.workload.formats.blis import WRITTEN_COLUMNS
from maitred.workload.formats.maitred import ALL_COLUMNS
from maitred.workload.prefix_keys import (
    NO_PIECES,
    ChainedBlockIds,
    GroupPrefixKeys,
    PieceChain,
    UnchainedBlockIds,
)
from maitred.workload.spec import MultiTurn, Reasoning
from maitred.workload.trace_writer import trace_lines

TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=8).map(str.strip)


def written(jobs: Iterable[Job], name: str) -> tuple[str, TraceWriter]:
    writer = WRITERS.get(name)()
    return "".join(trace_lines(writer, jobs)), writer


def read(text: str, name: str, writer: TraceWriter | None = None) -> list[Job]:
    """Return the jobs of a trace, with the companion file of its `writer` beside it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        if writer is not None and writer.companion_file is not None:
            path.with_suffix(writer.companion_file[0]).write_text(writer.companion_file[1])
        path.write_text(text, encoding="utf-8", newline="")
        with open_trace(f"{name}:{path}") as trace:
            return list(trace)


@st.composite
def blis_jobs(draw: st.DrawFn) -> Job:
    slo = draw(st.sampled_from(list(SLO_PRIORITIES)))
    prompt = draw(st.integers(1, 500))
    shared = draw(st.integers(0, prompt - 1))
    answer = draw(st.integers(1, 50))
    adapter = draw(TEXT)
    request = Request(
        id=0,
        arrival=draw(st.integers(0, 10**12)),
        prompt_tokens=prompt,
        max_output_tokens=answer,
        client_id=draw(TEXT),
        model=draw(TEXT),
        priority_class=priority_class_of(slo),
        tenant=draw(TEXT),
        program=draw(TEXT),
        stream=draw(st.booleans()),
        priority=float(draw(st.integers(-9, 9))),
        routing_key=adapter,
        cache_namespace=adapter,
        deadline=draw(st.none() | st.integers(1, 10**12)),
        slo_class=slo,
        slo_target=draw(st.none() | st.integers(1, 10**9)),
        prefix=GroupPrefixKeys(draw(st.integers(1, 5)) if shared else 0, shared, 0, prompt),
    )
    return Job(request, answer)


def numbered(jobs: list[Job]) -> Iterator[Job]:
    """Yield the jobs in the order of arrival, with ids, and each with a prompt of its own."""
    for number, job in enumerate(sorted(jobs, key=lambda job: job.request.arrival)):
        prefix = job.request.prefix
        assert isinstance(prefix, GroupPrefixKeys)
        own = GroupPrefixKeys(prefix.group, prefix.shared_tokens, number, prefix.tokens)
        fields = {name: getattr(job.request, name) for name in Request.__struct_fields__}
        yield Job(Request(**{**fields, "id": number, "prefix": own}), job.output_tokens)


def sharing(jobs: list[Job]) -> list[list[int]]:
    """Return, for each block of each job, the first request that had it."""
    seen: dict[int, int] = {}
    found = []
    for job in jobs:
        assert job.request.prefix is not None
        found.append([seen.setdefault(key, job.request.id) for key in job.request.prefix.block_keys(16)])
    return found


@settings(max_examples=25)
@given(st.lists(blis_jobs(), min_size=1, max_size=12))
def test_tracev2_brings_back_what_was_written(drawn: list[Job]) -> None:
    """All fields are equal. Groups get new names, so prefixes are compared by the blocks that requests share (one model
    each)."""
    jobs = list(numbered(drawn))
    text, writer = written(jobs, "blis")
    assert not +writer.lost_fields
    back = read(text, "blis")
    for before, after in zip(jobs, back, strict=True):
        for name in set(Request.__struct_fields__) - {"prefix"}:
            assert getattr(after.request, name) == getattr(before.request, name), name
        assert after.output_tokens == before.output_tokens
    if len({job.request.model for job in jobs}) == 1:
        assert sharing(back) == sharing(jobs)


def job(**fields: object) -> Job:
    return Job(Request(**{"id": 0, "arrival": 5, "prompt_tokens": 9, **fields}), 3)  # type: ignore[arg-type]


def test_the_27_columns_alone_where_no_other_is_needed() -> None:
    text, _ = written([job(program="s"), job(program="s", id=1), job(id=2)], "blis")
    fields = text.splitlines()
    assert fields[0] == ",".join(WRITTEN_COLUMNS)
    first = dict(zip(WRITTEN_COLUMNS, fields[1].split(","), strict=True))
    assert (first["arrival_time_us"], first["send_time_us"], first["input_tokens"], first["slo_class"]) == (
        "5",
        "5",
        "9",
        "standard",
    )
    assert [line.split(",")[WRITTEN_COLUMNS.index("round_index")] for line in fields[1:]] == ["0", "1", "0"]
    assert len(WRITTEN_COLUMNS) == 27


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"deadline": 5}, LostField.DEADLINE),
        ({"priority": 1.0}, LostField.PRIORITY),
        ({"routing_key": "a"}, LostField.ROUTING_KEY),
        ({"prefix": GroupPrefixKeys(1, 2, 0, 9)}, LostField.PREFIX),
    ],
)
def test_an_extra_column_of_ours_that_is_needed_too_late_is_counted(fields: dict[str, object], lost: LostField) -> None:
    text, writer = written([*(job(id=number) for number in range(5_000)), job(id=5_000, **fields)], "maitred")
    assert +writer.lost_fields == {lost: 1}
    assert text.splitlines()[0] == ",".join(ALL_COLUMNS)


def test_a_column_that_is_needed_too_late_is_counted() -> None:
    text, writer = written([*(job(id=number) for number in range(5_000)), job(id=5_000, slo_target=7)], "blis")
    assert +writer.lost_fields == {LostField.TARGET: 1}
    assert len(text.splitlines()) == 1 + 5_001


def test_memory_does_not_grow_with_the_jobs() -> None:
    """The header comes after at most 4,096 jobs, each further line after one."""
    taken = 0

    def endless() -> Iterator[Job]:
        nonlocal taken
        while True:
            yield job(id=taken)
            taken += 1

    text = trace_lines(WRITERS.get("blis")(), endless())
    next(text)
    assert taken <= 4_096
    for _ in range(5_000):
        next(text)
    assert taken <= 5_001


def test_ours_brings_back_what_was_written() -> None:
    fields = job(
        arrival=1_500_000,
        max_output_tokens=77,
        model='a "b", c',
        priority_class=PriorityClass.BULK,
        tenant="auth:acme",
        program="s\n1",
        stream=False,
        slo_class="sheddable",
    )
    text, writer = written([fields], "maitred")
    (back,) = read(text, "maitred")
    assert not +writer.lost_fields
    for name in ("max_output_tokens", "model", "priority_class", "tenant", "stream", "slo_class"):
        assert getattr(back.request, name) == getattr(fields.request, name)
    assert back.request.program == "s 1"
    assert text.splitlines()[1].startswith("1.500000,bulk,9,3,auth:acme,77,false,")


@pytest.mark.parametrize(
    ("name", "fields", "lost"),
    [
        ("blis", {"deadline": 0}, LostField.DEADLINE),
        ("blis", {"routing_key": "a"}, LostField.ROUTING_KEY),
        ("blis", {"program": "p/1", "parent_program": "p"}, LostField.PARENT),
        ("blis", {"priority_class": PriorityClass.SYSTEM}, LostField.CLASS),
        ("blis", {"max_output_tokens": 9}, LostField.LIMIT),
    ],
)
def test_what_cannot_be_said_is_counted(name: str, fields: dict[str, object], lost: LostField) -> None:
    assert +written([job(**fields)], name)[1].lost_fields == {lost: 1}


def test_the_prefix_groups_of_a_specification_are_written() -> None:
    """Prefixes of 32 and 48 tokens are two blocks of one group and three of the other; the third client has none."""
    common = {"rate": 1.0, "input_distribution": 20, "output_distribution": 3}
    clients = [
        Client(id="a", prefix_group="x", prefix_length=32, **common),  # type: ignore[arg-type]
        Client(id="b", prefix_group="y", prefix_length=48, **common),  # type: ignore[arg-type]
        Client(id="c", prefix_group="z", prefix_length=0, **common),  # type: ignore[arg-type]
    ]
    jobs = list(Workload(clients=clients, num_requests=30).jobs())
    text, writer = written(jobs, "blis")
    assert not +writer.lost_fields
    back = read(text, "blis")
    assert [job.request.prompt_tokens for job in back] == [job.request.prompt_tokens for job in jobs]
    grouped = {job.request.id for job in jobs if job.request.client_id != "c"}
    assert sharing([j for j in back if j.request.id in grouped]) == sharing([j for j in jobs if j.request.id in grouped])
    assert len({tuple(shared) for shared in sharing(back)}) > 2


def sessions(**keys: object) -> list[Job]:
    """Return the jobs of sessions of two rounds, which begin with 32 tokens of a group."""
    turns = MultiTurn(max_rounds=2, **{"context_growth": "accumulate", "think_time_us": 1_500_000, **keys})  # type: ignore[arg-type]
    client = Client(
        id="a",
        rate=1.0,
        prefix_group="x",
        prefix_length=32,
        input_distribution=20,
        output_distribution=30,
        closed_loop=False,
        slo_class="batch",
        adapter="lora-1",
        reasoning=Reasoning(multi_turn=turns),
    )
    return list(Workload(clients=[client], num_requests=60, horizon=40_000_000).jobs())


@pytest.mark.parametrize("growth", ["", "accumulate"])
@pytest.mark.parametrize("name", ["blis", "maitred"])
def test_what_rounds_share_with_those_before_them_is_kept(name: str, growth: str) -> None:
    """The second of two rounds begins with the first one and its answer, if contexts accumulate."""
    jobs = sessions(context_growth=growth)
    text, writer = written(jobs, name)
    assert not +writer.lost_fields
    assert writer.companion_file is None or ("accumulate" in writer.companion_file[1]) == bool(growth)
    assert_same_workload(jobs, read(text, name, writer))


def test_a_session_that_does_not_accumulate_beside_others_that_do_is_counted() -> None:
    plain = [job(id=1_000 + number, program="plain", prefix=None) for number in range(3)]
    writer = written([*sessions(), *plain], "blis")[1]
    assert +writer.lost_fields == {LostField.SESSION: 2}


def content_of(job: Job, size: int) -> list[int]:
    """Return the keys of prompt and answer as far as later prompts may contain them, else those of the prompt."""
    content = job.conversation_prefix or job.request.prefix
    return [] if content is None else list(content.block_keys(size))


def shared_blocks(jobs: list[Job], size: int) -> list[list[int]]:
    """Return, for each job, how many leading blocks its prompt has in common with each job before it."""
    prompts = [[] if job.request.prefix is None else list(job.request.prefix.block_keys(size)) for job in jobs]
    contents = [content_of(job, size) for job in jobs]
    return [
        [next((n for n, (one, other) in enumerate(zip(prompt, before, strict=False)) if one != other),
              min(len(prompt), len(before))) for before in contents[:index]]
        for index, prompt in enumerate(prompts)
    ]  # fmt: skip


def assert_same_workload(jobs: list[Job], back: list[Job], sizes: Iterable[int] = (16, 32)) -> None:
    """Check that every field is equal; ids count from 0, and prefixes are equal in what prompts share."""
    for before, after in zip(jobs, back, strict=True):
        for name in set(Request.__struct_fields__) - {"prefix", "id", "arrival", "deadline", "max_output_tokens"}:
            assert getattr(after.request, name) == getattr(before.request, name), name
        for name in ("output_tokens", "think_time"):
            assert getattr(after, name) == getattr(before, name), name
        origin = jobs[0].request.arrival - back[0].request.arrival
        assert after.request.arrival == before.request.arrival - origin
        if before.request.deadline is not None:
            assert after.request.deadline == before.request.deadline - origin
    for size in sizes:
        assert shared_blocks(back, size) == shared_blocks(jobs, size), size


def start_of_last_piece(chain: PieceChain) -> int:
    return chain.pieces[-2][1] if len(chain.pieces) > 1 else 0


@st.composite
def with_contents(draw: st.DrawFn, jobs: list[Job]) -> list[Job]:
    """Return the jobs with prompts that share their beginnings in all the ways that formats have."""
    chains, made = dict[str, PieceChain](), list[Job]()
    for index, job in enumerate(jobs):
        request, answer = job.request, job.output_tokens
        tokens, program, own = request.prompt_tokens, request.program, 2 * (10_000 + index) + 1
        kind = draw(st.sampled_from(["none", "group", "pieces", "new context", "go on", "go on", "chained", "unchained"]))
        shared = draw(st.integers(0, tokens))
        before = chains.get(program) or chains.get(request.parent_program) if program else None
        prefix: PrefixKeys | None = None
        conversation: PrefixKeys | None = None
        if kind in ("chained", "unchained"):
            ids = range(10**15 + shared // 100, 10**15 + shared // 100 + (tokens + answer) // 16)
            make = ChainedBlockIds if kind == "chained" else UnchainedBlockIds
            prefix = make(ids[: tokens // 16], tokens, 16)
        elif kind == "group":
            prefix = GroupPrefixKeys(shared % 3 + 11 if shared else 0, shared, 5_000 + index, tokens)
        elif kind != "none":
            chain = NO_PIECES.append(2 * (shared % 3), shared).append(own, tokens - shared)
            if kind == "go on" and before and tokens > start_of_last_piece(before):
                chain = (before if program in chains else before.append(own, 0)).resized(tokens)
            prefix = chain
            if kind != "pieces":
                conversation = chain.resized(tokens + answer)
                chains |= {program: conversation} if program else {}
        made.append(replace(job, request=replace(request, prefix=prefix), conversation_prefix=conversation))
    return made


@st.composite
def any_job(draw: st.DrawFn) -> Job:
    prompt, answer, arrival = draw(st.integers(1, 200)), draw(st.integers(1, 60)), draw(st.integers(0, 10**12))
    request = Request(
        id=0,
        arrival=arrival,
        prompt_tokens=prompt,
        max_output_tokens=draw(st.none() | st.integers(1, 99)),
        client_id=draw(TEXT),
        model=draw(TEXT),
        priority_class=draw(st.sampled_from(PriorityClass)),
        tenant=draw(st.sampled_from(["", "auth:acme", "header:b", "anonymous"])),
        program=draw(st.sampled_from(["", "p", "q", "p/1"])),
        parent_program=draw(st.sampled_from(["", "p", "q"])),
        stream=draw(st.booleans()),
        priority=draw(st.floats(allow_nan=False, allow_infinity=False)),
        routing_key=draw(TEXT),
        cache_namespace=draw(TEXT),
        deadline=draw(st.none() | st.integers(arrival, arrival + 10**10)),
        slo_class=draw(TEXT),
        slo_target=draw(st.none() | st.integers(0, 10**10)),
    )
    return Job(request, answer, None, draw(st.none() | st.integers(0, 10**10)))


def arrival_of(job: Job) -> int:
    return job.request.arrival


@settings(max_examples=40)
@given(st.lists(any_job(), min_size=1, max_size=6).flatmap(lambda jobs: with_contents(sorted(jobs, key=arrival_of))))
def test_our_own_format_brings_back_every_field(drawn: list[Job]) -> None:
    """What a request has in any field, and what prompts share in whatever form, is the same after a trace was written."""
    text, writer = written(drawn, "maitred")
    assert not +writer.lost_fields
    back = read(text, "maitred")
    assert_same_workload(drawn, back, sizes=(16,))
    assert [job.request.max_output_tokens for job in back] == [job.request.max_output_tokens for job in drawn]


@pytest.mark.parametrize(
    ("columns", "values", "said"),
    [
        ("block_tokens,block_ids", "16,1 x", "block_ids has 'x'"),
        ("block_tokens,block_ids", "16,1..9999999999999", "room for 5 more"),
        ("block_tokens,block_ids", "16,1", "1 block_ids for 60 tokens"),
        ("block_tokens,block_ids", ",1 2 3 4", "block_tokens is ''"),
        ("prefix_group,prefix_tokens", "g,61", "prefix_tokens is 61"),
        ("priority", "nan", "priority is 'nan'"),
        ("deadline_secs", "-1", "deadline_secs is '-1'"),
        ("slo_target_secs", "inf", "slo_target_secs is 'inf'"),
    ],
)
def test_a_wrong_extra_column_is_a_bad_row(columns: str, values: str, said: str) -> None:
    header = "arrival_secs,class,prompt_tokens,output_tokens"
    with pytest.raises(ConfigError, match=r"t\.csv:2: ") as raised:
        read(f"{header},{columns}\n0,default,60,20,{values}\n", "maitred")
    assert said in str(raised.value)


def test_a_tenant_of_blis_is_one_of_a_header() -> None:
    text, _ = written([job(tenant="t0"), job(id=1, tenant="ip:127.0.0.1")], "maitred")
    assert [job.request.tenant for job in read(text, "maitred")] == ["header:t0", "ip:127.0.0.1"]
