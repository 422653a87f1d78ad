"""LinkWriter: what one end of a link writes to its socket, and how much of that has left the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_LAST_WORD_SECS: Final = 1.0


class LinkWriter:
    """Writes to a transport of asyncio, which keeps what the peer does not take yet."""

    def __init__(self) -> None:
        self.transport: asyncio.WriteTransport | None = None
        """None before there is a connection, and after it is lost."""
        self._kept = 0
        """Bytes that were written, and are not known to have left."""

    def write(self, take_bytes: Callable[[], bytes], note_written: Callable[[int], object]) -> None:
        """Write what `take_bytes` returns, after `note_written` was told what has left since."""
        transport = self.transport
        if transport is None:
            return
        waiting = transport.get_write_buffer_size()
        if waiting < self._kept:
            note_written(self._kept - waiting)
            self._kept = waiting
        data = take_bytes()
        if data:
            self._kept += len(data)
            transport.write(data)


def close_link(transport: asyncio.WriteTransport | None, last_bytes: bytes) -> None:
    """Close a connection, within `_LAST_WORD_SECS`; `last_bytes` are written if its peer takes them at once."""
    if transport is None:
        return
    if last_bytes and not transport.get_write_buffer_size():
        transport.write(last_bytes)
        transport.close()
        # With TLS, a peer that stands still would hold it up, which has to end the connection as well.
        asyncio.get_running_loop().call_later(_LAST_WORD_SECS, transport.abort)
    else:
        transport.abort()
