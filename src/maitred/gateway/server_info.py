"""How many requests a backend says it can run at once, from its `/server_info`.

SGLang's answer holds its server arguments side by side with what came of them: `max_running_requests` as it was asked for, or
null, and one internal state for each data-parallel rank, in which `effective_max_running_requests_per_dp` is what that rank
really runs. So the ranks' sum counts if they say it, and what was asked for otherwise. Other engines and routers say
`max_running_requests` at the top, or hand the arguments on as `server_args`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from maitred.admission.config import MOST_SLOTS

PATHS: Final = ("/server_info", "/get_server_info")
"""The second is the older name."""


class Said(msgspec.Struct):
    """What is looked for, wherever it stands."""

    max_running_requests: Any = None
    effective_max_running_requests_per_dp: Any = None


class ServerInfo(Said):
    internal_states: list[Said] | None = None
    server_args: Said | None = None


_decode = msgspec.json.Decoder(ServerInfo).decode


def slots_reported(body: bytes | bytearray) -> int | None:
    """Requests that may run at once; None: it does not say. Raises msgspec.DecodeError for what is no such answer."""
    info = _decode(body)
    states = info.internal_states or []
    ranks: list[int] = [state.effective_max_running_requests_per_dp for state in states]
    if ranks and all(map(_sensible, ranks)):
        return min(sum(ranks), MOST_SLOTS)
    for said in (info, info.server_args, *states):
        if said is not None and _sensible(said.max_running_requests):
            slots: int = said.max_running_requests
            return slots
    return None


def _sensible(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST_SLOTS
