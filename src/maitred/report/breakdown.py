"""Breakdown: groups of requests by class, tenant and so on, and the gaps between tokens (ITL) of each group.

The ITL of a group is as exact as the sketches that the instances keep of all requests. A request has one gap for every step of
the stretches through which it decoded (`instance.step_meter`). So the histogram of a group is the sum over all stretches, each
multiplied by the number of members that decoded in it. The histograms of all groups add up to that of the run.

    stretch                 0          1          2        (steps 10, 4, 6)
    request 7 decodes in    x          x
    request 9 decodes in               x          x
    both in one group       10 gaps    2·4 gaps   6 gaps
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.histogram import QuantileSketch, bucket_indices
from maitred.core.request import PriorityClass
from maitred.sim import Results
from maitred.sim.results import ItlGaps

UNNAMED = "–"
"""The label of requests without a tenant, model or SLO class."""
Ints: TypeAlias = NDArray[np.int64]
_FIRST_BUCKET = -1
"""The smallest number of a bucket."""


class By(StrEnum):
    """The property by which requests are grouped."""

    CLASS = "class"
    SLO_CLASS = "slo-class"
    TENANT = "tenant"
    MODEL = "model"
    INSTANCE = "instance"


def split_by(results: Results, by: By) -> Iterator[tuple[str, Results]]:
    """Yield the label and the requests of each group that has any.

    The most urgent class comes first, names come in the order of their first use, and instances by index. Requests that reached
    no instance are in no group of instances.
    """
    codes = group_codes(results, by)
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    for code, start, stop in zip(present.tolist(), starts, [*starts[1:], len(order)], strict=False):
        if by is not By.INSTANCE or code >= 0:
            yield group_label(results, by, code), select_rows(results, order[start:stop])


def select_rows(results: Results, rows: NDArray[Any]) -> Results:
    """Return only these rows, given as indices or as a mask."""
    columns = {name: getattr(results, name) for name in results.__struct_fields__}
    return msgspec.structs.replace(
        results, **{name: column[rows] for name, column in columns.items() if isinstance(column, np.ndarray)}
    )


def group_codes(results: Results, by: By) -> NDArray[Any]:
    """Return the number of its group for each request."""
    if by is By.CLASS:
        return -results.priority_class
    columns = {By.SLO_CLASS: results.slo_class, By.TENANT: results.tenant, By.MODEL: results.model}
    return columns.get(by, results.instance)


def group_label(results: Results, by: By, code: int) -> str:
    """Return the name of a group."""
    if by is By.CLASS:
        return PriorityClass(-code).label
    if by is By.INSTANCE:
        return str(code)
    names = {By.SLO_CLASS: results.slo_classes, By.TENANT: results.tenants, By.MODEL: results.models}
    return names[by][code] or UNNAMED


def itl_by_group(results: Results, codes: NDArray[np.integer]) -> dict[int, QuantileSketch]:
    """Return the sketch of the gaps of each group that has any, by its code. Empty if the gaps were not recorded."""
    gaps = results.itl_gaps
    if gaps is None or not len(results):
        return {}
    decoded, single = (
        _entries_by_group(ids, results.request_id, codes) for ids in (gaps.request_id, gaps.single_gap_request_id)
    )
    stretch_buckets = bucket_indices(gaps.spans / gaps.steps)
    no_entries = np.zeros(0, dtype=np.int64)
    return {
        code: _sketch(gaps, stretch_buckets, decoded.get(code, no_entries), single.get(code, no_entries))
        for code in sorted({*decoded, *single})
    }


def _entries_by_group(entry_ids: Ints, request_ids: Ints, codes: NDArray[np.integer]) -> dict[int, Ints]:
    """Return the indices of the entries of each group, given the request of each entry (`entry_ids`)."""
    order = np.argsort(request_ids, kind="stable")
    row = order[np.minimum(np.searchsorted(request_ids, entry_ids, sorter=order), len(order) - 1)]
    known = np.flatnonzero(request_ids[row] == entry_ids)
    group = codes[row[known]]
    order = np.argsort(group, kind="stable")
    present, starts = np.unique(group[order], return_index=True)
    return dict(zip(present.tolist(), np.split(known[order], starts[1:]), strict=False))


def _sketch(gaps: ItlGaps, stretch_buckets: Ints, decoded: Ints, single: Ints) -> QuantileSketch:
    """Return the sketch of these decoding periods and single gaps, given the bucket of each stretch."""
    sketch = QuantileSketch()
    sketch.add_all(gaps.single_gaps[single])
    if len(decoded):
        stretches, members = _covered_stretches(gaps.first_stretch[decoded], gaps.end_stretch[decoded])
        steps, spans = gaps.steps[stretches], gaps.spans[stretches]
        times = np.bincount(stretch_buckets[stretches] - _FIRST_BUCKET, steps * members).astype(np.int64)
        present = np.flatnonzero(times)
        counts = dict(zip((present + _FIRST_BUCKET).tolist(), times[present].tolist(), strict=True))
        least, greatest = int((spans // steps).min()), int((-(-spans // steps)).max())
        sketch.add_buckets(counts, int((spans * members).sum()), least, greatest)
    return sketch


def _covered_stretches(since: Ints, until: Ints) -> tuple[Ints, Ints]:
    """Return the stretches in which any of these periods lies, and how many periods each of them has."""
    ends, position = np.unique(np.concatenate([since, until]), return_inverse=True)
    began, stopped = (np.bincount(positions, minlength=len(ends)) for positions in np.split(position, 2))
    # Between two consecutive ends, the number of open periods is constant. So the cost depends on the periods of the group, and
    # on the stretches that they cover together, but not on the product of both.
    members = np.cumsum(began - stopped)[:-1]
    covered = members > 0
    first, length, members = ends[:-1][covered], np.diff(ends)[covered], members[covered]
    # The ranges first[i]:first[i]+length[i], one after the other, without a loop in Python.
    offset = np.repeat(first - np.cumsum(length) + length, length)
    return offset + np.arange(len(offset)), np.repeat(members, length)
