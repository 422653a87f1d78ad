"""Origin: scheme, host and port of an upstream, read from its URL."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from maitred.core.errors import ConfigError, quote

_MAX_URL_CHARS = 1_000
_USER_INFO = re.compile(r"(^|/)[^/]*@")
"""A name and a password. Only what follows a slash is tried: from every character on, a long URL would take seconds."""
_HOST = re.compile(r"[a-z0-9_-][a-z0-9._-]*")


class Origin(msgspec.Struct, frozen=True):
    """Scheme, host and port: what a connection belongs to."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str, *, where: str = "") -> Origin:
        """Parse `http://host:port` or `https://host:port`. Raises ConfigError for anything else, such as a path."""
        hint = "write it as http://host:port"
        shown = quote(_USER_INFO.sub(r"\1***@", url))  # Messages stand in logs, and must repeat no password.
        if len(url) > _MAX_URL_CHARS:
            raise ConfigError(f"{shown} is too long for a URL", where=where, hint=hint)
        if not url.isprintable() or " " in url:  # urlsplit would drop some of them silently
            raise ConfigError(f"{shown} has a space or control character in it", where=where, hint=hint)
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigError(f"{shown} is no URL: its host cannot be read", where=where, hint=hint) from error
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{shown} is no URL: its port is no number from 1 to 65535", where=where, hint=hint) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{shown} is no http or https URL", where=where, hint=hint)
        if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
            raise ConfigError(f"{shown} has more than a host and a port", where=where, hint=hint)
        if port == 0:
            raise ConfigError(f"{shown} has port 0, on which nothing can listen", where=where, hint=hint)
        host = _ascii_host(parts.hostname)
        if host is None:
            raise ConfigError(f"{shown} has no valid host name", where=where, hint=hint)
        tls = parts.scheme == "https"
        return cls(host, port or (443 if tls else 80), tls)

    @property
    def authority(self) -> str:
        """Host and port as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


def _ascii_host(host: str) -> str | None:
    """Return `host` as in DNS and the Host header, or None if it is not valid, such as one with an empty label."""
    try:
        named = host.encode("idna").decode()
    except UnicodeError:
        return None
    return named if ":" in host or _HOST.fullmatch(named) else None
