"""Requests over TLS, by aiohttp's client, behind the same `UpstreamResponse`.

Backends usually stand beside the gateway and speak plain HTTP. Where they do not, aiohttp's handling of certificates and its
connector matter more than the microseconds that our own client saves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import aiohttp
from yarl import URL

from maitred.wire.errors import (
    Disconnected,
    ProtocolError,
    Truncated,
    UpstreamError,
    UpstreamLimits,
    UpstreamTimeout,
    connect_error,
)
from maitred.wire.response import UpstreamResponse


class TlsClient:
    """Sends requests to `https://` origins. Used inside one event loop."""

    def __init__(self, limits: UpstreamLimits) -> None:
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._feeding: set[asyncio.Task[None]] = set()

    async def request(
        self, origin: str, method: str, target: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> UpstreamResponse:
        """Send a request, as `UpstreamClient.request` does."""
        source = _TlsSource()
        response = UpstreamResponse(source, self._limits.high_water, asyncio.get_running_loop())
        named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        call = self._connected().request(
            method, URL(origin + target, encoded=True), headers=named, data=body or None, allow_redirects=False
        )
        source.task = asyncio.create_task(_feed_response(call, source, response, self._limits))
        self._feeding.add(source.task)
        source.task.add_done_callback(self._feeding.discard)
        return await response.wait_for_head()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = self._limits
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                connector=aiohttp.TCPConnector(limit_per_host=limits.max_connections, keepalive_timeout=limits.keep_alive_secs),
                timeout=aiohttp.ClientTimeout(total=None, connect=limits.connect_secs),
                max_field_size=limits.max_head,
            )
        return self._session


class _TlsSource:
    """The task that reads one response."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.may_read = asyncio.Event()
        self.may_read.set()

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    def abort(self) -> None:
        if self.task is not None:
            self.task.cancel()


async def _feed_response(
    call: aiohttp.client._RequestContextManager, source: _TlsSource, response: UpstreamResponse, limits: UpstreamLimits
) -> None:
    begun = False
    try:
        # aiohttp has one limit for both kinds of silence, and counts the time in which our client does not read.
        async with asyncio.timeout(limits.head_secs):
            answer = await call
        async with answer:
            begun = True
            response.on_head(answer.status, [(name.lower(), value) for name, value in answer.raw_headers])
            # To wait between two pieces is enough: aiohttp itself stops reading the socket while its buffer is full.
            while piece := await _read_piece(answer, limits.idle_secs):
                response.on_body(piece, True)
                await source.may_read.wait()
            response.on_body(b"", False)
    except Exception as error:
        response.on_error(_upstream_error(error, begun))


async def _read_piece(answer: aiohttp.ClientResponse, idle_secs: float) -> bytes:
    """Return the next piece, or b"" at the end. Raises TimeoutError after `idle_secs` of silence."""
    async with asyncio.timeout(idle_secs):
        return await answer.content.readany()


def _upstream_error(error: Exception, begun: bool) -> UpstreamError:
    text = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        return UpstreamTimeout(f"the upstream was silent for too long: {text}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return connect_error(error, text)
    if begun:
        return Truncated(f"the upstream broke off in the middle of its response: {text}")
    if isinstance(error, aiohttp.ClientConnectionError):
        return Disconnected(f"the upstream closed the connection before its response: {text}")
    return ProtocolError(text)
