"""Request bodies that clients have compressed (`Content-Encoding`, RFC 9110, 8.4): decoded before anything is read from them.

    gzip, deflate   always; of deflate also the form without a header and a checksum, which some clients send
    zstd            with Python 3.14, or with backports.zstd, which is its `compression.zstd` for older ones
    br              with brotli, from 1.2 on: older ones decode a piece without limit

The extra `encodings` installs both. Any other coding, and several on top of each other, are refused with 415, whose
`Accept-Encoding` names those that are taken (RFC 7694). The backend gets the decoded body without the header.

A body of 32 KB may stand for 32 MB, one of zstd for gigabytes. So it is decoded in pieces, and each piece counts against the
size limit of a body and the budget of all bodies before the next one is made. The event loop runs between the pieces
(`large_body`). What a decoder keeps of its output to refer to (its window, of zstd at most 8 MB as RFC 9659 has it) it fills
with what it has put out already, so it keeps no more than is counted.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple, Protocol

from maitred.core.steps import Steps
from maitred.gateway.bodies.body_budget import BodyLease
from maitred.wire.exchange import ApiError, body_too_large

log = logging.getLogger("maitred.gateway")
PIECE_BYTES: Final = 256 * 1024
"""Size of the pieces that are read and decoded at a time, in bytes."""
_FEW_STREAMS: Final = 16
_BYTES_PER_STREAM: Final = 1024
"""A body may have `_FEW_STREAMS` streams, and one more for each `_BYTES_PER_STREAM` of its bytes. One of gzip may have 20 bytes
that stand for nothing, so no other limit would hold, and each costs a decoder and what is copied behind its end."""
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15
"""What zlib calls the wrapping of a stream."""
_ZSTD_WINDOW_LOG: Final = 23
"""The largest window of zstd, as a power of two (RFC 9659)."""


class Decoder(Protocol):
    """Decodes one stream."""

    @property
    def needs_input(self) -> bool:
        """Whether all that was given is decoded."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether the stream has come to its end."""
        ...

    @property
    def unused(self) -> bytes:
        """What was given beyond that end."""
        ...

    def decode(self, data: bytes) -> bytes:
        """Return the next decoded bytes of what was given and of `data`, about a piece at most. Raises the errors of its
        coding."""
        ...


class Coding(NamedTuple):
    """How bodies of one coding are decoded."""

    start: Callable[[bytes], Decoder]
    """Returns a decoder for a stream that begins with these bytes."""
    errors: tuple[type[Exception], ...]
    """What a decoder raises for a body that is not of its coding."""
    may_follow: bool = False
    """Whether a body may have several streams, one behind the other."""


class _ZlibDecoder:
    def __init__(self, bits: int) -> None:
        self._stream = zlib.decompressobj(bits)

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    @property
    def is_finished(self) -> bool:
        return self._stream.eof

    @property
    def unused(self) -> bytes:
        return self._stream.unused_data

    def decode(self, data: bytes) -> bytes:
        return self._stream.decompress(self._stream.unconsumed_tail or data, PIECE_BYTES)


class _ZstdDecoder:
    def __init__(self, zstd: Any) -> None:
        self._frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})

    @property
    def needs_input(self) -> bool:
        return bool(self._frame.needs_input)

    @property
    def is_finished(self) -> bool:
        return bool(self._frame.eof)

    @property
    def unused(self) -> bytes:
        return bytes(self._frame.unused_data)

    def decode(self, data: bytes) -> bytes:
        return bytes(self._frame.decompress(data, max_length=PIECE_BYTES))


class _BrotliDecoder:
    unused = b""  # More behind the end is an error of the library.

    def __init__(self, brotli: Any) -> None:
        self._stream = brotli.Decompressor()

    @property
    def needs_input(self) -> bool:
        return bool(self._stream.can_accept_more_data())

    @property
    def is_finished(self) -> bool:
        return bool(self._stream.is_finished())

    def decode(self, data: bytes) -> bytes:
        return bytes(self._stream.process(data, output_buffer_limit=PIECE_BYTES))


def _start_deflate(body: bytes) -> Decoder:
    has_zlib_header = len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0  # RFC 1950, 2.2
    return _ZlibDecoder(_ZLIB_BITS if has_zlib_header else _RAW_BITS)


