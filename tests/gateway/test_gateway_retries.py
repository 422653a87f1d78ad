"""What is tried again before the first byte: error answers of engines, their `Retry-After`, attempts and budget."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from world import ANSWER, STREAM_HEAD, Backend, BackendRequest, Responder, apart, chunk, run, whole, world

from maitred.core.units import SECOND
from maitred.gateway.config import RetryConfig
from maitred.gateway.forwarding.retries import is_busy, read_retry_after

NO_BACKOFF = RetryConfig(initial_backoff_secs=0)
NO_BUDGET = RetryConfig(budget_share=0, budget_floor_per_sec=0)
PROBLEM = b'{"error":{"message":"CUDA out of memory","code":500}}'
QUEUE_FULL = b'{"object":"error","message":"The request queue is full.","type":"Service Unavailable"}'


def says(status: str, body: bytes = PROBLEM, headers: bytes = b"") -> Responder:
    """Return a responder that always gives this answer."""

    async def respond(received: BackendRequest) -> None:
        await received.send(whole(body, status.encode(), headers))

    return respond


def streams(*pieces: bytes) -> Responder:
    """Return a responder that always gives a stream of these pieces."""

    async def respond(received: BackendRequest) -> None:
        for piece in (STREAM_HEAD, *map(chunk, pieces), b"0\r\n\r\n"):
            await received.send(piece)
            await apart()

    return respond


def sent_to(*backends: Backend) -> list[int]:
    return [len(backend.received) for backend in backends]


@pytest.mark.parametrize("status", ["408 T", "429 T", "500 I", "502 B", "503 S", "504 G", "507 F", "520 E", "529 O"])
@pytest.mark.parametrize("stream", [False, True])
def test_these_answers_are_asked_for_elsewhere(status: str, stream: bool) -> None:
    async def scenario() -> None:
        first, second = Backend(says(status)), Backend()
        async with world(first, second) as w:
            assert (await w.request(body={"model": "m", "stream": stream}))[::2] == (200, ANSWER)
            assert sent_to(first, second) == [1, 1]
            assert w.gateway.counters.retries == 1
            assert w.gateway.counters.upstream_failures == {"error_status": 1}
            assert w.state.classes["default"].completed == 1

    run(scenario())


@pytest.mark.parametrize("status", ["400 B", "401 U", "404 N", "413 L", "422 U", "501 N", "505 V"])
def test_these_answers_are_the_answer(status: str) -> None:
    async def scenario() -> None:
        first, second = Backend(says(status)), Backend()
        async with world(first, second) as w:
            assert (await w.request())[::2] == (int(status[:3]), PROBLEM)
            assert sent_to(first, second) == [1, 0]
            assert w.gateway.scheduler.fleet.backends[0].circuit.num_answers == 1  # such an engine works

    run(scenario())


def test_an_error_in_the_place_of_the_first_event_is_asked_for_elsewhere() -> None:
    async def scenario() -> None:
        dead = streams(b'data: {"error":{"message":"EngineCore died","code":500}}\n\n', b"data: [DONE]\n\n")
        good = streams(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', b"data: [DONE]\n\n")
        first, second = Backend(dead), Backend(good)
        async with world(first, second) as w:
            status, _, body = await w.request(body={"model": "m", "stream": True})
            assert (status, b"error" in body, b'"x"' in body) == (200, False, True)
            assert sent_to(first, second) == [1, 1]
            assert w.gateway.scheduler.fleet.backends[0].circuit.consecutive_failures == 1
            assert w.state.classes["default"].completed == 1

    run(scenario())


@pytest.mark.parametrize("size", [1, 5, 14, 40])
@pytest.mark.parametrize(("path", "name"), [("/v1/chat/completions", b""), ("/v1/messages", b"event: error\n")])
def test_an_error_that_comes_in_pieces_is_asked_for_elsewhere(size: int, path: str, name: bytes) -> None:
    async def scenario() -> None:
        event = name + b'data: {"type":"error","error":{"message":"EngineCore died","code":500}}\n\n'
        dead = streams(*(event[at : at + size] for at in range(0, len(event), size)))
        good = streams(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', b"data: [DONE]\n\n")
        first, second = Backend(dead), Backend(good)
        async with world(first, second) as w:
            status, _, body = await w.request(path, {"model": "m", "stream": True})
            assert (status, b"error" in body, b'"x"' in body) == (200, False, True)
            assert sent_to(first, second) == [1, 1]

    run(scenario())


def test_an_error_that_is_the_clients_fault_is_the_answer() -> None:
    async def scenario() -> None:
        event = b'data: {"error":{"message":"too long","type":"BadRequestError","code":400}}\n\n'
        first, second = Backend(streams(event)), Backend()
        async with world(first, second) as w:
            assert (await w.request(body={"model": "m", "stream": True}))[::2] == (200, event)
            assert sent_to(first, second) == [1, 0]

    run(scenario())


def test_a_stream_that_begins_with_an_error_everywhere_is_passed_on_whole() -> None:
    async def scenario() -> None:
        pieces = b'data: {"error":{"message":"EngineCore died","code":500}}\n\n', b"data: [DONE]\n\n"
        first, second = Backend(streams(*pieces)), Backend(streams(*pieces))
        async with world(first, second) as w:
            assert (await w.request(body={"model": "m", "stream": True}))[::2] == (200, b"".join(pieces))
            assert sorted(sent_to(first, second)) == [1, 2]  # the last one once more
            assert w.state.classes["default"].failed == 1

    run(scenario())


@pytest.mark.parametrize(("allowed", "sent"), [(1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (4, [1, 1, 2])])
def test_the_client_gets_the_last_answer_when_the_attempts_are_used_up(allowed: int, sent: list[int]) -> None:
    async def scenario() -> None:
        backends = [Backend(says("500 I", b"%d" % number)) for number in range(3)]
        async with world(*backends, max_attempts=allowed, retry=NO_BACKOFF) as w:
            status, _, body = await w.request()
            assert (status, body) == (500, b"%d" % (min(allowed, 3) - 1))
            assert sent_to(*backends) == sent
            record = w.state.classes["default"]
            assert (record.completed, record.failed) == (1, 0)  # an answer came whole, whatever it says

    run(scenario())


def test_a_budget_that_is_spent_leaves_the_answer_as_it_is() -> None:
    async def scenario() -> None:
        first, second = Backend(says("500 I")), Backend()
        async with world(first, second, retry=NO_BUDGET) as w:
            assert (await w.request())[0] == 500
            assert sent_to(first, second) == [1, 0]
            assert w.gateway.counters.retries_over_budget == 1

    run(scenario())


def test_a_refused_connection_needs_no_budget() -> None:
    async def scenario() -> None:
        first, second = Backend(), Backend()
        async with world(first, second, retry=NO_BUDGET, max_attempts=1, health_interval_secs=30.0) as w:
            await first.stop()
            assert (await w.request())[0] == 200

    run(scenario())


def test_an_engine_is_not_asked_again_before_its_retry_after() -> None:
    async def scenario() -> None:
        first, second = Backend(says("503 S", headers=b"retry-after: 7\r\n")), Backend()
        async with world(first, second) as w:
            for _ in range(10):
                assert (await w.request())[0] == 200
            assert sent_to(first, second) == [1, 10]
            ejection = w.state.backends[0].ejection
            assert 6 < (ejection.rests_secs or 0) <= 7
            assert (ejection.state, ejection.failures_in_a_row) == ("closed", 0)  # without blame

    run(scenario())


@pytest.mark.parametrize("programs", [None, {}])
def test_a_retry_after_is_passed_on_if_no_other_backend_takes_the_request(programs: dict[str, Any] | None) -> None:
    async def scenario() -> None:
        backend = Backend(says("429 T", headers=b"retry-after: 7\r\n"))
        async with world(backend, programs=programs) as w:
            status, headers, body = await w.request()
            assert (status, headers["retry-after"], body) == (429, "7", PROBLEM)
            status, headers, _ = await w.request()
            assert (status, headers["x-smg-error-code"]) == (503, "upstream_busy")
            assert 1 <= int(headers["retry-after"]) <= 7
            assert sent_to(backend) == [1]

    run(scenario())


@pytest.mark.parametrize(
    "headers",
    [
        b"retry-after: 600\r\n",
        b"retry-after: 600\r\nretry-after-ms: 600000\r\n",
        b"date: Thu, 26 Nov 2026 01:00:00 GMT\r\nretry-after: Thu, 26 Nov 2026 02:00:00 GMT\r\n",
        b"retry-after: Thu, 26 Nov 2099 02:00:00 GMT\r\n",
        b"retry-after: 90.5\r\n",
        b"retry-after: " + b"9" * 30 + b"\r\n",
        b"retry-after-ms: 60000\r\n",
        b"retry-after: 1\r\nretry-after-ms: 120000.0\r\n",
    ],
)
def test_a_long_retry_after_is_told_as_one_that_every_sdk_obeys(headers: bytes) -> None:
    async def scenario() -> None:
        async with world(Backend(says("429 T", headers=headers))) as w:
            status, told, body = await w.request()
            assert (status, told["retry-after"], body) == (429, "59", PROBLEM)
            assert "retry-after-ms" not in told

    run(scenario())


def test_a_retry_after_outlives_a_backend_that_cannot_be_reached() -> None:
    async def scenario() -> None:
        first, second = Backend(says("503 S", headers=b"retry-after: 7\r\n")), Backend()
        async with world(first, second, health_interval_secs=30.0) as w:
            await second.stop()
            status, headers, body = await w.request()
            assert (status, headers["retry-after"], body) == (503, "7", PROBLEM)

    run(scenario())


def test_an_engine_that_rests_is_asked_again_afterwards() -> None:
    async def scenario() -> None:
        backend = Backend(says("503 S", headers=b"retry-after: 1\r\n"))
        async with world(backend, retry=RetryConfig(max_retry_after_secs=0.05)) as w:
            assert (await w.request())[0] == 503
            backend.respond = says("200 OK", ANSWER)
            await w.wait_until(lambda: w.state.backends[0].ejection.rests_secs is None)
            assert (await w.request())[0] == 200

    run(scenario())


def test_a_full_queue_is_no_reason_to_eject() -> None:
    async def scenario() -> None:
        first, second = Backend(says("503 S", QUEUE_FULL)), Backend()
        async with world(first, second, retry=NO_BACKOFF) as w:
            for _ in range(20):
                assert (await w.request())[0] == 200
            assert w.state.backends[0].ejection.state == "closed"
            assert len(first.received) > 5

    run(scenario())


def test_what_an_engine_says_in_a_503() -> None:
    assert is_busy(503, None, QUEUE_FULL)
    assert is_busy(503, SECOND, b"")
    assert is_busy(503, None, b'{"error":"Model is overloaded"}')
    assert not is_busy(503, None, b"engine is dead")
    assert is_busy(429, None, b"") is is_busy(408, None, b"") is is_busy(529, None, b"") is True
    assert not is_busy(500, SECOND, QUEUE_FULL)


@pytest.mark.parametrize(
    ("value", "span"),
    [
        *((b"7", 7 * SECOND), (b" 0 ", 0), (b"soon", None), (b"-1", None), (b"1.5", 1_500_000), (b"inf", None), (b"", None)),
        (b"9" * 30, 10**9 * SECOND),
    ],
)
def test_a_retry_after_in_seconds(value: bytes, span: int | None) -> None:
    assert read_retry_after([(b"retry-after", value)], wall=0) == span


def test_a_retry_after_that_is_a_date_counts_from_the_date_of_the_answer() -> None:
    date, until = b"Wed, 21 Oct 2015 07:28:00 GMT", b"Wed, 21 Oct 2015 07:28:30 GMT"
    assert read_retry_after([(b"date", date), (b"retry-after", until)], wall=0) == 30 * SECOND
    beyond = b"Mon, 99999999999999999999 Jan 2020 00:00:00 GMT"
    assert read_retry_after([(b"date", date), (b"retry-after", beyond)], wall=0) is None


def test_a_date_without_a_time_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "EST+5")
    time.tzset()
    try:
        until = b"Wed Oct 21 07:28:30 2015"
        assert read_retry_after([(b"date", b"Wed, 21 Oct 2015 07:28:00 GMT"), (b"retry-after", until)], wall=0) == 30 * SECOND
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_retry_after_that_is_a_date_counts_from_the_time_of_day_in_an_answer_without_a_date() -> None:
    until, noon = b"Thu, 01 Jan 1970 12:00:30 GMT", 12 * 3600 * SECOND
    assert read_retry_after([(b"retry-after", until)], wall=noon) == 30 * SECOND
    assert read_retry_after([(b"retry-after", until)], wall=2 * noon) == 0


def test_of_two_pauses_the_longer_one_counts() -> None:
    assert read_retry_after([(b"retry-after-ms", b"1500")], wall=0) == 1_500_000
    assert read_retry_after([(b"retry-after", b"2"), (b"retry-after-ms", b"1500")], wall=0) == 2 * SECOND
    assert read_retry_after([(b"retry-after", b"soon"), (b"retry-after-ms", b"250")], wall=0) == 250_000


def test_an_answer_that_is_held_is_let_go_with_its_client() -> None:
    """The connection of a held answer that has not come whole is closed when another answer was better."""

    async def scenario() -> None:
        async def begins(received: BackendRequest) -> None:
            await received.send(b"HTTP/1.1 500 I\r\ncontent-length: 100\r\n\r\nhalf")
            await received.wait_until_disconnected()
            ended.set()

        ended = asyncio.Event()
        async with world(Backend(begins), Backend()) as w:
            assert (await w.request())[0] == 200
            await ended.wait()

    run(scenario())


def observed_by(gateway: Any) -> list[Any]:
    """Return the records of the requests that end from now on."""
    observed: list[Any] = []
    end = gateway._observer.end
    gateway._observer.end = lambda record, exchange: (observed.append(record), end(record, exchange))[1]
    return observed


def test_the_access_log_has_the_answer_that_was_passed_on() -> None:
    async def scenario() -> None:
        first, second = Backend(says("500 I")), Backend()
        async with world(first, second, health_interval_secs=30.0) as w:
            await second.stop()
            observed = observed_by(w.gateway)
            assert (await w.request())[0] == 500
            await w.wait_until(lambda: observed)
            record = observed[0]
            assert (record.backend.url, record.outcome, record.num_bytes) == (first.url, "status_500", len(PROBLEM))

    run(scenario())


def test_a_stream_that_is_passed_on_counts_with_the_event_that_its_first_piece_has_a_part_of() -> None:
    """The gateway reads the usage, which it has asked for, and sends only whole events."""

    async def scenario() -> None:
        pieces = b'data: {"error":{"message":"EngineCore died","code":500}}\n\ndata: {"us', b'age":null,"choices":[]}\n\n'
        async with world(Backend(streams(*pieces)), programs={}, max_attempts=1) as w:
            observed = observed_by(w.gateway)
            assert (await w.request(body={"model": "m", "messages": [], "stream": True}))[::2] == (200, b"".join(pieces))
            await w.wait_until(lambda: observed)
            assert observed[0].num_bytes == len(b"".join(pieces))

    run(scenario())


@pytest.mark.parametrize(("key", "value"), [("budget_share", 1.1), ("backoff_multiplier", 0.5), ("max_backoff_secs", -1)])
def test_values_that_mean_nothing(key: str, value: float) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        msgspec.convert({key: value}, RetryConfig)
