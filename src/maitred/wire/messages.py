"""What a framing core takes and returns: states, events, and what is wrong with them.

Structs and exceptions are here and not in `framing`, which is compiled: mypyc can compile neither.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote

import msgspec

from maitred.core.errors import MaitredError

Headers: TypeAlias = list[tuple[bytes, bytes]]
"""In the order of the wire; names in lower case."""


class State(IntEnum):
    """The state of one end of a connection, by which it may send something or not."""

    IDLE = auto()
    SEND_RESPONSE = auto()
    SEND_BODY = auto()
    DONE = auto()
    MUST_CLOSE = auto()
    CLOSED = auto()
    ERROR = auto()


class MessageKind(IntEnum):
    """The kinds of things that an end sends."""

    REQUEST = auto()
    RESPONSE = auto()
    END = auto()
    CLOSE = auto()


class EndOfMessage(Enum):
    """The event at the end of a message."""

    END = auto()


END: Final = EndOfMessage.END


class HeadMemo:
    """A place for what follows from a head, whatever the length of the body. It must follow from nothing else."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: object = None


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
    path: str
    """That of the target, decoded."""
    query: bytes
    """That of the target as it came, without `?`; empty if there is none."""
    memo: HeadMemo | None = None
    """What a handler has worked out from this head, for the next request that has the same (`known_heads`); or None if the head
    is not kept."""

    def with_length(self, length: int) -> RequestHead:
        """Return the head of another request, which differs in the length of its body alone."""
        headers = replace_length(self.headers, length)
        expects, keep_alive = self.expects_continue, self.keep_alive
        return RequestHead(
            *(self.method, self.target, headers, self.is_http_11, expects, length, keep_alive, self.path, self.query, self.memo)
        )


def replace_length(headers: Headers, length: int) -> Headers:
    """Return headers that declare another length."""
    return [(name, b"%d" % length if name == b"content-length" else value) for name, value in headers]


def split_target(target: bytes) -> tuple[str, bytes]:
    """Return the path of a target, decoded, and its query as it came."""
    path, _, query = target.partition(b"?")
    return (unquote(path.decode("latin-1")) if b"%" in path else path.decode("latin-1")), query


class ResponseHead(msgspec.Struct, gc=False):
    """The head of a final response."""

    status: int
    headers: Headers
    length: int | None = None
    """The declared length of the body, or None."""
    keep_alive: bool = False
    """Whether the connection may be used again; of a head that is kept (`known_heads`)."""
    memo: HeadMemo | None = None
    """What was worked out from this head for the next response that has the same; or None if the head is not kept."""

    def with_length(self, length: int) -> ResponseHead:
        """Return the head of another response, which differs in the length of its body alone."""
        return ResponseHead(self.status, replace_length(self.headers, length), length, self.keep_alive, self.memo)


class FramingError(MaitredError):
    """The peer has broken the rules, and what it sends can be trusted no more. Its connection must be closed."""

    def __init__(self, message: str, status: int = 400) -> None:
        """`status` is for the answer to a request."""
        self.status = status
        super().__init__(message)


class FramingMisuse(RuntimeError):  # noqa: N818  (a defect of the caller)
    """The own end was told to send what its state does not allow."""


Event: TypeAlias = RequestHead | ResponseHead | bytes | Literal[EndOfMessage.END] | FramingError
