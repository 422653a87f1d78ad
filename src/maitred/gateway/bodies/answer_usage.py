"""Read the usage of an answer while it passes through: how many tokens the backend has counted, and how far a stream has come.

Each API says it in another way. All of these are read, in whole answers and in the events of streams. What several events of
one stream say is put together (`usage_counts`, which also says which numbers are believed).

    /v1/chat/completions, /v1/completions   usage: prompt_tokens, total_tokens, prompt_tokens_details.cached_tokens
    /v1/responses                           usage, in streams response.usage: input_tokens, output_tokens, total_tokens
    /v1/messages                            usage, in streams message.usage: input_tokens (without what was cached), ...
                                            The prompt may stand in the first event only; the answer counts in the last one.
    /generate                               meta_info: prompt_tokens, completion_tokens, cached_tokens

A stream is cut into events at blank lines, whatever its line ends are. If the gateway has asked for the usage and the client
has not, the event with the usage and without choices is taken out. Only then is the beginning of an event held back until its
end has come; otherwise every piece passes at once, as the object that it came as.

The backend is asked for an answer that is not compressed. One in gzip is passed on decompressed all the same, each piece of it
up to `_MAX_PIECE_BYTES`; in any other encoding it passes unread, as it came.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from maitred.core.errors import JSON_ERRORS
from maitred.gateway.bodies.json_slices import SLICE_BYTES, JsonSlices
from maitred.gateway.bodies.usage_counts import NO_COUNTS, Fields, UsageCounts, merged, read_counts
from maitred.programs import PROGRESS_TOKENS, Usage
from maitred.wire.errors import ProtocolError
from maitred.wire.messages import Headers
from maitred.wire.sse import EVENT_END, event_data

_MAX_EVENT_BYTES: Final = 512 * 1024
"""Size of the beginning of an event that is kept until its end comes; the usage of a larger one is not read."""
_MAX_BLANK_BYTES: Final = 3
"""Most bytes of a blank line, with the line end before it, that can have come without the last one."""
_MAX_USAGE_BYTES: Final = 16 * 1024
"""Size of the largest usage that is read of a large answer."""
_MAX_PIECE_BYTES: Final = 32 * 1024 * 1024
"""Size of what one piece of an answer in gzip may become. It could be a thousand times as large as the piece."""
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_GZIP: Final = (b"gzip", b"x-gzip")
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16
"""The window bits that tell zlib to read gzip."""


class _Answer(msgspec.Struct, gc=False):
    """The members of an answer, or of an event, under which a usage may be; empty if absent."""

    usage: msgspec.Raw = msgspec.Raw()
    meta_info: msgspec.Raw = msgspec.Raw()
    message: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    choices: msgspec.Raw = msgspec.Raw()


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode
_NO_FIELDS: Final[Fields] = {}
_MESSAGE_START: Final = b'"message_start"'
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{(?>[^{}]+|\{(?>[^{}]+|\{[^{}]*\})*+\})*+\})')
"""A usage, which has objects in it at most two deep."""


class AnswerReader:
    """Reads one answer. `decode` and `take` every piece of its body, and pass on what that returns; then ask for `usage`."""

    def __init__(
        self, headers: Headers, *, is_stream: bool, hides_usage: bool, on_progress: Callable[[int], object] | None
    ) -> None:
        """`headers` are those of the answer. `on_progress` is called with tokens as a stream goes on; None: nothing is."""
        encoding = b",".join(value for name, value in headers if name == b"content-encoding").strip().lower()
        self._gzip = _GzipReader() if encoding in _GZIP else None
        self.is_opaque = encoding not in (b"", b"identity", *_GZIP)
        """Whether nothing can be read in the answer, because of how it is compressed."""
        self._is_stream = is_stream
        self._hides_usage = hides_usage and is_stream
        self._on_progress = on_progress
        self._kept: list[bytes] = []
        """What was read of a whole answer while that is small, or the beginning of an event of a stream."""
        self._kept_bytes = 0
        self._slices: JsonSlices | None = None
        """What reads a whole answer that is not small."""
        self._is_unreadable = False
        """Whether the answer has turned out not to be JSON."""
        self._num_events = 0
        self._counts = NO_COUNTS
        """What the usages say that have been read."""

    @property
    def changes_body(self) -> bool:
        """Whether what `take` returns may have another length than what it took, and no encoding."""
        return not self.is_opaque and (self._hides_usage or self._gzip is not None)

    @property
    def held_back(self) -> bytes:
        """What was taken of a stream and is not for the client yet: the beginning of an event."""
        return b"".join(self._kept) if self._hides_usage else b""

    @property
    def usage(self) -> Usage | None:
        """The usage, or None if the answer has none."""
        if self._slices is not None and not self._is_unreadable:
            self._take_slices(b"", more=False)
        elif not self._is_stream and self._kept:
            self._find_usage(b"".join(self._kept))
            self._kept.clear()
        return self._counts.usage()

    def decode(self, piece: bytes, *, more: bool) -> bytes:
        """Return a piece as it is without gzip. `more` is False for the last one. Raises ProtocolError if it is not encoded as
        the headers say."""
        return piece if self._gzip is None else self._gzip.read(piece, more=more)

    def take(self, piece: bytes, *, more: bool) -> bytes:
        """Read a decoded piece, and return what the client may receive now. `more` is False for the last one."""
        if self.is_opaque:
            return piece
        if self._is_stream:
            return self._take_events(piece, more=more)
        self._kept_bytes += len(piece)
        if self._kept_bytes <= SLICE_BYTES:
            self._kept.append(piece)
        elif not self._is_unreadable:
            self._take_slices(piece, more=True)
        return piece

    def _take_slices(self, piece: bytes, *, more: bool) -> None:
        """Read a piece of an answer that is not small: its bytes are not kept."""
        if self._slices is None:
            self._slices = JsonSlices(_Answer.__struct_fields__, max_kept_bytes=_MAX_USAGE_BYTES)
        pieces, self._kept = [*self._kept, piece], []
        try:
            for taken in pieces:
                for begin in range(0, len(taken), SLICE_BYTES):
                    self._slices.feed(taken[begin : begin + SLICE_BYTES])
            if not more:
                self._slices.close()
                self._note_usage(_Answer(**{name: msgspec.Raw(m.raw) for name, m in self._slices.members.items() if m.raw}))
        except JSON_ERRORS:
            self._is_unreadable = True

    def _take_events(self, piece: bytes, *, more: bool) -> bytes:
        # Most pieces are whole events of one line each, without a usage: all that they cost is to be counted.
        if not self._kept and (num_events := count_plain_events(piece)):
            self._count_events(num_events)
            return piece
        kept = self._kept.pop() if self._kept else b""
        stream = kept + piece
        shown: list[bytes] = []
        start = 0
        # What was kept has no end of an event but at its own end: looked through once, however many pieces an event has.
        for blank in EVENT_END.finditer(stream, max(0, len(kept) - _MAX_BLANK_BYTES)):
            if more and blank.end() == len(stream) and stream.endswith(b"\r"):
                break  # A line feed may follow that belongs to this blank line.
            is_shown = self._read_event(stream[start : blank.start()])
            if is_shown and self._hides_usage:
                shown.append(stream[start : blank.end()])
            start = blank.end()
        rest = stream[start:] if start else stream
        if not more and rest and not self._read_event(rest):
            rest = b""
        if more and rest and len(rest) <= _MAX_EVENT_BYTES:
            self._kept.append(rest)
            rest = b""
        return b"".join([*shown, rest]) if self._hides_usage else piece

    def _read_event(self, event: bytes) -> bool:
        """Count an event and read its usage. Return whether the client may see it."""
        data = event_data(event)
        if not data or data == _DONE:
            return True
        self._count_events(1)
        # Most events have no usage, and looking for the word costs much less than decoding each event.
        if b'"usage"' not in data and b'"meta_info"' not in data:
            return True
        return not self._find_usage(data) or not self._hides_usage

    def _count_events(self, num_events: int) -> None:
        if self._on_progress is None:
            return
        before, self._num_events = self._num_events, self._num_events + num_events
        for _ in range(before // PROGRESS_TOKENS, self._num_events // PROGRESS_TOKENS):
            self._on_progress(PROGRESS_TOKENS)

    def _find_usage(self, data: bytes) -> bool:
        """Keep the usage of an answer or event. Return whether it is all that the event has."""
        try:
            return self._note_usage(_decode_answer(data))
        except JSON_ERRORS:
            return False

    def _note_usage(self, answer: _Answer) -> bool:
        """Keep the usage that is in these members. Return whether it is all that they have."""
        fields = _object(answer.usage) or _object(answer.meta_info)
        if fields or not (begun := _nested(answer.message)):
            self._counts = merged(self._counts, read_counts(fields or _nested(answer.response)))
        else:
            self._counts = merged(self._counts, read_counts(begun, has_begun=True))
        return bool(_object(answer.usage)) and bytes(answer.choices).translate(None, b" \t\r\n") == b"[]"


class _GzipReader:
    """Decompresses a body in gzip, which may consist of several members."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._has_begun = False

    def read(self, piece: bytes, *, more: bool) -> bytes:
        """Return the bytes that can be read now. Raises ProtocolError for what is no gzip, ends in the middle of it, or becomes
        too large."""
        read, room = [], _MAX_PIECE_BYTES
        self._has_begun |= bool(piece)
        try:
            while piece:
                if self._member.eof:
                    self._member = zlib.decompressobj(_GZIP_WINDOW)
                read.append(self._member.decompress(piece, room + 1))
                room -= len(read[-1])
                if room < 0:
                    raise ProtocolError(f"the backend sent gzip of which one piece is larger than {_MAX_PIECE_BYTES} bytes")
                piece = self._member.unused_data
        except zlib.error as error:
            raise ProtocolError(f"the backend sent what is no gzip: {error}") from error
        if self._has_begun and not (more or self._member.eof):
            raise ProtocolError("the backend sent gzip that ends in the middle")
        return b"".join(read)


