"""PickedAnswer: the body of an answer that Envoy passes on, where admission or a program must know what it came to.

Envoy sends the body of an answer to the picker if the picker asks for it (`mode_override`), piece by piece, and passes each
piece on when the picker has taken it. That is a message for each event of a stream, so the picker asks only where limits or
weights count tokens, requests are recorded, or the request belongs to a program or to a sampled trace.
"""

from __future__ import annotations

from functools import partial

from maitred.gateway.bodies.answer_usage import AnswerReader
from maitred.gateway.envoy.ext_proc_stream import ResponseHeaders
from maitred.gateway.forwarding.proxy_request import ProxyRequest
from maitred.scheduler.interface import RealTimePrograms
from maitred.wire.errors import ProtocolError

_ENCODING = b"content-encoding"
_PLAIN = (b"", b"identity")


class PickedAnswer:
    """One answer that is read while it passes."""

    def __init__(self, head: ResponseHeaders, proxied: ProxyRequest, programs: RealTimePrograms | None) -> None:
        self._record, self._lease = proxied.record, proxied.memory_lease
        self._observe = self._record.on_stream_piece if self._record.is_stream else self._record.on_body_piece
        self._has_begun = False
        self.is_whole = False
        """Whether its end has come."""
        self._reader: AnswerReader | None = None
        encoding = head.headers.get(_ENCODING, b"")
        if self._lease is not None and programs is not None:
            self._reader = AnswerReader(
                [(_ENCODING, encoding)],
                is_stream=self._record.is_stream,
                hides_usage=False,
                on_progress=partial(programs.add_progress, self._lease),
            )
        self._record.is_unreadable = encoding not in _PLAIN and (self._reader is None or self._reader.is_opaque)

    @property
    def is_readable(self) -> bool:
        """Whether anything is to be read in it."""
        return not self._record.is_unreadable

    def take(self, piece: bytes, is_last: bool) -> None:
        """Read a piece."""
        self.is_whole |= is_last
        if self._record.is_unreadable:
            return
        if self._reader is not None:
            try:
                piece = self._reader.take(self._reader.decode(piece, more=not is_last), more=not is_last)
            except ProtocolError:
                self._record.is_unreadable = True
                return
        if self._has_begun:
            self._observe(piece)
        elif piece:
            self._has_begun = True
            self._record.on_first_data(piece)
            self._begin()

    def end(self) -> None:
        """Note what the answer came to, when nothing of it comes any more."""
        if not self._has_begun:
            self._begin()
        if self._reader is not None and self._lease is not None:
            self._record.reported = self._lease.usage = self._reader.usage

    def _begin(self) -> None:
        self._record.on_first_data_sent()
        if self._lease is not None:
            self._lease.first_data_at = self._record.first_data_at
