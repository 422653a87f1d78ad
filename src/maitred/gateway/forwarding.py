"""The class, passed on to the engine's own queue.

vLLM and SGLang both take an integer `priority` in the body, and disagree about its sign. `default` is 0, which is what engines
take a request without the field for. The body's own `priority` is replaced: the queue of the engine is ordered by whoever
runs the gateway, and no client can jump it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from maitred.gateway.config import ForwardPriority
from maitred.request import PriorityClass

_FIRST: Final[Mapping[ForwardPriority, int]] = {"vllm": -1, "sglang": +1}
"""The sign of what is served first."""
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


def engine_priority(c: PriorityClass, engine: ForwardPriority) -> int:
    """How `engine` calls the class `c`. Raises KeyError for `off`."""
    return _FIRST[engine] * (c - PriorityClass.DEFAULT)


def with_priority(body: bytes, priority: int) -> bytes:
    """A JSON object with this `priority`, everything else as it was."""
    members: dict[str, object] = dict(_members(body))
    members["priority"] = priority
    return _encode(members)