def _find_library(*names: str) -> Any | None:
    for name in names:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


def _find_codings() -> Mapping[str, Coding]:
    """Return the codings that can be decoded in this environment, by name."""
    found = {
        "gzip": Coding(lambda body: _ZlibDecoder(_GZIP_BITS), (zlib.error,), may_follow=True),
        "deflate": Coding(_start_deflate, (zlib.error,)),
    }
    brotli = _find_library("brotli")
    if brotli is not None and hasattr(brotli.Decompressor, "can_accept_more_data"):
        found["br"] = Coding(lambda body: _BrotliDecoder(brotli), (brotli.error,))
    zstd = _find_library("compression.zstd", "backports.zstd")
    if zstd is not None:
        found["zstd"] = Coding(lambda body: _ZstdDecoder(zstd), (zstd.ZstdError,), may_follow=True)
    return found


CODINGS: Final = _find_codings()
"""The codings that are taken, by name."""
_ALIASES: Final = {"x-gzip": "gzip"}
_OF_EXTRA: Final = frozenset(("br", "zstd"))
_told_of: Final[set[str]] = set()
"""Codings of the extra that clients have sent in vain, and the log has named."""


def decode_body(body: bytes, coding: bytes, limit: int, lease: BodyLease) -> Steps[bytes]:
    """Return in steps `body` without `coding`, the value of its Content-Encoding, at most `limit` bytes. `lease` holds those in
    place of the bytes of `body`.

    Raises ApiError 400 for a body that is not of that coding, 413 for one that is too long, 415 for a coding that is not taken,
    and what `lease` raises.
    """
    name = coding.decode("latin-1").strip().lower()
    if name in ("identity", ""):
        return body
    found = CODINGS.get(_ALIASES.get(name, name))
    if found is None:
        _tell_of_extra(name)
        raise coding_not_taken(name, CODINGS)
    decoded = BytesIO()
    decoder, at = found.start(body), 0
    num_left, size = _FEW_STREAMS + len(body) // _BYTES_PER_STREAM, PIECE_BYTES
    while True:
        # What a decoder leaves of its input it copies, so it gets no more than a piece at a time.
        data = body[at : at + size] if decoder.needs_input else b""
        at += len(data)
        try:
            piece = decoder.decode(data)
        except found.errors as error:
            raise _invalid(name, str(error)) from error
        if decoded.tell() + len(piece) > limit:
            raise body_too_large(limit)
        lease.take_bytes(len(piece))
        decoded.write(piece)
        if decoder.is_finished:
            at -= len(decoder.unused)
            if at == len(body):
                break
            num_left -= 1
            if not found.may_follow or not num_left:
                raise _invalid(name, "too many streams" if found.may_follow else "more follows behind its end")
            decoder, size = found.start(body), _BYTES_PER_STREAM  # The next one may be as short.
        elif not piece and not data and decoder.needs_input:
            raise _invalid(name, "it ends too early")
        else:
            size = min(size * 2, PIECE_BYTES)
        yield
    lease.return_bytes(len(body))
    return decoded.getvalue()  # This copies nothing.


def _invalid(name: str, problem: str) -> ApiError:
    message = f"the request body is not what its Content-Encoding says, {name}: {problem}"
    return ApiError(400, message, kind="invalid_request_error", code="invalid_content_encoding")


def _tell_of_extra(name: str) -> None:
    """Say in the log, once, that a coding needs the extra."""
    if name in _OF_EXTRA and name not in _told_of:
        _told_of.add(name)
        log.warning("a client has sent a body in %s, which is refused: `pip install 'maitred[encodings]'` lets it in", name)


def coding_not_taken(name: str, taken: Iterable[str]) -> ApiError:
    """Return the error for a body in the coding `name`, where those in `taken` are decoded."""
    names = ", ".join(taken) or "identity"
    message = f"the Content-Encoding {name[:40]!r} is not taken here; taken is one of: {names}"
    headers = [(b"accept-encoding", names.encode())]
    return ApiError(415, message, kind="invalid_request_error", code="unsupported_content_encoding", headers=headers)
