"""Recording: the traffic of a gateway becomes a trace that can be replayed, and is not changed by it."""

from __future__ import annotations

import asyncio
import contextlib
import csv
from pathlib import Path

import msgspec
import pytest
from world import STREAM_HEAD, Backend, BackendRequest, apart, chunk, run, whole, world

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.gateway.observe import record_file
from maitred.gateway.observe.recording import TrafficRecorder
from maitred.gateway.observe.request_metrics import RequestSeries
from maitred.gateway.observe.request_record import RequestRecord
from maitred.gateway.routes import ROUTES
from maitred.wire.clock import Clock
from maitred.workload import Job, open_trace

USAGE = (
    b'{"choices":[{"text":"\\"output_tokens\\": 9"}],"usage":{"prompt_tokens":21,"completion_tokens": 34,"total_tokens":55}}'
)


STREAM = {"model": "m", "stream": True}


def rows(path: Path) -> list[dict[str, str]]:
    """The rows as they stand in the file."""
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


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
            await asyncio.sleep(0.02)  # the arrival of the second request is measured from the first
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
    assert since == pytest.approx(1_800_000_000 + 1_000, abs=1)  # where the clocks of virtual time begin


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


def test_an_event_that_begins_with_the_first_data_and_ends_later_counts(tmp_path: Path) -> None:
    async def respond(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + chunk(b'data: {"x":1}\n\ndata: '))
        await apart()
        await received.send(chunk(b'{"x":2}\n\ndata: {"x":3}\n\ndata: [DONE]\n\n') + b"0\r\n\r\n")

    async def scenario() -> None:
        async with world(Backend(respond), record=str(tmp_path / "r.csv")) as w:
            await w.request(body={"model": "m", "stream": True})

    run(scenario())
    (job,) = recorded(tmp_path / "r.csv")
    assert job.output_tokens == 3


def test_what_did_not_complete_is_recorded_and_not_replayed(tmp_path: Path) -> None:
    async def refuse(received: BackendRequest) -> None:
        await received.send(whole(b"{}", b"400 Bad Request"))

    async def die(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        raise ConnectionError

    async def scenario() -> None:
        async with world(backend, record=str(tmp_path / "r.csv")) as w:
            assert (await w.request())[0] == 400
            backend.respond = die
            with contextlib.suppress(asyncio.IncompleteReadError):
                await w.request(body={"model": "m", "stream": True})
            backend.respond = Backend().respond
            await w.request()

    backend = Backend(refuse)
    run(scenario())
    refused, broken, whole_answer = rows(tmp_path / "r.csv")
    assert [row["outcome"] for row in (refused, broken, whole_answer)] == ["status_400", "broken_off", "completed"]
    # How long these answers would have been, nothing knows.
    assert (refused["output_tokens"], broken["output_tokens"]) == ("", "")
    assert (whole_answer["output_tokens"], whole_answer["tokens_from"]) == ("3", "estimate")
    assert 0 <= float(broken["sent_secs"]) <= float(broken["ttft_secs"]) <= float(broken["e2e_secs"])
    assert (refused["ttft_secs"], broken["backend"]) == ("", backend.url)
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
    assert job.request.max_output_tokens == (10_000_000 if limit.startswith((b"9", b"1e")) else None)
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
        record_file.RecordFile(str(path), Clock())
    with pytest.raises(ConfigError, match=r"gateway\.record: cannot write"):
        record_file.RecordFile(str(tmp_path / "no" / "r.csv"), Clock())


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
                await asyncio.sleep(0.03)  # the think time, which is measured

    run(scenario())
    jobs = recorded(tmp_path / "r.csv")
    keys = [job.request.prefix.block_keys(10) for job in jobs]
    whole_keys = [job.conversation_prefix.block_keys(10) for job in jobs]
    assert [len(of) for of in whole_keys] == [12, 15, 5]
    assert keys[1][:12] == whole_keys[0]
    assert not set(keys[2]) & set(whole_keys[1])
    found = rows(tmp_path / "r.csv")
    assert [row["continues"] for row in found] == ["false", "true", "false"]
    assert found[0]["think_secs"] == ""
    assert all(0.02 < float(row["think_secs"]) < 5 for row in found[1:])

    with open_trace(str(tmp_path / "r.csv")) as trace:
        replayed = trace.closed_loop()
        first = next(iter(replayed))
        (second,) = replayed.on_request_end(first.request, True, 20, 10**9)
    assert second.request.arrival == 10**9 + round(float(found[1]["think_secs"]) * 10**6)


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


LAST = b'{"choices":[],"usage":{"prompt_tokens":21,"completion_tokens":34,"prompt_tokens_details":{"cached_tokens":16}}}'


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (None, False),
        (b'{"include_usage":false}', False),
        (b'{"include_usage":null}', False),
        (b'{"include_usage":true}', True),
    ],
)
def test_the_usage_of_a_stream_is_asked_for_and_kept_from_a_client_that_has_not(
    tmp_path: Path, options: bytes | None, shown: bool
) -> None:
    async def respond(received: BackendRequest) -> None:
        asked = msgspec.json.decode(received.body)["stream_options"]["include_usage"]
        last = chunk(b"data: %b\n\n" % LAST) if asked else b""
        await received.send(STREAM_HEAD + chunk(b'data: {"choices":[{}]}\n\n') + last + chunk(b"data: [DONE]\n\n") + chunk(b""))

    async def scenario() -> None:
        async with world(backend, record=str(tmp_path / "r.csv")) as w:
            body = b'{"model":"m","stream":true%b}' % (b"" if options is None else b',"stream_options":' + options)
            _, _, answer = await w.request(body=body, accept_encoding="gzip")
            assert (b"usage" in answer) == shown
            assert answer.startswith(b'data: {"choices":[{}]}\n\n')
            assert answer.endswith(b"data: [DONE]\n\n")
            assert backend.received[0].headers[b"accept-encoding"] == b"identity"

    backend = Backend(respond)
    run(scenario())
    (row,) = rows(tmp_path / "r.csv")
    assert [row[name] for name in ("prompt_tokens", "output_tokens", "cached_tokens")] == ["21", "34", "16"]
    assert (row["tokens_from"], row["backend"], row["outcome"]) == ("usage", backend.url, "completed")


