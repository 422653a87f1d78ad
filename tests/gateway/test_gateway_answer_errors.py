"""An answer with status 200 that says it has failed: what the record, the access log and the metrics make of it."""

from __future__ import annotations

import asyncio
import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest
from world import STREAM_HEAD, Backend, BackendRequest, chunk, run, whole, world

from maitred.core.request import Request
from maitred.gateway.observe.request_metrics import RequestSeries
from maitred.gateway.observe.request_record import RequestRecord
from maitred.gateway.routes import ROUTES
from maitred.wire.answer_errors import AnswerError
from maitred.wire.clock import Clock

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"an error"},"finish_reason":null}]}\n\n'
ERROR = b'data: {"error":{"message":"EngineCore encountered an issue","code":500}}\n\n'
NAMED_ERROR = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
FAILED = b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"message":"gone"}}}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}\n\n'
DONE = b"data: [DONE]\n\n"
JSON_ERROR = b'{"error":{"message":"CUDA out of memory","code":500}}'
STREAM = {"model": "m", "stream": True, "messages": []}


def streaming(pieces: Sequence[bytes]) -> Backend:
    async def respond(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD)
        for piece in pieces:
            await received.send(chunk(piece))
        await received.send(b"0\r\n\r\n")

    return Backend(respond)


async def metrics_after(backend: Backend, body: object, *, record: Path | None = None, **config: object) -> str:
    async with world(backend, record=None if record is None else str(record), **config) as w:
        assert (await w.request(body=body))[0] == 200
        await w.wait_until_idle()
        return (await w.request("/metrics", method="GET"))[2].decode()


@pytest.mark.parametrize(
    ("pieces", "tokens", "has_ttft"),
    [
        ([ERROR, DONE], 0, False),
        ([ERROR + DONE], 0, False),
        ([ROLE, TOKEN, TOKEN, TOKEN, ERROR, DONE], 3, True),
        ([ROLE + TOKEN + ERROR + DONE], 1, True),
        ([TOKEN, ERROR, b": ping\n\n", b": ping\n\n", b": ping\n\n", DONE], 1, True),
        ([TOKEN[:9], TOKEN[9:], ERROR[:7], ERROR[7:12], ERROR[12:], DONE], 1, True),
        ([TOKEN, NAMED_ERROR], 1, True),
        ([TOKEN, FAILED], 1, True),
    ],
)
def test_a_stream_with_an_error_has_not_completed(tmp_path: Path, pieces: list[bytes], tokens: int, *, has_ttft: bool) -> None:
    page = run(metrics_after(streaming(pieces), STREAM, record=tmp_path / "r.csv"))
    assert 'maitred_requests_ended_total{class="default",end="failed"} 1.0' in page
    assert 'maitred_requests_ended_total{class="default",end="drained"} 0.0' in page
    assert 'maitred_upstream_failures_total{reason="error_in_answer"} 1.0' in page
    assert 'maitred_http_responses_total{error_code="error_in_answer",status_code="200"} 1.0' in page
    assert f'maitred_generation_tokens_total{{class="default",model="m",source="estimated"}} {tokens:.1f}' in page
    assert 'maitred_e2e_request_latency_seconds_count{class="default",model="m"} 0.0' in page
    with (tmp_path / "r.csv").open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert (row["outcome"], row["output_tokens"], bool(row["ttft_secs"])) == ("error_in_answer", "", has_ttft)


@pytest.mark.parametrize("cut", [len(JSON_ERROR), 20])
def test_a_json_answer_with_an_error_has_not_completed(tmp_path: Path, cut: int) -> None:
    async def respond(received: BackendRequest) -> None:
        response = whole(JSON_ERROR)
        at = len(response) - len(JSON_ERROR) + cut
        await received.send(response[:at])
        await received.send(response[at:])

    page = run(metrics_after(Backend(respond), {"model": "m"}, record=tmp_path / "r.csv"))
    assert 'maitred_requests_ended_total{class="default",end="failed"} 1.0' in page
    assert 'maitred_generation_tokens_total{class="default",model="m",source="estimated"} 0.0' in page
    with (tmp_path / "r.csv").open(newline="") as lines:
        assert [row["outcome"] for row in csv.DictReader(lines)] == ["error_in_answer"]


