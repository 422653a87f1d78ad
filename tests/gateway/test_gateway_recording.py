"""Recording: the traffic of a gateway becomes a trace that can be replayed, and is not changed by it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from world import STREAM_HEAD, Backend, BackendRequest, chunk, run, whole, world

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.gateway.recording import RecordedResponse, TrafficRecorder
from maitred.wire.framing import Headers
from maitred.workload import Job, open_trace

USAGE = (
    b'{"choices":[{"text":"\\"output_tokens\\": 9"}],"usage":{"prompt_tokens":21,"completion_tokens": 34,"total_tokens":55}}'
)


def recorded(path: Path) -> list[Job]:
    with open_trace(str(path)) as trace:
        return list(trace)


def test_a_request_is_recorded_with_the_usage_of_its_answer(tmp_path: Path) -> None:
    async def respond(received: BackendRequest) -> None:
        await received.send(whole(USAGE))

    async def scenario() -> None:
        async with world(Backend(respond), record=str(tmp_path / "r.csv"), trust_tenant_header=True, admission={}) as w:
            body = {"model": "m", "max_tokens": 50}
            headers = {"x-session-id": "s1", "x-smg-priority": "bulk", "x-smg-tenant-id": "acme"}
            assert (await w.request(body=body, **headers))[2] == USAGE
            await asyncio.sleep(0.02)
            await w.request(path="/v1/embeddings")
            await w.request()

    run(scenario())
    first, second = recorded(tmp_path / "r.csv")
    request = first.request
    assert (request.prompt_tokens, first.output_tokens, request.max_output_tokens) == (21, 34, 50)
    assert (request.priority_class, request.tenant, request.model) == (PriorityClass.BULK, "header:acme", "m")
    assert (request.program, request.stream) == ("s1", False)
    assert second.request.arrival >= 20_000
    since = float((tmp_path / "r.csv").read_text().splitlines()[1].split(",")[0])
    assert abs(since - (tmp_path / "r.csv").stat().st_mtime) < 60


def test_a_stream_without_usage_counts_its_events(tmp_path: Path) -> None:
    """Three events and the final one, cut anywhere, count as three tokens, at most the limit of the client."""

    async def respond(received: BackendRequest) -> None:
        stream = b'data: {"x":1}\n\ndata: {"x":2}\n\n: a comment\n\ndata: {"data:":3}\n\ndata: [DONE]\n\n'
        await received.send(STREAM_HEAD)
        for at in range(0, len(stream), 7):
            await received.send(chunk(stream[at : at + 7]))
        await received.send(b"0\r\n\r\n")

    async def scenario() -> None:
        async with world(Backend(respond), record=str(tmp_path / "r.csv")) as w:
            await w.request(body={"model": "m", "stream": True, "prompt": "x" * 400})
            await w.request(body={"model": "m", "stream": True, "prompt": "x" * 400, "max_tokens": 2})

    run(scenario())
    job, capped = recorded(tmp_path / "r.csv")
    assert (job.output_tokens, job.request.stream) == (3, True)
    assert 100 <= job.request.prompt_tokens <= 112
    assert (capped.output_tokens, capped.request.max_output_tokens) == (2, 2)


def test_what_did_not_complete_is_recorded_and_not_replayed(tmp_path: Path) -> None:
    async def refuse(received: BackendRequest) -> None:
        await received.send(whole(b"{}", b"400 Bad Request"))

    async def die(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        raise ConnectionError

    async def scenario() -> None:
        backend = Backend(refuse)
        async with world(backend, record=str(tmp_path / "r.csv")) as w:
            assert (await w.request())[0] == 400
            backend.respond = die
            with contextlib.suppress(asyncio.IncompleteReadError):
                await w.request(body={"model": "m", "stream": True})
            backend.respond = Backend().respond
            await w.request()

    run(scenario())
    outcomes = [line.split(",")[-1] for line in (tmp_path / "r.csv").read_text().splitlines()]
    assert outcomes == ["outcome", "status_400", "broken_off", "completed"]
    with open_trace(str(tmp_path / "r.csv")) as trace:
        assert len(list(trace)) == 1
        assert trace.num_skipped == 2


@pytest.mark.parametrize("limit", [b"9223372036854775808", b"9" * 4_000, b"-9223372036854775809", b"true", b"1e300"])
def test_no_limit_of_a_client_and_no_usage_of_a_backend_spoils_a_recording(tmp_path: Path, limit: bytes) -> None:
    async def respond(received: BackendRequest) -> None:
        await received.send(whole(b'{"usage":{"prompt_tokens":999999999,"completion_tokens":999999999}}'))

    async def scenario() -> None:
        async with world(Backend(respond), record=str(tmp_path / "r.csv")) as w:
            assert (await w.request(body=b'{"model":"m","max_tokens":%b}' % limit))[0] == 200
            assert b"%b" % limit in w.backends[0].received[0].body

    run(scenario())
    [job] = recorded(tmp_path / "r.csv")
    assert job.request.max_output_tokens == (10_000_000 if limit.startswith(b"9") else None)
    assert (job.request.prompt_tokens, job.output_tokens) == (100_000_000, 100_000_000)


def test_a_recording_goes_on_where_it_was_and_nothing_else_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"

    async def scenario() -> None:
        async with world(record=str(path)) as w:
            await w.request()

    run(scenario())
    run(scenario())
    assert len(recorded(path)) == 2
    assert len(path.read_text().splitlines()) == 3
    path.write_text("mine\n")
    with pytest.raises(ConfigError, match="holds something else"):
        TrafficRecorder(str(path))
    with pytest.raises(ConfigError, match=r"gateway\.record: cannot write"):
        TrafficRecorder(str(tmp_path / "no" / "r.csv"))


@pytest.mark.parametrize("cut", [1, 5, 4_096, 10_000])
def test_usage_is_found_wherever_the_answer_is_cut(cut: int) -> None:
    class Nothing:
        def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> None: ...

        def send_piece(self, piece: bytes, more: bool) -> None: ...

    answer = RecordedResponse(Request(id=1, arrival=0, prompt_tokens=999), Nothing())
    body = b'{"x":"' + b"y" * 20_000 + b'","usage":{"input_tokens":7,"output_tokens":8}}'
    answer.start_response(200, [], body[:cut], cut < len(body))
    for at in range(cut, len(body), cut):
        answer.send_piece(body[at : at + cut], at + cut < len(body))
    assert answer.outcome == "completed"
    assert answer.count_tokens() == (7, 8)


def test_a_recorded_program_replays_with_its_think_times_and_its_growing_prompt(tmp_path: Path) -> None:
    """The second prompt has as many tokens as the first with its response, so it continues it; the third has fewer."""
    usages = iter([(100, 20), (130, 20), (50, 5)])

    async def respond(received: BackendRequest) -> None:
        prompt, output = next(usages)
        await received.send(whole(b'{"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (prompt, output)))

    async def scenario() -> None:
        async with world(Backend(respond), record=str(tmp_path / "r.csv")) as w:
            for _ in range(3):
                await w.request(**{"x-session-id": "s"})
                await asyncio.sleep(0.03)

    run(scenario())
    jobs = recorded(tmp_path / "r.csv")
    keys = [job.request.prefix.block_keys(10) for job in jobs]
    whole_keys = [job.conversation_prefix.block_keys(10) for job in jobs]
    assert [len(of) for of in whole_keys] == [12, 15, 5]
    assert keys[1][:12] == whole_keys[0]
    assert not set(keys[2]) & set(whole_keys[1])
    rows = [line.split(",") for line in (tmp_path / "r.csv").read_text().splitlines()]
    think, continues = rows[0].index("think_secs"), rows[0].index("continues")
    assert [row[continues] for row in rows[1:]] == ["false", "true", "false"]
    assert rows[1][think] == ""
    assert all(0.02 < float(row[think]) < 5 for row in rows[2:])

    with open_trace(str(tmp_path / "r.csv")) as trace:
        replayed = trace.closed_loop()
        first = next(iter(replayed))
        (second,) = replayed.on_request_end(first.request, True, 20, 10**9)
    assert second.request.arrival == 10**9 + round(float(rows[2][think]) * 10**6)


def test_a_usage_that_was_kept_from_the_client_is_recorded(tmp_path: Path) -> None:
    async def respond(received: BackendRequest) -> None:
        last = b'{"choices":[],"usage":{"prompt_tokens":21,"completion_tokens":34,"total_tokens":55}}'
        await received.send(STREAM_HEAD + chunk(b'data: {"choices":[{}]}\n\n') + chunk(b"data: %b\n\n" % last) + chunk(b""))

    async def scenario() -> None:
        async with world(Backend(respond), record=str(tmp_path / "r.csv"), programs={}) as w:
            _, _, answer = await w.request(body={"model": "m", "stream": True, "program_id": "p", "parent_program_id": "q"})
            assert b"usage" not in answer

    run(scenario())
    (job,) = recorded(tmp_path / "r.csv")
    assert (job.request.prompt_tokens, job.output_tokens, job.request.program) == (21, 34, "p")
