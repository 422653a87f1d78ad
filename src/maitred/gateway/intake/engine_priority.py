"""The class of a request as an integer `priority` in the forwarded body, for the engine's own queue.

vLLM and SGLang disagree about the sign of `priority`. `default` is 0, the priority of a request without the field. A `priority`
from the client is replaced, so that no client can jump the queue of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from maitred.core.request import PriorityClass
from maitred.gateway.bodies.body_members import change_members
from maitred.gateway.bodies.large_body import LargeBody
from maitred.gateway.bodies.request_fields import invalid_body
from maitred.gateway.config import ForwardPriority

_PRIORITY_SIGN: Final[Mapping[ForwardPriority, int]] = {"vllm": -1, "sglang": +1}
"""The sign of the priority that each engine serves first."""


class _PriorityField(msgspec.Struct, gc=False):
    priority: msgspec.Raw = msgspec.Raw()


_decode_priority = msgspec.json.Decoder(_PriorityField).decode


def engine_priority(c: PriorityClass, engine: ForwardPriority) -> int:
    """Return the priority of class `c` at `engine`. Raises KeyError for `off`."""
    return _PRIORITY_SIGN[engine] * (c - PriorityClass.DEFAULT)


def set_body_priority(body: bytes, priority: int, large: LargeBody | None = None) -> bytes:
    """Return the JSON object `body` with this `priority`, and everything else unchanged. A `large` one has been read. Raises
    ApiError 400 for a name of a member that is not UTF-8."""
    old = (_decode_priority(body) if large is None else large.fill(_PriorityField)).priority
    try:
        return change_members(body, {"priority": priority}, {"priority": old}, large)
    except UnicodeDecodeError as error:
        raise invalid_body(error, body) from error


PRIORITY_NAME: Final = "priority"
"""The member of a body that is read and written here."""