LONG = b'data: {"id":"cmpl-0123456789","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
FINISH = LONG.replace(b'"delta"', b'"finish_reason": "stop","delta"')


@pytest.mark.parametrize(
    ("pieces", "outcome"),
    [
        ([LONG, LONG, LONG], "broken_off"),
        ([LONG * 3], "broken_off"),
        ([LONG, LONG, LONG + USAGE], "broken_off"),
        ([LONG, LONG, USAGE, DONE], "completed"),
        ([LONG, FINISH], "completed"),
        ([LONG, FINISH, USAGE], "completed"),
        ([LONG, LONG, DONE[:9], DONE[9:]], "completed"),  # cut into pieces that say too little
        ([TOKEN[:100]], "completed"),
    ],
)
def test_a_stream_that_ends_without_its_end_has_broken_off(tmp_path: Path, pieces: list[bytes], outcome: str) -> None:
    page = run(metrics_after(streaming(pieces), STREAM, record=tmp_path / "r.csv"))
    whole_ones = 1.0 if outcome == "completed" else 0.0
    assert f'maitred_e2e_request_latency_seconds_count{{class="default",model="m"}} {whole_ones}' in page
    assert ('error_code="broken_off",status_code="200"} 1.0' in page) is (outcome == "broken_off")
    assert ('maitred_upstream_failures_total{reason="ended_early"} 1.0' in page) is (outcome == "broken_off")
    assert f'maitred_requests_ended_total{{class="default",end="drained"}} {whole_ones}' in page
    with (tmp_path / "r.csv").open(newline="") as lines:
        assert [row["outcome"] for row in csv.DictReader(lines)] == [outcome]


def test_a_text_about_errors_has_completed(tmp_path: Path) -> None:
    page = run(metrics_after(streaming([ROLE, TOKEN, TOKEN, USAGE, DONE]), STREAM, record=tmp_path / "r.csv"))
    assert 'maitred_requests_ended_total{class="default",end="drained"} 1.0' in page
    with (tmp_path / "r.csv").open(newline="") as lines:
        assert [(row["outcome"], row["output_tokens"]) for row in csv.DictReader(lines)] == [("completed", "2")]


def test_an_attempt_that_follows_forgets_the_error() -> None:
    record = RequestRecord(Request(id=1, arrival=0, prompt_tokens=5), ROUTES["/v1/chat/completions"], RequestSeries(), Clock())
    record.is_stream = True
    backend: object = object()
    record.on_sent(backend, 0, None)  # type: ignore[arg-type]
    record.on_first_data(ERROR)
    assert record.error == AnswerError("EngineCore encountered an issue", 500)
    record.on_sent(backend, 0, None)  # type: ignore[arg-type]
    record.on_first_data(TOKEN)
    assert (record.error, record.num_events) == (None, 1)


@pytest.mark.parametrize("behind", [[DONE], [], [b"", DONE]])
def test_an_error_that_begins_as_the_other_events_is_found_at_the_end(behind: list[bytes]) -> None:
    token = b'data: {"id":"c","choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    last = b'data: {"id":"c","choices":[{"delta":{},"finish_reason":"error"}],"error":{"message":"gone"}}\n\n'
    record = RequestRecord(Request(id=1, arrival=0, prompt_tokens=5), ROUTES["/v1/chat/completions"], RequestSeries(), Clock())
    record.is_stream, record.status = True, 200
    record.on_first_data(token)
    for piece in [token, token, last, *behind]:
        record.on_stream_piece(piece)
    record.on_complete(0)
    record.end()
    assert (record.outcome, record.estimated_output()) == ("error_in_answer", 3)


@pytest.mark.parametrize("cut", range(5, 40))
def test_an_error_is_found_wherever_pieces_end(cut: int) -> None:
    stream = TOKEN + TOKEN + ERROR + DONE
    record = RequestRecord(Request(id=1, arrival=0, prompt_tokens=5), ROUTES["/v1/chat/completions"], RequestSeries(), Clock())
    record.is_stream, record.status = True, 200
    record.on_first_data(stream[:cut])
    for at in range(cut, len(stream), cut):
        record.on_stream_piece(stream[at : at + cut])
    record.on_complete(0)
    assert (record.outcome, record.num_events) == ("error_in_answer", 2)


