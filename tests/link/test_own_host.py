"""The connection between a picker and the scheduler of its process, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from maitred.scheduler.sharing.link_writer import close_link
from maitred.scheduler.sharing.own_host import connect


class Kept(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self, fails: str = "") -> None:
        """`fails`: what it raises at."""
        self.fails = fails
        self.told: list[bytes | None] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.told.append(data)
        self._fail("data_received")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(None)
        self._fail("connection_lost")

    def _fail(self, where: str) -> None:
        if self.fails == where:
            raise KeyError("a defect")


def played(
    act: Callable[[Kept, Kept], object], fails: str = "", errors: list[str] | None = None
) -> tuple[list[bytes | None], list[bytes | None]]:
    """Return what both ends were told after `act`, which was done in one turn. `fails`: at what the first one raises."""

    async def scenario() -> tuple[list[bytes | None], list[bytes | None]]:
        heard = [] if errors is None else errors
        asyncio.get_running_loop().set_exception_handler(lambda _, what: heard.append(repr(what["exception"])))
        one, other = Kept(fails), Kept()
        connect(one, other)
        act(one, other)
        assert (one.told, other.told) == ([], [])  # Nobody is called back while it calls.
        for _ in range(4):
            await asyncio.sleep(0)
        return one.told, other.told

    return asyncio.run(scenario())


def test_what_is_written_in_a_turn_comes_at_once_and_in_order() -> None:
    def act(one: Kept, other: Kept) -> None:
        for data in (b"a", b"", b"bc"):
            one.transport.write(data)
        other.transport.write(b"d")

    assert played(act) == ([b"d"], [b"abc"])


@pytest.mark.parametrize("end", ["close", "abort"])
def test_both_ends_are_told_once_that_it_is_lost_and_all_that_was_written_comes_before(end: str) -> None:
    def act(one: Kept, other: Kept) -> None:
        one.transport.write(b"last")
        getattr(one.transport, end)()
        one.transport.write(b"nothing more")
        one.transport.abort()
        one.transport.close()
        assert one.transport.is_closing()

    assert played(act) == ([None], [b"last", None])


def test_last_words_come_behind_what_was_written_in_the_same_turn() -> None:
    def act(one: Kept, other: Kept) -> None:
        one.transport.write(b"a grant, ")
        close_link(one.transport, b"and why this ends")

    assert played(act) == ([None], [b"a grant, and why this ends", None])


def test_an_end_that_has_closed_hears_nothing_more() -> None:
    def act(one: Kept, other: Kept) -> None:
        other.transport.write(b"too late")
        one.transport.close()

    assert played(act) == ([None], [None])


@pytest.mark.parametrize("fails", ["data_received", "connection_lost"])
def test_an_end_that_fails_is_cut_and_the_other_hears_of_it(fails: str) -> None:
    """What of its bytes it has not taken is lost, and the requests of these would wait for ever."""
    errors: list[str] = []

    def act(one: Kept, other: Kept) -> None:
        other.transport.write(b"a")
        if fails == "connection_lost":
            other.transport.close()

    assert played(act, fails, errors) == ([b"a", None], [None])
    assert errors == ["KeyError('a defect')"]