def test_what_was_measured(tmp_path: Path) -> None:
    """20 ms to the first token, 40 ms to the end; a whole answer has no first token."""

    async def respond(received: BackendRequest) -> None:
        await asyncio.sleep(0.02)
        if b"stream" not in received.body:
            await received.send(whole(USAGE))
            return
        await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.02)
        await received.send(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async def scenario() -> None:
        async with world(Backend(respond), record=str(tmp_path / "r.csv")) as w:
            await w.request(body=STREAM)
            await w.request()

    run(scenario())
    streamed, whole_answer = rows(tmp_path / "r.csv")
    assert 0.019 < float(streamed["ttft_secs"]) < float(streamed["e2e_secs"]) - 0.018
    assert whole_answer["ttft_secs"] == ""
    assert float(whole_answer["e2e_secs"]) > 0.019


def test_rows_stand_in_the_order_of_arrival(tmp_path: Path) -> None:
    """The first request ends last, and the others wait for it; what is still held at the end is written."""
    release = [asyncio.Event() for _ in range(3)]

    async def respond(received: BackendRequest) -> None:
        number = msgspec.json.decode(received.body)["n"]
        await release[number].wait()
        await received.send(whole(b'{"usage":{"prompt_tokens":%d,"completion_tokens":1}}' % (number + 10)))

    async def scenario() -> None:
        backend = Backend(respond)
        async with world(backend, record=str(tmp_path / "r.csv")) as w:
            connections = []
            for number in range(3):
                connections.append(await w.start_request({"model": "m", "n": number}))
                await w.wait_until(lambda: len(backend.received) == len(connections))
            for number in (2, 1, 0):
                release[number].set()
                await connections[number].read_response()

    run(scenario())
    assert [row["prompt_tokens"] for row in rows(tmp_path / "r.csv")] == ["10", "11", "12"]


@pytest.mark.parametrize(("most_held", "most_secs"), [(1, 300), (100, 0)])
def test_a_request_that_takes_very_long_does_not_hold_up_the_others(
    tmp_path: Path, most_held: int, most_secs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "MAX_HELD", most_held)
    monkeypatch.setattr(record_file, "MAX_HELD_SECS", most_secs)
    file = record_file.RecordFile(str(tmp_path / "r.csv"), Clock())
    recorder = TrafficRecorder(file)
    records = [
        RequestRecord(
            Request(id=number, arrival=number, prompt_tokens=number), ROUTES["/v1/chat/completions"], RequestSeries(), Clock()
        )
        for number in range(1, 5)
    ]
    for record in records:
        recorder.open_row(record.request)
    for record in (*records[1:], records[0]):
        record.end()
        recorder.write_row(record)

    async def close() -> None:
        file.start()
        await file.close()

    run(close())
    found = [int(row["prompt_tokens"]) for row in rows(tmp_path / "r.csv")]
    assert (sorted(found), found[0]) == ([1, 2, 3, 4], 2)


def test_what_follows_an_answer_of_unknown_length_is_unknown(tmp_path: Path) -> None:
    async def die(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        raise ConnectionError

    async def scenario() -> None:
        backend = Backend(die)
        async with world(backend, record=str(tmp_path / "r.csv")) as w:
            with contextlib.suppress(asyncio.IncompleteReadError):
                await w.request(body=STREAM, **{"x-session-id": "s"})
            backend.respond = Backend().respond
            await w.request(**{"x-session-id": "s"})

    run(scenario())
    assert [row["continues"] for row in rows(tmp_path / "r.csv")] == ["false", ""]