PACKED_ERROR = gzip.compress(JSON_ERROR)


async def answer_as_accepted(received: BackendRequest) -> None:
    """Answer with an error, in gzip for a client that takes it."""
    if b"gzip" in received.headers.get(b"accept-encoding", b""):
        await received.send(whole(PACKED_ERROR, headers=b"content-encoding: gzip\r\n"))
    else:
        await received.send(whole(JSON_ERROR))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/tokenize", "/v1/video"])
def test_an_error_is_seen_for_a_client_that_takes_gzip(path: str) -> None:
    async def scenario() -> None:
        async with world(Backend(answer_as_accepted), max_attempts=1, passed_paths=["/v1/video"]) as w:
            status, headers, body = await w.request(path, {"model": "m", "messages": []}, accept_encoding="gzip, br")
            assert (status, body, headers.get("content-encoding")) == (200, JSON_ERROR, None)
            assert w.gateway.counters.upstream_failures["error_in_answer"] == 1
            assert w.backends[0].received[0].headers[b"accept-encoding"] == b"identity"

    run(scenario())


def test_an_answer_that_is_only_passed_on_may_be_compressed() -> None:
    async def scenario() -> None:
        async with world(Backend(answer_as_accepted)) as w:
            _, headers, body = await w.request("/v1/responses/r", method="GET", accept_encoding="gzip, br")
            assert (body, headers["content-encoding"]) == (PACKED_ERROR, "gzip")
            assert w.backends[0].received[0].headers[b"accept-encoding"] == b"gzip, br"
            assert not w.gateway.counters.unreadable_answers

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_compressed_all_the_same_is_counted_and_passes(
    caplog: pytest.LogCaptureFixture, *, stream: bool
) -> None:
    packed = gzip.compress(ERROR if stream else JSON_ERROR)
    coded = STREAM_HEAD[:-2] + b"content-encoding: gzip\r\n\r\n" + chunk(packed) + b"0\r\n\r\n"
    if not stream:
        coded = whole(packed, headers=b"content-encoding: gzip\r\n")

    async def scenario() -> None:
        async with world(Backend(lambda received: received.send(coded))) as w:
            for _ in range(2):
                _, headers, body = await w.request(body={"model": "m", "stream": stream, "messages": [], "max_tokens": 50})
                assert (headers["content-encoding"], body) == ("gzip", packed)
            await w.wait_until_idle()
            url = w.backends[0].url
            page = (await w.request("/metrics", method="GET"))[2].decode()
            assert f'maitred_backend_unreadable_answers_total{{backend="{url}"}} 2.0' in page
            assert 'end="drained"} 2.0' in page
            assert caplog.text.count(f"{url} compresses answers unasked") == 1

    run(scenario())


def test_a_compressed_stream_begins_with_its_first_bytes() -> None:
    """Nobody can see whether they are data."""

    async def scenario() -> None:
        seen = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD[:-2] + b"content-encoding: br\r\n\r\n" + chunk(b"packed"))
            await seen.wait()
            await received.send(b"0\r\n\r\n")

        async with world(Backend(respond)) as w:
            connection = await w.start_request({"model": "m", "stream": True})
            assert (await connection.read_head())[0] == 200
            seen.set()

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_is_seen_in_gzip_that_is_decoded(tmp_path: Path, *, stream: bool) -> None:
    plain = TOKEN + ERROR if stream else JSON_ERROR
    packed = gzip.compress(plain)
    head = STREAM_HEAD if stream else b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

    async def respond(received: BackendRequest) -> None:
        await received.send(head[:-2] + b"content-encoding: gzip\r\n\r\n" + chunk(packed[:12]) + chunk(packed[12:30]))
        await received.send(chunk(packed[30:]) + b"0\r\n\r\n")

    async def scenario() -> None:
        async with world(Backend(respond), record=str(tmp_path / "r.csv"), max_attempts=1) as w:
            assert (await w.request(body={"model": "m", "stream": stream, "messages": []}))[2] == plain
            await w.wait_until_idle()
            assert w.gateway.counters.upstream_failures["error_in_answer"] == 1

    run(scenario())
