"""Request bodies that clients have compressed (`Content-Encoding`, RFC 9110, 8.4): decoded before anything is read from them.

gzip and deflate are taken; of deflate also the form without a header and a checksum, which some clients send. Any other coding,
and several on top of each other, are refused with 415, which names those that are taken. The backend gets the decoded body
without the header.

A body of 32 KB may stand for 32 MB. So it is decoded in pieces, and each piece counts against the size limit of a body and the
budget of all bodies before the next one is made. The event loop runs between the pieces.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Final

from maitred.gateway.body_budget import BodyLease
from maitred.wire.exchange import ApiError, body_too_large

if TYPE_CHECKING:
    from zlib import _Decompress

PIECE_BYTES: Final = 256 * 1024
"""Largest piece that is decoded at a time, in bytes."""
TAKEN: Final = b"gzip, deflate"
"""The codings that are taken, as a value of `Accept-Encoding`."""
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15
"""What zlib calls the wrapping of a stream."""


async def decode_body(body: bytes, coding: bytes, limit: int, lease: BodyLease) -> bytes:
    """Return `body` without `coding`, the value of its Content-Encoding, at most `limit` bytes. `lease` holds those in place of
    the bytes of `body`.

    Raises ApiError 400 for a body that is not of that coding, 413 for one that is too long, 415 for a coding that is not taken,
    and what `lease` raises.
    """
    name = coding.strip().lower()
    if name in (b"identity", b""):
        return body
    bits = _choose_bits(name, body)
    if bits is None:
        raise _not_taken(coding)
    decoded = bytearray()
    decoder, at = zlib.decompressobj(bits), 0
    while True:
        # What zlib leaves of its input it copies, so it gets no more than a piece at a time.
        data = decoder.unconsumed_tail or body[at : at + PIECE_BYTES]
        at += 0 if decoder.unconsumed_tail else len(data)
        piece = _decode_piece(decoder, data, name)
        if len(decoded) + len(piece) > limit:
            raise body_too_large(limit)
        lease.take_bytes(len(piece))
        decoded += piece
        if decoder.eof:
            at -= len(decoder.unused_data)
            if at == len(body):
                break
            if bits != _GZIP_BITS:
                raise _invalid(name, "more follows behind its end")
            decoder = zlib.decompressobj(bits)  # gzip may have several members
        elif not piece and not data:
            raise _invalid(name, "it ends too early")
        await asyncio.sleep(0)
    lease.return_bytes(len(body))
    return bytes(decoded)


def _choose_bits(name: bytes, body: bytes) -> int | None:
    """Return the wrapping that a coding stands for, or None if the coding is not taken."""
    if name in (b"gzip", b"x-gzip"):
        return _GZIP_BITS
    if name != b"deflate":
        return None
    has_zlib_header = len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0  # RFC 1950, 2.2
    return _ZLIB_BITS if has_zlib_header else _RAW_BITS


def _decode_piece(decoder: _Decompress, data: bytes, name: bytes) -> bytes:
    """Return what comes of `data`, at most a piece."""
    try:
        return decoder.decompress(data, PIECE_BYTES)
    except zlib.error as error:
        raise _invalid(name, str(error)) from error


def _invalid(name: bytes, problem: str) -> ApiError:
    message = f"the request body is not what its Content-Encoding says, {name.decode('latin-1')}: {problem}"
    return ApiError(400, message, kind="invalid_request_error", code="invalid_content_encoding")


def _not_taken(coding: bytes) -> ApiError:
    message = f"the Content-Encoding {coding.decode('latin-1')[:40]!r} is not taken here; taken is one of: {TAKEN.decode()}"
    headers = [(b"accept-encoding", TAKEN)]
    return ApiError(415, message, kind="invalid_request_error", code="unsupported_content_encoding", headers=headers)
