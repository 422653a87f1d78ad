"""What RFC 9112 asks of the head of a request, beyond what the parser refuses (`server_framing`)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import httptools

from maitred.wire.messages import FramingError

_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")


def check_version(version: str) -> bool:
    """Return whether it is HTTP/1.1 and not 1.0. Raises FramingError for any other."""
    if version == "1.1":
        return True
    if version == "1.0":
        return False
    if version == "0.9":
        raise FramingError("the request line has no version, or 0.9")
    raise FramingError(f"HTTP/{version} is not spoken here, but HTTP/1.1", 505)


def check_hosts(hosts: tuple[bytes, ...], is_http_11: bool) -> None:
    """Raise FramingError unless there is one Host, which with HTTP/1.0 may be missing."""
    if len(hosts) == 1:
        if not _is_host(hosts[0]):
            raise FramingError("the Host header names no host")
    elif hosts or is_http_11:
        raise FramingError(f"a request must have one Host header, and this one has {len(hosts)}")


def check_codings(codings: tuple[bytes, ...], is_http_11: bool) -> None:
    """Raise FramingError unless the body is in chunks and nothing else."""
    if not is_http_11:
        raise FramingError("HTTP/1.0 has no transfer codings")
    if codings != (b"chunked",):
        raise FramingError("the only transfer coding that is understood here is chunked", 501)


def origin_form(target: bytes, method: bytes) -> bytes:
    """Return the path and query of a target that is a URL, or the `*` of OPTIONS. Raises FramingError."""
    if target == b"*" and method == b"OPTIONS":
        return target
    try:
        url: Any = httptools.parse_url(target)  # Its types say bytes where it has None.
    except httptools.HttpParserInvalidURLError as error:
        raise FramingError(f"the target of the request is no path: {error}") from error
    if b"#" in target or (url.schema or b"").lower() not in (b"http", b"https"):
        raise FramingError("the target of the request is neither a path nor a URL without a fragment")
    path = url.path or b"/"
    return path + b"?" + url.query if url.query else path


@lru_cache(1024)
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None
