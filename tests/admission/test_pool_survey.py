"""What all pools look like, looked at in steps while requests come and go."""

from __future__ import annotations

import pytest

from maitred.admission import Admission, AdmissionConfig, ClassView, ReleaseReason, Ticket
from maitred.core.request import PriorityClass
from maitred.core.steps import run_at_once

MODELS = ("a", "b", "c")


def make_core(mode: str) -> Admission:
    return Admission(AdmissionConfig(mode=mode), dict.fromkeys(MODELS, 2))  # type: ignore[arg-type]


def submit(core: Admission, number: int, model: str) -> None:
    core.submit(Ticket(number, model, PriorityClass.DEFAULT, "", 1), number)


def default_class(views: object) -> tuple[int, int]:
    view = views[PriorityClass.DEFAULT]  # type: ignore[index]
    assert isinstance(view, ClassView)
    assert view.is_balanced()
    return view.arrived, view.in_flight + view.waiting


@pytest.mark.parametrize("mode", ["priority", "legacy"])
def test_each_model_is_looked_at_at_an_instant_and_its_requests_add_up(mode: str) -> None:
    core = make_core(mode)
    for number, model in enumerate(MODELS):
        submit(core, number, model)
    steps = core.survey()
    next(steps)  # a has been looked at
    submit(core, 3, "a")
    submit(core, 4, "c")
    core.release(1, ReleaseReason.DRAINED, 5)  # of b
    survey = run_at_once(steps)
    assert default_class(survey.classes) == (4, 3)  # 3 is missing, and 1 has ended
    assert default_class(core.class_views()) == (5, 4)


@pytest.mark.parametrize("mode", ["priority", "legacy"])
@pytest.mark.parametrize("is_removed", [True, False])
def test_pools_that_come_or_go_meanwhile_are_counted_once(mode: str, is_removed: bool) -> None:
    core = make_core(mode)
    for number, model in enumerate(MODELS):
        submit(core, number, model)
    core.release(0, ReleaseReason.DRAINED, 3)
    steps = core.survey()
    for _ in range(2):
        next(steps)
    if is_removed:
        core.forget("a", 4)
    else:
        core.reconfigure(AdmissionConfig(mode="off"), 4)
    survey = run_at_once(steps)
    assert default_class(survey.classes) == (3, 2)
    assert [*survey.pools] == core.pool_names
