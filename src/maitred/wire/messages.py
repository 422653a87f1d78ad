"""What a framing core takes and returns: states, events, and what is wrong with them.

Structs and exceptions are here and not in `framing`, which is compiled: mypyc can compile neither.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import Final, Literal, TypeAlias

import msgspec

from maitred.core.errors import MaitredError

Headers: TypeAlias = list[tuple[bytes, bytes]]
"""In the order of the wire; names in lower case."""


class State(IntEnum):
    """What one end of a connection may do."""

    IDLE = auto()
    SEND_RESPONSE = auto()
    SEND_BODY = auto()
    DONE = auto()
    MUST_CLOSE = auto()
    CLOSED = auto()
    ERROR = auto()


class Kind(IntEnum):
    """What an end sends."""

    REQUEST = auto()
    RESPONSE = auto()
    END = auto()
    CLOSE = auto()


class EndOfMessage(Enum):
    """The event at the end of a message."""

    END = auto()


END: Final = EndOfMessage.END


class RequestHead(msgspec.Struct, gc=False):
    """The head of a request."""

    method: str
    target: bytes
    """In origin-form (`/path?query`), or `*`."""
    headers: Headers
    is_http_11: bool
    """Whether the client may be sent chunks and interim responses; otherwise it speaks HTTP/1.0."""
    expects_continue: bool
    """Whether the client waits for `100 Continue` before it sends the body."""
    length: int | None
    """The declared length of the body, or None."""
    keep_alive: bool
    """Whether the client leaves the connection open for another request."""


class ResponseHead(msgspec.Struct, gc=False):
    """The head of a final response."""

    status: int
    headers: Headers


class FramingError(MaitredError):
    """The peer has broken the rules, and what it sends can be trusted no more. Its connection must be closed."""

    def __init__(self, message: str, status: int = 400) -> None:
        """`status` is for the answer to a request."""
        self.status = status
        super().__init__(message)


class FramingMisuse(RuntimeError):  # noqa: N818  (a defect of the caller)
    """The own end was told to send what its state does not allow."""


Event: TypeAlias = RequestHead | ResponseHead | bytes | Literal[EndOfMessage.END] | FramingError
