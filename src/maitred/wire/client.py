"""The upstream client: HTTP/1.1 over kept connections, for whoever must stream, cancel and hold back without waste.

A request is sent again, once and over a new connection, in one case only: it went out on a connection that had been idle, and
that was closed before a single byte of an answer. Most likely the upstream closed it for its age at the moment we used it. It
may also have died of the request: then it is asked a second time, and no more. Every other failure is the caller's to judge.

`https://` origins go through aiohttp's client, behind the same `Response`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from maitred.errors import ConfigError
from maitred.wire.failures import Disconnected
from maitred.wire.limits import Limits
from maitred.wire.pool import Pool
from maitred.wire.response import Response

if TYPE_CHECKING:
    from maitred.wire.tls import TlsClient


_HOST = re.compile(r"[a-z0-9_-][a-z0-9._-]*")


class Origin(msgspec.Struct, frozen=True):
    """Scheme, host and port: what a connection belongs to."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str, *, where: str = "") -> Origin:
        """From `http://host:port` or `https://...`. Raises ConfigError for anything else, a path included."""
        hint = "write it as http://host:port"
        if not url.isprintable() or " " in url:  # urlsplit would drop some of them silently
            raise ConfigError(f"{url!r} has a space or control character in it", where=where, hint=hint)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is no URL: {error}", where=where, hint=hint) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no http or https URL", where=where, hint=hint)
        if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
            raise ConfigError(f"{url!r} has more than a host and a port", where=where, hint=hint)
        if port == 0:
            raise ConfigError(f"{url!r} has port 0, on which nothing can listen", where=where, hint=hint)
        host = _ascii_host(parts.hostname)
        if host is None:
            raise ConfigError(f"{url!r} has no valid host name", where=where, hint=hint)
        tls = parts.scheme == "https"
        return cls(host, port or (443 if tls else 80), tls)

    @property
    def authority(self) -> str:
        """As in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


class Client:
    """Used inside one event loop."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._pools: dict[Origin, Pool] = {}
        self._tls: TlsClient | None = None

    async def request(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
    ) -> Response:
        """Send a request and return its response when the head is there.

        `headers` must have neither Host nor anything about framing or the connection. If this is cancelled the connection is
        closed at once; afterwards `Response.close` does that. Raises UpstreamError, and ValueError if a header has a line end.
        """
        if origin.tls:
            return await self._over_tls().request(str(origin), method, target, headers, body)
        pool = self.pool(origin)
        head = _head(pool.authority, method, target, headers, body)
        bodiless = method == "HEAD"
        connection = pool.take_idle() or await pool.take()
        try:
            return await connection.send(head, body, bodiless=bodiless).begun()
        except Disconnected:
            if not connection.used or connection.heard:
                raise
        pool.drop_idle()
        connection = await pool.take()
        return await connection.send(head, body, bodiless=bodiless).begun()

    def pool(self, origin: Origin) -> Pool:
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(origin.host, origin.port, origin.authority, self.limits)
        return pool

    async def close(self) -> None:
        """Close idle connections; those in use close when their response has ended."""
        for pool in self._pools.values():
            pool.close()
        if self._tls is not None:
            await self._tls.close()

    def _over_tls(self) -> TlsClient:
        if self._tls is None:
            from maitred.wire.tls import TlsClient

            self._tls = TlsClient(self.limits)
        return self._tls


def _ascii_host(host: str) -> str | None:
    """As DNS and the Host header have it; None if it cannot be one, as with an empty label."""
    try:
        named = host.encode("idna").decode()
    except UnicodeError:
        return None
    return named if ":" in host or _HOST.fullmatch(named) else None


def _head(authority: str, method: str, target: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1\r\nhost: {authority}".encode("latin-1")]
    lines += [b"%b: %b" % header for header in headers]
    if body or method not in ("GET", "HEAD"):
        lines.append(b"content-length: %d" % len(body))
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
        raise ValueError("a header with a line end in it")
    return head + b"\r\n\r\n"
