"""BLIS's length distributions: means and tails that can be computed by hand."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.workload import parse_lengths
from maitred.workload.lengths import EmpiricalLength, LengthDistribution, LogNormalLengthByLogs
from maitred.workload.spec import Distribution


def draws(lengths: LengthDistribution | str, count: int = 30_000) -> list[int]:
    lengths = parse_lengths(lengths) if isinstance(lengths, str) else lengths
    uniform = Random("distributions").random
    return [lengths.draw(uniform) for _ in range(count)]


def test_gaussian_is_clamped_and_then_rounded() -> None:
    """68.3 % lie within one standard deviation, and 15.9 % are clamped on each side."""
    drawn = draws("gaussian:500,100,400,600")
    assert (min(drawn), max(drawn)) == (400, 600)
    assert Counter(drawn)[400] / len(drawn) == pytest.approx(0.1587, abs=0.01)
    assert statistics.mean(drawn) == pytest.approx(500, abs=2)
    assert set(draws("gaussian:512,256,7,7", 20)) == {7}


def test_exponential_falls_by_e_with_each_mean() -> None:
    drawn = draws("exponential:200")
    assert statistics.mean(drawn) == pytest.approx(200, rel=0.03)
    assert sum(length > 600 for length in drawn) / len(drawn) == pytest.approx(math.exp(-3), abs=0.006)


def test_lognormal_of_logarithms() -> None:
    """The median is e^μ, the mean e^(μ + σ²/2)."""
    drawn = draws(LogNormalLengthByLogs(5.0, 0.8))
    assert statistics.median(drawn) == pytest.approx(math.exp(5), rel=0.03)
    assert statistics.mean(drawn) == pytest.approx(math.exp(5 + 0.32), rel=0.03)
    assert max(draws(LogNormalLengthByLogs(5.0, 0.8, 10, 200))) == 200


def test_pareto_lognormal_is_a_mixture() -> None:
    """The log-normal part is so narrow that it is 20; of the Pareto part, from 1,000 with power 2, 1/4 lies beyond 2,000."""
    drawn = draws(f"pareto_lognormal:2,1000,{math.log(20)},0,0.3")
    tail = [length for length in drawn if length != 20]
    assert len(tail) / len(drawn) == pytest.approx(0.3, abs=0.014)
    assert min(tail) >= 1000
    assert sum(length > 2000 for length in tail) / len(tail) == pytest.approx(0.25, abs=0.023)


def test_empirical_lengths_come_as_often_as_they_weigh() -> None:
    counts = Counter(draws(EmpiricalLength({"512": 1, "64": 2, "1024": 1, "9": 0})))
    assert counts.keys() == {64, 512, 1024}
    assert counts[64] / 30_000 == pytest.approx(0.5, abs=0.015)
    assert counts[512] / 30_000 == pytest.approx(0.25, abs=0.013)


@given(
    st.sampled_from(
        ["gaussian:1,100000000,0,100000000", "exponential:100000000", "pareto_lognormal:0.1,100000000,50,50,0.5"],
    ),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3),
)
def test_every_draw_is_a_length(text: str, uniforms: list[float]) -> None:
    assert 1 <= parse_lengths(text).draw(iter(uniforms).__next__) <= 100_000_000


@given(st.floats(0, 1, exclude_max=True))
def test_every_draw_of_a_measured_length_is_one_of_them(uniform: float) -> None:
    assert EmpiricalLength({"3": 0.1, "5": 0.2, "7": 0.3}).draw(lambda: uniform) in {3, 5, 7}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"type": "gausian"}, "type 'gausian' is no distribution: did you mean 'gaussian'?"),
        ({"type": "gaussian", "params": {"mean": 5}}, "params: gaussian lengths also need std_dev, min, max"),
        (
            {"type": "exponential", "params": {"men": 5}},
            "params: 'men' means nothing to exponential lengths: did you mean 'mean'?",
        ),
        ({"type": "lognormal", "params": {"mu": 5}}, "params: lognormal lengths also need sigma"),
        ({"type": "exponential", "params": {"mean": 0}}, "params: mean must be between 1 and 100000000"),
        (
            {"type": "gaussian", "params": {"mean": 9, "std_dev": 1, "min": 5, "max": 4}},
            "params: max must be between 5 and 100000000",
        ),
        (
            {"type": "pareto_lognormal", "params": {"alpha": 0, "xm": 1, "mu": 1, "sigma": 1, "mix_weight": 0}},
            "alpha must be between",
        ),
        (
            {"type": "pareto_lognormal", "params": {"alpha": 1, "xm": 1, "mu": 1, "sigma": 1, "mix_weight": 2}},
            "mix_weight must be",
        ),
        ({"type": "empirical"}, "params: weights must be numbers of 0 or more, and not all of them 0"),
        ({"type": "empirical", "params": {"5": -1}}, "params: weights must be numbers of 0 or more"),
        ({"type": "empirical", "params": {"0": 1}}, "params: '0' is no length in tokens"),
        ({"type": "empirical", "file": "x.csv"}, "file is not read"),
    ],
)
def test_parameters_that_make_no_sense(said: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Distribution(**said)  # type: ignore[arg-type]
