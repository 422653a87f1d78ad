"""SLO classes: how urgent a request is in the words of BLIS and GAIE (llm-d), and the priority class of each.

| SLO class | priority | priority class | |
|---|---|---|---|
| critical | 4 | interactive | |
| standard | 3 | default | also any unknown name |
| batch | -1 | bulk | sheddable, as are all below 0 |
| sheddable | -2 | bulk | |
| background | -3 | bulk | |

A larger priority is more urgent. `realtime` and `interactive`, the names of BLIS's first workload format, mean critical and
standard. A request without an SLO class has that of its priority class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from maitred.core.request import PriorityClass, Request

SLO_PRIORITIES: Final[Mapping[str, int]] = {"critical": 4, "standard": 3, "batch": -1, "sheddable": -2, "background": -3}
"""Most urgent first."""
MAX_SLO_PRIORITY: Final = 100
"""Overrides lie from -100 to 100."""
STANDARD: Final = "standard"

FORMER_SLO_NAMES: Final[Mapping[str, str]] = {"realtime": "critical", "interactive": STANDARD}
"""Today's names of the classes of BLIS's first workload format."""
_SLO_CLASS_OF: Final = {
    PriorityClass.SYSTEM: "critical",
    PriorityClass.INTERACTIVE: "critical",
    PriorityClass.DEFAULT: STANDARD,
    PriorityClass.BULK: "batch",
}
_DEFAULT_PRIORITIES: Final = [SLO_PRIORITIES[_SLO_CLASS_OF[c]] for c in PriorityClass]
_PRIORITY_CLASS_OF: Final = {
    "critical": PriorityClass.INTERACTIVE,
    STANDARD: PriorityClass.DEFAULT,
    "batch": PriorityClass.BULK,
    "sheddable": PriorityClass.BULK,
    "background": PriorityClass.BULK,
}


def slo_class_of(request: Request) -> str:
    """Return the SLO class that the request names, by today's name; else that of its priority class."""
    named = request.slo_class
    return FORMER_SLO_NAMES.get(named, named) if named else _SLO_CLASS_OF[request.priority_class]


def slo_priority(request: Request, overrides: Mapping[str, int] | None = None) -> int:
    """Return the priority of the request's SLO class; less than 0 means sheddable.

    `overrides` are priorities by SLO class, also for classes that are not in the table.
    """
    if not (request.slo_class or overrides):
        return _DEFAULT_PRIORITIES[request.priority_class]
    return priority_of_slo_class(slo_class_of(request), overrides)


def priority_of_slo_class(name: str, overrides: Mapping[str, int] | None = None) -> int:
    """Return the priority of an SLO class. An unknown class has that of `standard`."""
    if overrides:
        if name in overrides:
            return overrides[name]
        if name not in SLO_PRIORITIES:
            return overrides.get(STANDARD, SLO_PRIORITIES[STANDARD])
    return SLO_PRIORITIES.get(name, SLO_PRIORITIES[STANDARD])


def priority_class_of(slo_class: str) -> PriorityClass:
    """Return the priority class of an SLO class."""
    return _PRIORITY_CLASS_OF.get(FORMER_SLO_NAMES.get(slo_class, slo_class), PriorityClass.DEFAULT)
