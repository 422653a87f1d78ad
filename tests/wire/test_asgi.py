"""The helpers of raw ASGI apps, against an ASGI server of a few lines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from raw_upstream import run

from maitred.wire import asgi
from maitred.wire.asgi import ApiError, ClientDisconnected, DisconnectWatcher, Message, send_eagerly


class Incoming:
    """A `receive` that returns `pieces`, and then waits until the client disconnects."""

    def __init__(self, *pieces: bytes, whole: bool = True) -> None:
        self.messages: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        if whole and self.messages:
            self.messages[-1]["more_body"] = False
        self.gone = asyncio.Event()
        self.heard = 0

    async def __call__(self) -> Message:
        if self.messages:
            return self.messages.pop(0)
        await self.gone.wait()
        self.heard += 1
        return {"type": "http.disconnect"}


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "headers": list(headers)}


@pytest.mark.parametrize("pieces", [[b"abcde"], [b"ab", b"", b"cde"], [b"", b"abcde"]])
def test_a_body_within_the_limit(pieces: Iterable[bytes]) -> None:
    assert run(asgi.read_body(scope(), Incoming(*pieces), 5)) == b"abcde"


@pytest.mark.parametrize("pieces", [[b"abcde"], [b"ab", b"", b"cde"]])
def test_the_size_of_each_piece_is_told(pieces: list[bytes]) -> None:
    sizes: list[int] = []

    assert run(asgi.read_body(scope(), Incoming(*pieces), 5, sizes.append)) == b"abcde"
    assert sizes == [len(piece) for piece in pieces]


def test_a_piece_may_be_refused_and_the_rest_stays_unread() -> None:
    async def scenario() -> int:
        receive, refusal = Incoming(b"ab", b"cd", b"e"), LookupError()

        def take(size: int) -> None:
            if len(receive.messages) == 1:
                raise refusal

        with pytest.raises(LookupError):
            await asgi.read_body(scope(), receive, 5, take)
        return len(receive.messages)

    assert run(scenario()) == 1


@pytest.mark.parametrize(
    ("headers", "pieces", "left"),
    [
        pytest.param([], [b"abcdef"], 0, id="in one piece"),
        pytest.param([], [b"abc", b"def", b"ghi"], 1, id="no further than where it is known"),
        pytest.param([(b"content-length", b"6")], [b"abc", b"def"], 2, id="declared: nothing is read"),
    ],
)
def test_a_body_beyond_the_limit(headers: list[tuple[bytes, bytes]], pieces: list[bytes], left: int) -> None:
    async def scenario() -> int:
        receive = Incoming(*pieces)
        with pytest.raises(ApiError, match="5 bytes") as caught:
            await asgi.read_body(scope(*headers), receive, 5)
        assert (caught.value.status, caught.value.code) == (413, "request_too_large")
        return len(receive.messages)

    assert run(scenario()) == left


def test_a_client_that_leaves_in_the_middle_of_its_body() -> None:
    async def scenario() -> None:
        receive = Incoming(b"abc", whole=False)
        receive.gone.set()
        with pytest.raises(ClientDisconnected):
            await asgi.read_body(scope(), receive, 5)

    run(scenario())


def test_errors_are_openais() -> None:
    async def scenario() -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        error = ApiError(429, "too many", kind="rate_limit_error", code="full", headers=[(b"retry-after", b"2")])
        await asgi.send_error(send, error)
        return sent

    head, body = run(scenario())
    error = {"message": "too many", "type": "rate_limit_error", "param": None, "code": "full"}
    assert msgspec.json.decode(body["body"]) == {"error": error}
    assert head["status"] == 429
    assert dict(head["headers"]) == {
        b"content-type": b"application/json",
        b"content-length": str(len(body["body"])).encode(),
        b"x-smg-error-code": b"full",
        b"retry-after": b"2",
    }


def test_the_first_of_repeated_headers_counts() -> None:
    assert asgi.get_header(scope((b"a", b"1"), (b"b", b"2"), (b"b", b"3")), b"b") == b"2"
    assert asgi.get_header(scope((b"a", b"1")), b"b") is None


def test_a_departure_is_told_once() -> None:
    async def scenario() -> list[str]:
        told: list[str] = []
        receive = Incoming()
        departure = DisconnectWatcher(receive, lambda: told.append("gone"))
        await asyncio.sleep(0)
        assert told == []
        assert not departure.is_disconnected
        receive.gone.set()
        await asyncio.sleep(0.001)
        assert departure.is_disconnected
        departure.stop()
        return told

    assert run(scenario()) == ["gone"]


def test_a_client_that_had_left_already() -> None:
    async def scenario() -> bool:
        receive = Incoming()
        receive.gone.set()
        return DisconnectWatcher(receive, lambda: None).is_disconnected

    assert run(scenario())


def test_what_else_is_received_is_no_departure() -> None:
    async def scenario() -> bool:
        return DisconnectWatcher(Incoming(b"a late piece"), lambda: None).is_disconnected

    assert not run(scenario())


def test_a_stopped_departure_is_never_told_and_leaves_nothing_waiting() -> None:
    async def scenario() -> int:
        receive = Incoming()
        departure = DisconnectWatcher(receive, lambda: pytest.fail("told"))
        departure.stop()
        departure.stop()
        receive.gone.set()
        await asyncio.sleep(0.001)
        assert not receive.gone._waiters  # type: ignore[attr-defined]
        return receive.heard

    assert run(scenario()) == 0


def test_send_now_does_at_once_what_need_not_wait() -> None:
    async def scenario() -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        assert send_eagerly(send, {"type": "x"}) is None
        return sent

    assert run(scenario()) == [{"type": "x"}]


def test_send_now_leaves_a_task_for_what_must_wait() -> None:
    async def scenario() -> list[str]:
        done: list[str] = []
        gates = [asyncio.Event(), asyncio.Event()]

        async def send(message: Message) -> None:
            for gate in gates:
                await gate.wait()
            await asyncio.sleep(0)
            done.append(message["type"])

        task = send_eagerly(send, {"type": "x"})
        assert task is not None
        for gate in gates:
            await asyncio.sleep(0.001)
            assert done == []
            gate.set()
        await task
        return done

    assert run(scenario()) == ["x"]


def test_send_now_fails_as_send_does() -> None:
    async def scenario() -> None:
        async def fails(message: Message) -> None:
            raise RuntimeError("now")

        with pytest.raises(RuntimeError, match="now"):
            send_eagerly(fails, {"type": "x"})

        async def fails_later(message: Message) -> None:
            await asyncio.sleep(0.001)
            raise RuntimeError("later")

        task = send_eagerly(fails_later, {"type": "x"})
        assert task is not None
        with pytest.raises(RuntimeError, match="later"):
            await task

    run(scenario())


def test_cancelling_what_send_now_left_reaches_send() -> None:
    async def scenario() -> bool:
        cancelled = False

        async def send(message: Message) -> None:
            nonlocal cancelled
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                cancelled = True
                raise

        task = send_eagerly(send, {"type": "x"})
        assert task is not None
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return cancelled

    assert run(scenario())
