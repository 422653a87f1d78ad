"""Breakdowns: the requests of a run, class by class, tenant by tenant, and so on."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.request import PriorityClass
from maitred.sim import Results

NAMELESS = "–"
"""Requests that name no tenant, model or SLO class."""


class By(StrEnum):
    """What requests have in common."""

    CLASS = "class"
    SLO_CLASS = "slo-class"
    TENANT = "tenant"
    MODEL = "model"
    INSTANCE = "instance"


def groups(results: Results, by: By) -> Iterator[tuple[str, Results]]:
    """Each group that has a request, by its label: the most urgent class first, names in the order in which they first came,
    instances by number. Requests that came to no instance are in none of these."""
    codes = codes_of(results, by)
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    for code, start, stop in zip(present.tolist(), starts, [*starts[1:], len(order)], strict=False):
        if by is not By.INSTANCE or code >= 0:
            yield label_of(results, by, code), subset(results, order[start:stop])


def subset(results: Results, rows: NDArray[Any]) -> Results:
    """Only these rows (numbers, or a mask)."""
    columns = {name: getattr(results, name) for name in results.__struct_fields__}
    return msgspec.structs.replace(
        results, **{name: column[rows] for name, column in columns.items() if isinstance(column, np.ndarray)}
    )


def codes_of(results: Results, by: By) -> NDArray[Any]:
    """Of each request, the number of its group."""
    if by is By.CLASS:
        return -results.priority_class
    columns = {By.SLO_CLASS: results.slo_class, By.TENANT: results.tenant, By.MODEL: results.model}
    return columns.get(by, results.instance)


def label_of(results: Results, by: By, code: int) -> str:
    """The name of a group."""
    if by is By.CLASS:
        return PriorityClass(-code).label
    if by is By.INSTANCE:
        return str(code)
    names = {By.SLO_CLASS: results.slo_classes, By.TENANT: results.tenants, By.MODEL: results.models}
    return names[by][code] or NAMELESS
