"""The connection between a picker and the scheduler of its process, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from maitred.scheduler.sharing.own_host import connect


class Kept(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[bytes | None] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.told.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(None)


def played(act: Callable[[Kept, Kept], object]) -> tuple[list[bytes | None], list[bytes | None]]:
    """Return what both ends were told after `act`, which was done in one turn."""

    async def scenario() -> tuple[list[bytes | None], list[bytes | None]]:
        one, other = Kept(), Kept()
        connect(one, other)
        act(one, other)
        assert (one.told, other.told) == ([], [])  # Nobody is called back while it calls.
        for _ in range(3):
            await asyncio.sleep(0)
        return one.told, other.told

    return asyncio.run(scenario())


def test_what_is_written_in_a_turn_comes_at_once_and_in_order() -> None:
    def act(one: Kept, other: Kept) -> None:
        for data in (b"a", b"", b"bc"):
            one.transport.write(data)
        other.transport.write(b"d")
        assert (one.transport.get_write_buffer_size(), other.transport.get_write_buffer_size()) == (3, 1)

    assert played(act) == ([b"d"], [b"abc"])


@pytest.mark.parametrize(("end", "last"), [("close", [b"last", None]), ("abort", [None])])
def test_both_ends_are_told_once_that_it_is_lost_and_only_a_close_sends_what_was_written(
    end: str, last: list[bytes | None]
) -> None:
    def act(one: Kept, other: Kept) -> None:
        one.transport.write(b"last")
        getattr(one.transport, end)()
        one.transport.write(b"nothing more")
        one.transport.abort() if end == "abort" else one.transport.close()
        assert one.transport.is_closing()

    assert played(act) == ([None], last)
