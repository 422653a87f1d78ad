"""Answer: what one response says of its tokens, and when. It has no clock and no sockets.

A piece of a stream counts as a token if an event in it has text. The first and the last event of a chat have none (a role, a
reason), and neither have those with the usage. The first text shows how the endpoint writes it (`"content":"`), and after that
counting is one search per piece. The number of tokens is that of the endpoint's `usage` at the end; without one, that of the
events with text.

Tokens that come together have one instant, so that the gaps between them are 0, as in vLLM's own benchmark.

Example: at 5 ms a role, at 20 ms `{"delta":{"content":"the"}}`, at 31 ms two more such events in one piece. Tokens came at 20,
31 and 31 ms.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final

from maitred.core.units import Micros

_FIRST_TEXT: Final = re.compile(rb'("(?:content|text|reasoning_content|reasoning)"\s*:\s*")[^"]')
_TEXTS: Final = re.compile(rb'"(?:content|text)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,9})\b')
_OUTPUT: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,9})\b')
_CACHED: Final = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,9})\b')
_USAGE: Final = b'"usage"'
_ERROR: Final = re.compile(rb'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')
_DONE: Final = b"data: [DONE]"
_KEPT_PIECES: Final = 16
"""Pieces at the end in which the usage is looked for, or what an error says."""
_ODD_PIECES: Final = 4
"""Pieces at the end of many that are counted one by one: those with a reason, the usage and the end have no text."""
_LINE_END: Final = {*b"\n"}
_HALF_EVENT: Final = 64
"""Bytes of a piece that are kept while it is not known how the endpoint writes a text."""
_MAX_ERROR_BYTES: Final = 4_096


_NO_USAGE: Final = (None, None, None)


def _usage_in(text: bytes) -> tuple[int | None, int | None, int | None]:
    """Return the prompt, output and cached tokens that stand last in `text`."""
    found = [pattern.findall(text) for pattern in (_PROMPT, _OUTPUT, _CACHED)]
    prompt, output, cached = (int(each[-1]) if each else None for each in found)
    return prompt, output, cached


class Answer:
    """The response to one request. Instants are µs since the start of the run."""

    __slots__ = (
        "_before",
        "_empty",
        "_is_stream",
        "_last_pieces",
        "_mark",
        "_pieces",
        "instants",
        "on_first",
    )

    def __init__(self, *, is_stream: bool, keeps_text: bool = False) -> None:
        """`keeps_text` keeps the whole body, for `text`."""
        self.instants = array("q")
        """When each token came, in µs: one for each event with text."""
        self.on_first: Callable[[], object] | None = None
        """Called when the first token has come, if it is set."""
        self._is_stream = is_stream
        self._mark = self._empty = b""
        """How the endpoint begins a text, and how it writes an empty one."""
        self._before = b""
        """The end of the piece before, in which a mark may have begun."""
        self._last_pieces: deque[bytes] = deque(maxlen=_KEPT_PIECES)
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
        # Nearly always each of them but the last few is one whole event with a text or several, and they are counted at once.
        calm = 0 if self._before or not self.instants else max(0, len(pieces) - _ODD_PIECES)
        counts = self._counts(pieces[:calm]) if calm else None
        if counts is None:
            calm = 0
        elif counts.count(1) == calm:
            self.instants.extend(instants[:calm])
        else:
            self.instants.extend([now for now, count in zip(instants, counts, strict=False) for _ in range(count)])
        for piece, now in zip(pieces[calm:], instants[calm:], strict=True):
            self._count_tokens(piece, now)
        self._last_pieces.extend(pieces[-_KEPT_PIECES:])
        if self._pieces is not None:
            self._pieces.extend(pieces)

    def _counts(self, pieces: Sequence[bytes]) -> list[int] | None:
        """Return how many texts begin in each piece, or None if more is to be known of them: a piece has none, or
        one that is written otherwise; a text is empty; or a piece ends within an event, where a text may begin."""
        counts = list(map(bytes.count, pieces, repeat(self._mark)))
        if 0 in counts or {piece[-1] for piece in pieces} != _LINE_END or b"".join(pieces).rfind(self._empty) >= 0:
            return None
        return counts

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
            if not self.instants and self.on_first is not None:
                self.on_first()
            self.instants.extend([now] * count)

    def on_whole(self, now: Micros) -> None:
        """Note the end of a response that does not stream: all of its tokens came with it."""
        if not self._is_stream:
            self.instants.append(now)

    @property
    def first(self) -> Micros:
        """When the first token came, or -1."""
        return self.instants[0] if self.instants else -1

    @property
    def num_events(self) -> int:
        """Events with text."""
        return len(self.instants) if self._is_stream else 0

    @property
    def is_whole(self) -> bool:
        """Whether a stream has said that it is complete, or has given its usage."""
        end = self._end()
        return not self._is_stream or end.rfind(_DONE) >= 0 or bool(_OUTPUT.search(end))

    def usage(self) -> tuple[int | None, int | None, int | None]:
        """Return the prompt tokens, output tokens and cached tokens that the endpoint reports; None for what it does not."""
        end = self._end()
        found = _usage_in(end[max(0, end.rfind(_USAGE)) :])
        return _usage_in(end) if found == _NO_USAGE else found

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
