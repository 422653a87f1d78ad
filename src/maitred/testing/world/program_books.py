"""Program books: which requests of agent programs have memory, kept once more from the log of decisions.

- a request asks for a slot only while its program has memory: one that waits for memory holds no slot
- what has begun in the programs ends there
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec


def check_programs(lines: Iterable[bytes], *, may_lack_lines: bool) -> Iterator[str]:
    """Yield what does not hold of the log of one life of a gateway, of which the last lines may be missing."""
    has_memory: dict[int, bool] = {}
    for line in lines:
        entry = msgspec.json.decode(line)
        if entry["room"] == "programs" and "raised" not in entry:
            _note(entry, has_memory)
        elif entry["room"] == "admission" and entry.get("input") == "submit" and not has_memory.get(entry["id"], True):
            yield f"{entry.get('client_id')} asks for a slot, and its program waits for memory"
    if not may_lack_lines:
        for number in has_memory:
            yield f"request {number} is left in its program"


def _note(entry: Any, has_memory: dict[int, bool]) -> None:
    """Note whether a request that has begun and not ended was granted memory."""
    given, decision = entry.get("input"), entry.get("decision")
    if given == "begin":
        has_memory[entry["request"]["id"]] = False
    elif given == "end":
        has_memory.pop(entry["id"], None)
    elif decision is not None and decision["request"] in has_memory:
        has_memory[decision["request"]] = decision["action"] == "grant"
