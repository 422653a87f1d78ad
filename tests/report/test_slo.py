"""Objectives for all requests and for classes, for the five of `told` in conftest.

TTFT 100, 200, 400, and 800 ms of the unfinished; E2E 500, 200, 1400 ms; TPOT 100, none, 100 ms. The third is bulk and names the
SLO class batch; the others of bulk did not complete.
"""

from __future__ import annotations

import pytest

from maitred.report import Slo, Targets, summarise
from maitred.sim import Results


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft=200_000), 2),
        (Slo(ttft=200_000, classes={"batch": Targets(ttft=400_000)}), 3),
        (Slo(ttft=200_000, classes={"batch": Targets(e2e=1_400_000)}), 2),  # what it leaves out is as for all
        (Slo(classes={"batch": Targets(e2e=1)}), 2),  # the others have no target
        (Slo(classes={"interactive": Targets(ttft=100_000)}), 2),
        (Slo(ttft=200_000, classes={"bulk": Targets(ttft=400_000)}), 2),  # of bulk only the request without an SLO class
        (Slo(ttft=1, classes={"interactive": Targets(ttft=200_000), "batch": Targets(ttft=400_000)}), 3),
    ],
)
def test_targets_of_a_class_come_before_those_for_all(told: Results, slo: Slo, good: int) -> None:
    assert summarise(told, slo).total.within_slo == good


def test_a_class_without_requests_is_a_warning(told: Results) -> None:
    slo = Slo(classes={"batch": Targets(ttft=1), "bacth": Targets(ttft=1), "system": Targets(ttft=1)})
    told.wasted_tokens[:] = 0
    assert summarise(told, slo).warnings == (
        "there is an SLO for the class 'bacth', and no request of it",
        "there is an SLO for the class 'system', and no request of it",
    )


def test_targets_that_say_nothing_are_none() -> None:
    assert not Slo()
    assert not Slo(classes={"batch": Targets()})
    assert Slo(classes={"batch": Targets(e2e=1)})
