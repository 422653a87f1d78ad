"""SLO classes: their priorities in BLIS, and their priority classes."""

from __future__ import annotations

import pytest

from maitred.core.request import PriorityClass, Request
from maitred.core.slo_classes import priority_class_of, slo_priority


def request(slo_class: str = "", priority_class: PriorityClass = PriorityClass.DEFAULT) -> Request:
    return Request(id=1, arrival=0, prompt_tokens=1, slo_class=slo_class, priority_class=priority_class)


@pytest.mark.parametrize(
    ("name", "priority", "priority_class"),
    [
        ("critical", 4, PriorityClass.INTERACTIVE),
        ("standard", 3, PriorityClass.DEFAULT),
        ("batch", -1, PriorityClass.BULK),
        ("sheddable", -2, PriorityClass.BULK),
        ("background", -3, PriorityClass.BULK),
        ("realtime", 4, PriorityClass.INTERACTIVE),
        ("interactive", 3, PriorityClass.DEFAULT),
        ("nobody knows", 3, PriorityClass.DEFAULT),
    ],
)
def test_a_named_slo_class_counts_whatever_the_priority_class(name: str, priority: int, priority_class: PriorityClass) -> None:
    assert slo_priority(request(name, PriorityClass.SYSTEM)) == priority
    assert priority_class_of(name) is priority_class


def test_without_an_slo_class_the_priority_class_decides() -> None:
    assert [slo_priority(request(priority_class=c)) for c in PriorityClass] == [-1, 3, 4, 4]


def test_overrides_reach_everything_that_counts_as_their_class() -> None:
    overrides = {"standard": 1, "gold": 90}
    assert slo_priority(request("gold"), overrides) == 90
    assert slo_priority(request("nobody knows"), overrides) == 1
    assert slo_priority(request(), overrides) == 1
    assert slo_priority(request("batch"), overrides) == -1
