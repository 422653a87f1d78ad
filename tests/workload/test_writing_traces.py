"""Traces written and read again: fields that a format has come back as they were, the others are counted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.request import PriorityClass, Request
from maitred.core.slo_classes import SLO_PRIORITIES, priority_class_of
from maitred.workload import WRITERS, Client, Job, LostField, TraceWriter, Workload, open_trace
from maitred.workload.formats.blis import WRITTEN_COLUMNS
from maitred.workload.prefix_keys import GroupPrefixKeys
from maitred.workload.spec import MultiTurn, Reasoning
from maitred.workload.trace_writer import trace_lines

TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=8).map(str.strip)


def written(jobs: Iterable[Job], name: str) -> tuple[str, TraceWriter]:
    writer = WRITERS.get(name)()
    return "".join(trace_lines(writer, jobs)), writer


def read(text: str, name: str) -> list[Job]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_text(text, encoding="utf-8", newline="")
        with open_trace(f"{name}:{path}") as trace:
            return list(trace)


@st.composite
def blis_jobs(draw: st.DrawFn) -> Job:
    slo = draw(st.sampled_from(list(SLO_PRIORITIES)))
    prompt = draw(st.integers(1, 500))
    shared = draw(st.integers(0, prompt - 1))
    answer = draw(st.integers(1, 50))
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
        cache_namespace=draw(TEXT),
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


@settings(max_examples=60)
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
        ("maitred", {"deadline": 5}, LostField.DEADLINE),
        ("maitred", {"priority": 1.0}, LostField.PRIORITY),
        ("maitred", {"prefix": GroupPrefixKeys(1, 2, 0, 9)}, LostField.PREFIX),
        ("blis", {"deadline": 0}, LostField.DEADLINE),
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


def test_the_history_that_rounds_repeat_is_counted_as_lost() -> None:
    """The second of two rounds begins with the first one and its answer."""
    turns = MultiTurn(max_rounds=2, context_growth="accumulate")
    client = Client(
        id="a", rate=1.0, input_distribution=20, output_distribution=3, closed_loop=False, reasoning=Reasoning(multi_turn=turns)
    )
    jobs = list(Workload(clients=[client], num_requests=1_000, horizon=20_000_000).jobs())
    assert +written(jobs, "blis")[1].lost_fields == {LostField.PREFIX: len(jobs) // 2}


def test_a_tenant_of_blis_is_one_of_a_header() -> None:
    text, _ = written([job(tenant="t0"), job(id=1, tenant="ip:127.0.0.1")], "maitred")
    assert [job.request.tenant for job in read(text, "maitred")] == ["header:t0", "ip:127.0.0.1"]
