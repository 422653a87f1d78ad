"""Answers as a client sees them: a strict parser of HTTP/1.1 responses, which shares no code with the programs under test.

A client that is lenient hides faults, so whatever RFC 9112 does not allow a server to send is a `Violation`: a second head in
an answer, bytes behind it that belong to no request, a length that is given twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_MAX_HEAD_BYTES = 65_536


class Violation(Exception):  # noqa: N818  (it is the program that has failed)
    """Something that must hold does not."""


@dataclass(slots=True)
class ParsedResponse:
    """One response."""

    status: int
    headers: dict[bytes, bytes]
    """By their names in lower case; the values of one that comes twice are joined by commas."""
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    """Whether its end has come."""

    @property
    def closes(self) -> bool:
        """Whether the connection ends with it."""
        return self.headers.get(b"connection", b"").lower() == b"close"


class AnswerParser:
    """Parses the responses of one connection. Raises Violation for what no server may send."""

    def __init__(self) -> None:
        self.answer: ParsedResponse | None = None
        """The response that has begun and has not ended."""
        self._buffer = bytearray()
        self._left: int | None = 0
        """Bytes that are left of the body or the chunk; None before the size of a chunk."""
        self._is_chunked = self._is_until_close = False

    def feed(self, data: bytes) -> list[ParsedResponse]:
        """Take bytes, and return the responses that they end. Interim responses (1xx) are passed over."""
        self._buffer += data
        ended: list[ParsedResponse] = []
        while self._advance():
            answer = self.answer
            if answer is not None and answer.is_whole:
                self.answer = None
                if answer.status >= 200:
                    ended.append(answer)
        return ended

    def feed_end(self) -> ParsedResponse | None:
        """Take the end of the connection, and return the response that it ends, if it does."""
        answer = self.answer
        if answer is None or not self._is_until_close:
            return None
        self.answer, answer.is_whole = None, True
        return answer

    def _advance(self) -> bool:
        """Go one step on, and return whether that was possible."""
        if self.answer is None:
            return self._take_head()
        if self._is_until_close:
            return self._take_body(len(self._buffer))
        if not self._is_chunked:
            return self._take_body(self._left or 0) or self._end_body()
        if self._left is None:
            return self._take_chunk_size()
        return self._take_body(self._left) if self._left else self._end_chunk()

    def _take_head(self) -> bool:
        head, separator, _ = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            if len(self._buffer) > _MAX_HEAD_BYTES or not b"HTTP/1.1 ".startswith(bytes(self._buffer[:9])):
                raise Violation(f"no head of a response: {bytes(self._buffer[:80])!r}")
            return False
        del self._buffer[: len(head) + 4]
        line, *fields = bytes(head).split(b"\r\n")
        if not line.startswith(b"HTTP/1.1 ") or not line[9:12].isdigit():
            raise Violation(f"no status line: {line!r}")
        headers: dict[bytes, bytes] = {}
        for each in fields:
            name, colon, value = each.partition(b":")
            if not colon or name != name.strip() or not name:
                raise Violation(f"no header: {each!r}")
            before = headers.get(name.lower())
            headers[name.lower()] = value.strip() if before is None else before + b"," + value.strip()
        self.answer = ParsedResponse(int(line[9:12]), headers)
        self._set_framing(self.answer)
        return True

    def _set_framing(self, answer: ParsedResponse) -> None:
        length, coding = answer.headers.get(b"content-length"), answer.headers.get(b"transfer-encoding")
        if length is not None and (coding is not None or not length.isdigit()):
            raise Violation(f"a body with the length {length!r} and the coding {coding!r}")
        if coding not in (None, b"chunked"):
            raise Violation(f"a body with the coding {coding!r}")
        has_body = answer.status >= 200 and answer.status not in (204, 304)
        self._is_chunked = has_body and coding is not None
        self._is_until_close = has_body and length is None and coding is None
        self._left = None if self._is_chunked else int(length or 0) if has_body else 0

    def _take_body(self, most: int) -> bool:
        """Take up to `most` bytes of the body, and return whether there were any."""
        taken = self._buffer[:most]
        if not taken or self.answer is None:
            return False
        self.answer.body += taken
        del self._buffer[: len(taken)]
        if self._left is not None and not self._is_until_close:
            self._left -= len(taken)
        return True

    def _end_body(self) -> bool:
        if self._left or self.answer is None:
            return False
        self.answer.is_whole = True
        return True

    def _take_chunk_size(self) -> bool:
        line, separator, _ = self._buffer.partition(b"\r\n")
        if not separator:
            return False
        try:
            self._left = int(bytes(line), 16)
        except ValueError:
            raise Violation(f"no size of a chunk: {bytes(line[:80])!r}") from None
        if self._left == 0 and len(self._buffer) < len(line) + 4:
            self._left = None
            return False
        del self._buffer[: len(line) + 2]
        if self._left == 0:
            if not self._buffer.startswith(b"\r\n"):
                raise Violation(f"no end of a chunked body: {bytes(self._buffer[:80])!r}")
            del self._buffer[:2]
            return self._end_body()
        return True

    def _end_chunk(self) -> bool:
        """Take the line end behind a chunk."""
        if len(self._buffer) < 2:
            return False
        if not self._buffer.startswith(b"\r\n"):
            raise Violation(f"no end of a chunk: {bytes(self._buffer[:80])!r}")
        del self._buffer[:2]
        self._left = None
        return True
