"""Groups of requests, for the five of `told` in conftest."""

from __future__ import annotations

import pytest

from maitred.report import By, Slo, summarise
from maitred.sim import Results


@pytest.mark.parametrize(
    ("by", "arrived"),
    [
        (By.CLASS, {"interactive": 2, "bulk": 3}),
        (By.SLO_CLASS, {"–": 3, "batch": 1, "sheddable": 1}),
        (By.TENANT, {"–": 1, "acme": 2, "globex": 2}),
        (By.MODEL, {"llama": 5}),
        (By.INSTANCE, {"0": 2, "1": 2}),  # the rejected one came to none
    ],
)
def test_who_belongs_to_which(told: Results, by: By, arrived: dict[str, int]) -> None:
    groups = summarise(told).by[by]
    assert [(label, group.arrived) for label, group in groups.items()] == [*arrived.items()]


def test_each_has_its_own_figures(told: Results) -> None:
    acme, globex = (summarise(told, Slo(ttft=150_000)).by[By.TENANT][name] for name in ("acme", "globex"))
    assert acme.ttft is not None
    assert (acme.ttft.mean, acme.output_tokens, acme.within_slo, acme.attainment) == (150_000, 6, 1, 0.5)
    assert globex.ttft is not None
    assert (globex.ttft.mean, globex.output_tokens, globex.within_slo, globex.wasted_tokens) == (400_000, 11, 0, 12)


def test_only_those_asked_for_and_classes(told: Results) -> None:
    assert list(summarise(told, by=()).by) == [By.CLASS]
    assert list(summarise(told, by=(By.MODEL, By.TENANT)).by) == [By.CLASS, By.TENANT, By.MODEL]


def test_what_instances_did(told: Results) -> None:
    """Gaps of 100, 100 and 300 ms; busy 1.5 s and 0.5 s of 2 s each."""
    summary = summarise(told)
    assert summary.instances["0"].utilisation == 0.75
    assert summary.instances["1"].utilisation == 0.25
    assert (summary.all_instances.utilisation, summary.all_instances.steps) == (0.5, 40)
    assert summary.all_instances.itl is not None
    assert summary.all_instances.itl.mean == pytest.approx(500_000 / 3)
    assert summary.all_instances.itl.p50 == pytest.approx(100_000, rel=0.006)


def test_fairness_is_jains_index_of_the_tokens(told: Results, five: Results) -> None:
    """6, 11 and 3 tokens: 20² / (3 · (36 + 121 + 9))."""
    assert summarise(told).fairness == pytest.approx(400 / 498)
    assert summarise(five).fairness is None


def test_the_longest_wait_counts_requests_that_never_ran(make: object, told: Results) -> None:
    """The rejected request stays to the end, because its end is not given; the others waited 10, 20, 30 and 40 ms."""
    summary = summarise(told)
    assert summary.total.longest_wait == 1_750_000
    assert summary.by[By.INSTANCE]["0"].longest_wait == 30_000
    told.scheduled[2] = 700_000  # preempted after its first token, at 600 ms
    assert summarise(told).by[By.INSTANCE]["0"].longest_wait == 400_000


def test_work_that_was_done_twice(told: Results) -> None:
    """110 prompt tokens were admitted, 22 of them cached, and 20 tokens generated: 18 wasted are 14 %, which is thrashing."""
    summary = summarise(told)
    assert summary.total.waste == pytest.approx(18 / (110 - 22 + 20 + 18))
    assert summary.warnings[0].startswith("KV thrashing: 3 preemptions, 14% of the tokens computed were computed again")
    told.wasted_tokens[:] = 2
    assert summarise(told).warnings == ()
