r"""Known heads: a head that came before, byte for byte, means what it meant then.

A client sends the same head with request after request, and a backend with answer after answer: only the digits of
Content-Length differ, if there is one. So httptools parses such a head once. What came of it is kept under its bytes without
these digits:

    POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 17\r\n\r\n      is parsed, and kept
    POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4096\r\n\r\n    is found again; its length is 4096
    GET /health HTTP/1.1\r\nhost: a\r\n\r\n                       is kept as it is, and found again by the next probe

**Why this is safe.** Nothing is interpreted here that was not parsed. A head is looked up only where a message begins, and kept
only if the parser has taken it whole, with this one length and no transfer coding. Of responses only a final one is kept, with
no interim response before it, if it may have a body (no HEAD, 204 or 304) and is the whole of the read that brought it. A
number of one to nine digits in the place of another moves no line end and changes no other value, so the parser would return
the same, with the other length. Every rule that refuses a head has refused it before it could be kept. A head with anything
else in it that differs, such as a request id, is another head, and is parsed.

A head without a length is one only if it is all that a read has brought, and it is kept only of a request that has ended with
it: then it announces no chunks, and nothing follows that could be taken for a body. It is kept with the blank line at its end,
which no head has that was kept without its digits; so `content-length: ` with nothing behind is not found under their key.

**The last one of a connection** is tried first (`KnownHead.find_again`): the bytes before the digits and those behind them are
compared, which takes less than half of the look-up, and finds what the look-up would find.

**Bounds.** At most `MAX_HEADS` heads of `MAX_KEPT_HEAD_BYTES` are kept, and one for each connection that is open. Instead of
one more, all are dropped: those in use come back with their next message, and nothing need be noted when one is used. A head
may hold the key of a client; it stays in the memory of this process, and is written nowhere. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

HeadT = TypeVar("HeadT")
MAX_HEADS: Final = 512
MAX_KEPT_HEAD_BYTES: Final = 4_096
"""By both, at most 2 MiB of heads are kept."""
_MAX_DIGITS: Final = 9
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,%d})\r\n" % _MAX_DIGITS)


SeenHead: TypeAlias = tuple[bytes, int | None, int]
"""The head at the beginning of a read: the head without the digits of its length, by which it is kept; the declared length of
the body, or None if the head is all that has come, and declares none in the usual place; and where the body begins."""


def find_head(data: bytes) -> SeenHead | None:
    """Return the head with which `data` begins, or None if it is not one that could be kept."""
    end = data.find(b"\r\n\r\n", 0, MAX_KEPT_HEAD_BYTES)
    if end <= 0:
        return None
    length = _LENGTH.search(data, 0, end + 2)
    if length is None:
        return (data, None, end + 4) if end + 4 == len(data) else None
    begin, behind = length.span(1)
    return data[:begin] + data[behind : end + 2], int(data[begin:behind]), end + 4


class KnownHead(Generic[HeadT]):
    """A head that is kept."""

    __slots__ = ("_after", "_before", "_num_before", "head")

    def __init__(self, seen: bytes, head: HeadT) -> None:
        """`seen` is all of the head, as it came."""
        self.head = head
        length = _LENGTH.search(seen)
        begin, behind = (len(seen), len(seen)) if length is None else length.span(1)
        self._before, self._after, self._num_before = seen[:begin], seen[behind:], begin

    def find_again(self, data: bytes) -> tuple[int, int] | None:
        """Return the declared length of the body and where it begins, if `data` begins with this head, with any length; None if
        not, or if it has none."""
        begin = self._num_before
        behind = data.find(b"\r", begin, begin + _MAX_DIGITS + 1)
        if behind < 0:  # As the end of a slice, -1 may lie before its beginning, for which compiled code raises SystemError.
            return None
        digits = data[begin:behind]
        if digits.isdigit() and data.startswith(self._after, behind) and data.startswith(self._before) and self._after:
            return int(digits), behind + len(self._after)
        return None


class KnownHeads(Generic[HeadT]):
    """The heads that are kept, of requests or of responses. Serves any number of connections."""

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead[HeadT]] = {}
        self.get: Final[Callable[[bytes], KnownHead[HeadT] | None]] = self._heads.get
        """Return the head that was kept, with another length perhaps, or None if there is none."""

    def keep(self, key: bytes, seen: bytes, head: HeadT) -> None:
        """Keep `head`, which the parser has made of what was `seen`."""
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[key] = KnownHead(seen, head)