def count_plain_events(piece: bytes) -> int:
    """Return how many events a piece consists of, if all are whole, of one line, with data and without a usage; else 0."""
    num_events = piece.count(b"\n\n")
    # With two line feeds for each event, and `data:` behind each blank line but the last, nothing else has room. A loop over
    # the words would take as long as all the searches.
    is_plain = (
        piece.count(b"\n") == 2 * num_events
        and piece.count(b"\n\ndata:") == num_events - 1
        and piece.startswith(_DATA)
        and piece.endswith(b"\n\n")
        and not (b"\r" in piece or b'"usage"' in piece or b'"meta_info"' in piece or _DONE in piece)
        and not (b"data:\n" in piece or b"data: \n" in piece)
    )
    return num_events if is_plain else 0


def read_ends(first: bytes, last: bytes) -> UsageCounts:
    """Return the counts of all usages that stand whole in the first pieces of a stream, or in its last ones. What a model has
    written cannot be taken for one: its quotes are escaped."""
    counts = NO_COUNTS
    for pieces in (first, last):
        for found in _USAGE.finditer(pieces):
            has_begun = pieces.find(_MESSAGE_START, pieces.rfind(b"\n", 0, found.start()) + 1, found.start()) >= 0
            counts = merged(counts, read_counts(_object(msgspec.Raw(found[1])), has_begun=has_begun))
    return counts


def read_last(last: bytes) -> UsageCounts:
    """Return the counts of the usage with which `last`, the end of an answer that is no stream, begins."""
    found = _USAGE.match(last)
    return NO_COUNTS if found is None else read_counts(_object(msgspec.Raw(found[1])))


def _object(raw: msgspec.Raw) -> Fields:
    """Return a member that is an object; nothing if it is absent, or something else."""
    try:
        return _decode_fields(raw) if raw else _NO_FIELDS
    except JSON_ERRORS:
        return _NO_FIELDS


def _nested(raw: msgspec.Raw) -> Fields:
    """Return the usage below a member that is an object."""
    try:
        return _object(_decode_answer(raw).usage) if raw else _NO_FIELDS
    except JSON_ERRORS:
        return _NO_FIELDS
