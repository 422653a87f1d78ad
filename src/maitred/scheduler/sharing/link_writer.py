"""LinkWriter: what one end of a link writes to its socket, and how much of that has left the process."""

from __future__ import annotations

import asyncio
from typing import Final

_LAST_WORD_SECS: Final = 1.0
_FEW_BYTES: Final = 1 << 16
"""So little need not be looked for: most often it leaves in the turn in which it is written."""


class LinkWriter:
    """Writes to a transport of asyncio, which keeps what the peer does not take yet."""

    def __init__(self) -> None:
        self.transport: asyncio.WriteTransport | None = None
        """None before there is a connection, and after it is lost."""
        self._kept = 0
        """Bytes that were written, and are not known to have left."""

    def take_left(self) -> int:
        """Return how many bytes have left since this was called last. Few are told later, with others."""
        if self._kept < _FEW_BYTES or self.transport is None:
            return 0
        kept, self._kept = self._kept, self.transport.get_write_buffer_size()
        return kept - self._kept

    def write(self, data: bytes) -> None:
        """Write, if there is a connection."""
        if data and self.transport is not None:
            self._kept += len(data)
            self.transport.write(data)


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
