"""The gaps between tokens (ITL) of each group of requests, as exactly as the instances' sketches have those of all.

A request has one gap for every step of the stretches through which it decoded (`instance.gap_log`). So the histogram of a group
is that of the stretches, each as often as members of it decoded there, and those of all groups add up to that of the run.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from maitred.sim import Results
from maitred.sim.gaps import Gaps
from maitred.sketch import Sketch, buckets

Ints: TypeAlias = NDArray[np.int64]
_FIRST = -1
"""The least number of a bucket."""


def itl_by_group(results: Results, codes: NDArray[np.integer]) -> dict[int, Sketch]:
    """By code of a group, as far as they have gaps; `codes`: of each request. Nothing, if nobody kept whose the gaps were."""
    gaps = results.gaps
    if gaps is None or not len(results):
        return {}
    decoded, paused = (_by_group(ids, results.request_id, codes) for ids in (gaps.request_id, gaps.paused))
    numbers = buckets(gaps.spans / gaps.steps)
    none = np.zeros(0, dtype=np.int64)
    return {
        code: _sketch(gaps, numbers, decoded.get(code, none), paused.get(code, none)) for code in sorted({*decoded, *paused})
    }


def _by_group(of: Ints, request_ids: Ints, codes: NDArray[np.integer]) -> dict[int, Ints]:
    """Which entries are of requests of which group; `of`: whose each is."""
    order = np.argsort(request_ids, kind="stable")
    row = order[np.minimum(np.searchsorted(request_ids, of, sorter=order), len(order) - 1)]
    known = np.flatnonzero(request_ids[row] == of)
    group = codes[row[known]]
    order = np.argsort(group, kind="stable")
    present, starts = np.unique(group[order], return_index=True)
    return dict(zip(present.tolist(), np.split(known[order], starts[1:]), strict=False))


def _sketch(gaps: Gaps, numbers: Ints, decoded: Ints, paused: Ints) -> Sketch:
    """Of these entries; `numbers`: the bucket of each stretch."""
    sketch = Sketch()
    sketch.add_all(gaps.pauses[paused])
    if len(decoded):
        stretches, members = _covered(gaps.since[decoded], gaps.until[decoded])
        steps, spans = gaps.steps[stretches], gaps.spans[stretches]
        times = np.bincount(numbers[stretches] - _FIRST, steps * members).astype(np.int64)
        present = np.flatnonzero(times)
        counts = dict(zip((present + _FIRST).tolist(), times[present].tolist(), strict=True))
        least, greatest = int((spans // steps).min()), int((-(-spans // steps)).max())
        sketch.add_run(counts, int((spans * members).sum()), least, greatest)
    return sketch


def _covered(since: Ints, until: Ints) -> tuple[Ints, Ints]:
    """The stretches in which any of these decoded, and how many of them did."""
    ends, place = np.unique(np.concatenate([since, until]), return_inverse=True)
    began, stopped = (np.bincount(places, minlength=len(ends)) for places in np.split(place, 2))
    members = np.cumsum(began - stopped)[:-1]
    anybody = members > 0
    first, length, members = ends[:-1][anybody], np.diff(ends)[anybody], members[anybody]
    offset = np.repeat(first - np.cumsum(length) + length, length)
    return offset + np.arange(len(offset)), np.repeat(members, length)
