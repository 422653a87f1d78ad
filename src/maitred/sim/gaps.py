"""Whose the gaps between tokens were (ITL): the logs of all instances as columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate, repeat
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.instance.gap_log import GapLog
from maitred.units import Micros

_Ints: TypeAlias = NDArray[np.int64]


class Gaps(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """See `instance.gap_log`. Stretches of all instances, one instance after the other; all gaps as clients see them."""

    steps: _Ints
    """By stretch: how many steps it had, ..."""
    spans: _Ints
    """... and the gaps of one sequence in it together, µs."""
    request_id: _Ints
    """By time of decoding: whose it was; one that was preempted has several, ..."""
    since: _Ints
    """... its first stretch, ..."""
    until: _Ints
    """... and that after its last one."""
    paused: _Ints
    """By pause between two tokens: whose it was, ..."""
    pauses: _Ints
    """... and how far apart these were, µs."""


def gaps_of(logs: Iterable[GapLog], overhead: Micros) -> Gaps:
    """At the end of a run; every token takes `overhead` to the client, which is part of each gap."""
    logs = list(logs)
    for log in logs:
        log.close()
    first = list(accumulate((len(log.steps) for log in logs), initial=0))
    steps, ids = _joined(log.steps for log in logs), _joined(log.request_ids for log in logs)
    since = _joined((log.since for log in logs), first)
    until = _joined((log.until for log in logs), first)
    decoded = since < until
    return Gaps(
        steps=steps,
        spans=_joined(log.spans for log in logs) + steps * overhead,
        request_id=ids[decoded],
        since=since[decoded],
        until=until[decoded],
        paused=_joined(log.paused for log in logs),
        pauses=_joined(log.pauses for log in logs) + overhead,
    )


def _joined(parts: Iterable[array[int]], more: Iterable[int] = repeat(0)) -> _Ints:
    """One after the other, `more` added to each."""
    return np.concatenate([np.array(part, dtype=np.int64) + add for part, add in zip(parts, more, strict=False)])
