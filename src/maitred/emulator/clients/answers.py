"""Answer: what one response says of its tokens, and when. It has no clock and no sockets.

A piece of a stream counts as a token if an event in it has text. The first and the last event of a chat have none (a role, a
reason), and neither have those with the usage. The first text shows how the endpoint writes it (`"content":"`), and after that
counting is one search per piece. The number of tokens is that of the endpoint's `usage` at the end; without one, that of the
events with text.

Gaps between tokens are those between events. Events that come together have gaps of 0 between them, as in vLLM's own benchmark.

Example: at 5 ms a role, at 20 ms `{"delta":{"content":"the"}}`, at 31 ms two more such events in one piece. The first token
came at 20 ms, the last at 31 ms, and the gaps are 11 and 0 ms.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from operator import sub
from typing import Final

from maitred.core.units import Micros

_FIRST_TEXT: Final = re.compile(rb'("(?:content|text|reasoning_content|reasoning)"\s*:\s*")[^"]')
_TEXTS: Final = re.compile(rb'"(?:content|text)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,9})\b')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})\b')
_CACHED: Final = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,9})\b')
_ERROR: Final = re.compile(rb'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')
_DONE: Final = b"data: [DONE]"
_END_PIECES: Final = 4
"""Pieces at the end of a stream in which the usage is looked for."""
_HALF_EVENT: Final = 64
"""Bytes of a piece that are kept while it is not known how the endpoint writes a text."""
_MAX_ERROR_BYTES: Final = 4_096


class Answer:
    """The response to one request. Instants are µs since the start of the run."""

    __slots__ = (
        "_before",
        "_empty",
        "_is_stream",
        "_last_pieces",
        "_mark",
        "_pieces",
        "first",
        "gaps",
        "last",
        "num_events",
        "on_first",
    )

    def __init__(self, *, is_stream: bool, keeps_text: bool = False) -> None:
        """`keeps_text` keeps the whole body, for `text`."""
        self.first: Micros = -1
        """When the first token came."""
        self.last: Micros = -1
        """When the last one came."""
        self.gaps = array("q")
        """The times between tokens, in µs."""
        self.num_events = 0
        """Events with text."""
        self.on_first: Callable[[], object] | None = None
        """Called when the first token has come, if it is set."""
        self._is_stream = is_stream
        self._mark = self._empty = b""
        """How the endpoint begins a text, and how it writes an empty one."""
        self._before = b""
        """The end of the piece before, in which a mark may have begun."""
        self._last_pieces: deque[bytes] = deque(maxlen=_END_PIECES)
        self._pieces: list[bytes] | None = [] if keeps_text or not is_stream else None

    def on_piece(self, piece: bytes, now: Micros) -> None:
        """Take a piece of the body; chunk framing in it does no harm."""
        self._last_pieces.append(piece)
        if self._pieces is not None:
            self._pieces.append(piece)
        if self._is_stream:
            self._count_tokens(piece, now)

    def on_pieces(self, pieces: Sequence[bytes], instants: Sequence[Micros]) -> None:
        """Take pieces of a stream that came one after another, each at its instant."""
        # Nearly always each of them but the last few is one whole event with a text, and they can be counted at once.
        calm = 0 if self._before or self.first < 0 else max(0, len(pieces) - _END_PIECES)
        if calm and self._are_tokens(pieces[:calm]):
            self.gaps.extend(map(sub, instants[:calm], (self.last, *instants[: calm - 1])))
            self.num_events += calm
            self.last = instants[calm - 1]
        else:
            calm = 0
        for piece, now in zip(pieces[calm:], instants[calm:], strict=True):
            self._count_tokens(piece, now)
        self._last_pieces.extend(pieces[-_END_PIECES:])
        if self._pieces is not None:
            self._pieces.extend(pieces)

    def _are_tokens(self, pieces: Sequence[bytes]) -> bool:
        """Return whether each piece has one text. No event may be half in one piece and half in the next."""
        mark, whole, number = self._mark, b"".join(pieces), len(pieces)
        counts = [piece.count(mark) for piece in pieces]
        return counts.count(1) == number == whole.count(mark) and self._empty not in whole and pieces[-1].endswith(b"\n")

    def _count_tokens(self, piece: bytes, now: Micros) -> None:
        if self._before:
            piece = self._before + piece
        mark = self._mark
        count = piece.count(mark) - piece.count(self._empty) if mark else 0
        if not count:
            found = _FIRST_TEXT.search(piece)
            if found is not None:  # The first text; or a model that has thought, and now speaks.
                mark = self._mark = found[1]
                self._empty = mark + b'"'
                count = piece.count(mark) - piece.count(self._empty)
        if piece.endswith(b"\n"):
            self._before = b""
        else:
            # Half an event is looked at again with the next piece; a whole mark must not count twice.
            self._before = piece[1 - len(mark) :] if mark else piece[-_HALF_EVENT:]
        if count:
            self._add_tokens(count, now)

    def _add_tokens(self, count: int, now: Micros) -> None:
        if self.first < 0:
            self.first = now
            if self.on_first is not None:
                self.on_first()
            self.num_events = 1
            count -= 1
        elif count:
            self.gaps.append(now - self.last)
            self.num_events += 1
            count -= 1
        self.last = now
        if count:
            self.num_events += count
            self.gaps.extend([0] * count)

    def on_whole(self, now: Micros) -> None:
        """Note the end of a response that does not stream: all of its tokens came with it."""
        if not self._is_stream:
            self.first = self.last = now

    @property
    def is_whole(self) -> bool:
        """Whether a stream has said that it is complete, or has given its usage."""
        end = self._end()
        return not self._is_stream or _DONE in end or bool(_OUTPUT.search(end))

    def usage(self) -> tuple[int | None, int | None, int | None]:
        """Return the prompt tokens, output tokens and cached tokens that the endpoint reports; None for what it does not."""
        end = self._end()
        found = [pattern.findall(end) for pattern in (_PROMPT, _OUTPUT, _CACHED)]
        prompt, output, cached = (int(each[-1]) if each else None for each in found)
        return prompt, output, cached

    @property
    def text(self) -> bytes | None:
        """The whole text as JSON without its quotes, or None if it was not kept."""
        return None if self._pieces is None else b"".join(_TEXTS.findall(b"".join(self._pieces)))

    @property
    def error_message(self) -> str:
        """What the body of an error says, in one line."""
        body = self._end()[:_MAX_ERROR_BYTES]
        found = _ERROR.search(body)
        return (found[1] if found else body[:200]).decode("utf-8", "replace")

    def _end(self) -> bytes:
        return b"".join(self._last_pieces)
