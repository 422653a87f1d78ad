"""How many requests a backend says it can run at once, from its `/server_info`.

SGLang's answer holds its server arguments side by side with what came of them: `max_running_requests` as it was asked for, or
null, and one internal state for each data-parallel rank, in which `effective_max_running_requests_per_dp` is what that rank
really runs. So the ranks' sum counts if they say it, and what was asked for otherwise. Other engines and routers say
`max_running_requests` at the top, or hand the arguments on as `server_args`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from maitred.admission.config import MAX_SLOTS

SERVER_INFO_PATHS: Final = ("/server_info", "/get_server_info")
"""The second is the older name."""


class ServerArguments(msgspec.Struct):
    """What is looked for, wherever it stands."""

    max_running_requests: Any = None
    effective_max_running_requests_per_dp: Any = None


class ServerInfo(ServerArguments):
    internal_states: list[ServerArguments] | None = None
    server_args: ServerArguments | None = None


_decode_server_info = msgspec.json.Decoder(ServerInfo).decode


def parse_reported_slots(body: bytes | bytearray) -> int | None:
    """Requests that may run at once; None: it does not say. Raises msgspec.DecodeError for what is no such answer."""
    info = _decode_server_info(body)
    states = info.internal_states or []
    ranks: list[int] = [state.effective_max_running_requests_per_dp for state in states]
    if ranks and all(map(_is_plausible, ranks)):
        return min(sum(ranks), MAX_SLOTS)
    for said in (info, info.server_args, *states):
        if said is not None and _is_plausible(said.max_running_requests):
            slots: int = said.max_running_requests
            return slots
    return None


def _is_plausible(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SLOTS
