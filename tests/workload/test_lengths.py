"""Length distributions as users write them, and BLIS's, with means and tails that can be computed by hand."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.errors import ConfigError
from maitred.workload import parse_lengths
from maitred.workload.lengths import EmpiricalLength, LengthDistribution, LogNormalLengthByLogs
from maitred.workload.spec import Distribution

KNOWN = {
    "normal:500,150": [624, 461, 583, 200, 442],
    "lognormal:500,300": [677, 371, 583, 141, 347],
    "uniform:1,1000": [313, 951, 295, 301, 363],
}


def draws(text: str, count: int = 20_000) -> list[int]:
    lengths, uniform = parse_lengths(text), Random("lengths").random
    return [lengths.draw(uniform) for _ in range(count)]


def test_a_number_is_always_itself() -> None:
    assert set(draws("500", 10)) == {500}
    assert parse_lengths(500).draw(Random(1).random) == 500


def test_uniform_takes_both_ends_equally_often() -> None:
    counts = Counter(draws("uniform:3,5", 30_000))
    assert counts.keys() == {3, 4, 5}
    assert all(9_500 < count < 10_500 for count in counts.values())


def test_normal_has_the_mean_and_deviation_that_were_asked_for() -> None:
    lengths = draws("normal:500,150")
    assert statistics.mean(lengths) == pytest.approx(500, abs=4)
    assert statistics.stdev(lengths) == pytest.approx(150, abs=3)


def test_lognormal_takes_the_mean_and_deviation_of_the_lengths_not_of_their_logs() -> None:
    lengths = draws("lognormal:500,300", 50_000)
    assert statistics.mean(lengths) == pytest.approx(500, abs=8)
    assert statistics.stdev(lengths) == pytest.approx(300, abs=15)
    assert statistics.median(lengths) == pytest.approx(500 / (1 + 0.36) ** 0.5, abs=8)


def test_without_deviation_they_are_constants() -> None:
    assert set(draws("normal:7,0", 50)) == set(draws("lognormal:7,0", 50)) == {7}


def test_known_draws_stay_what_they_are() -> None:
    """The lengths were recorded once: a seed gives the same workload with every version of Python."""
    assert {text: draws(text, 5) for text in KNOWN} == KNOWN


@given(
    st.sampled_from(
        [
            *("normal:1,1000", "lognormal:1,100000000", "lognormal:100000000,100000000", "uniform:1,2"),
            *("gaussian:1,100000000,0,100000000", "exponential:100000000", "pareto_lognormal:0.1,100000000,50,50,0.5"),
        ]
    ),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3),
)
def test_every_draw_is_a_length(text: str, uniforms: list[float]) -> None:
    assert 1 <= parse_lengths(text).draw(iter(uniforms).__next__) <= 100_000_000


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("many", "write a number of tokens, such as 500, or exponential:MEAN, gaussian:MEAN,SD,MIN,MAX, lognormal:MEAN,SD, "),
        ("few", "pareto_lognormal:ALPHA,XM,MU,SIGMA,WEIGHT, quantiles:P50,P95,P99,MAX, uniform:LOW,HIGH"),
        ("", "tokens, such as 500"),
        ("0", "tokens, such as 500"),
        ("nan", "tokens, such as 500"),
        ("-5", "tokens, such as 500"),
        ("5,6", "tokens, such as 500"),
        ("gauss:5,1", "normal:MEAN,SD"),
        ("normal:500", "normal:MEAN,SD"),
        ("normal:500,150,1", "normal:MEAN,SD"),
        ("normal:500;150", "normal:MEAN,SD"),
        ("normal:0,150", "normal:MEAN,SD"),
        ("normal:500,-1", "normal:MEAN,SD"),
        ("lognormal:inf,1", "lognormal:MEAN,SD"),
        ("uniform:9,3", "uniform:LOW,HIGH"),
    ],
)
def test_the_error_of_a_wrong_length_names_the_correct_form(text: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_lengths(text, where="--input-tokens")
    assert raised.value.where == "--input-tokens"
    assert hint in raised.value.hint


def test_a_single_number_is_one_number() -> None:
    with pytest.raises(ConfigError, match=r"^'normal:500' has 1 number \(write normal:MEAN,SD\)"):
        parse_lengths("normal:500")


def draw_many(lengths: LengthDistribution | str, count: int = 30_000) -> list[int]:
    lengths = parse_lengths(lengths) if isinstance(lengths, str) else lengths
    uniform = Random("distributions").random
    return [lengths.draw(uniform) for _ in range(count)]


def test_gaussian_is_clamped_and_then_rounded() -> None:
    """68.3 % lie within one standard deviation, and 15.9 % are clamped on each side."""
    drawn = draw_many("gaussian:500,100,400,600")
    assert (min(drawn), max(drawn)) == (400, 600)
    assert Counter(drawn)[400] / len(drawn) == pytest.approx(0.1587, abs=0.01)
    assert statistics.mean(drawn) == pytest.approx(500, abs=2)
    assert set(draw_many("gaussian:512,256,7,7", 20)) == {7}


def test_exponential_falls_by_e_with_each_mean() -> None:
    drawn = draw_many("exponential:200")
    assert statistics.mean(drawn) == pytest.approx(200, rel=0.03)
    assert sum(length > 600 for length in drawn) / len(drawn) == pytest.approx(math.exp(-3), abs=0.006)


def test_lognormal_of_logarithms() -> None:
    """The median is e^μ, the mean e^(μ + σ²/2)."""
    drawn = draw_many(LogNormalLengthByLogs(5.0, 0.8))
    assert statistics.median(drawn) == pytest.approx(math.exp(5), rel=0.03)
    assert statistics.mean(drawn) == pytest.approx(math.exp(5 + 0.32), rel=0.03)
    assert max(draw_many(LogNormalLengthByLogs(5.0, 0.8, 10, 200))) == 200


def test_pareto_lognormal_is_a_mixture() -> None:
    """The log-normal part is so narrow that it is 20; of the Pareto part, from 1,000 with power 2, 1/4 lies beyond 2,000."""
    lengths = draw_many(f"pareto_lognormal:2,1000,{math.log(20)},0,0.3")
    tail = [length for length in lengths if length != 20]
    assert len(tail) / len(lengths) == pytest.approx(0.3, abs=0.014)
    assert min(tail) >= 1000
    assert sum(length > 2000 for length in tail) / len(tail) == pytest.approx(0.25, abs=0.023)


def test_empirical_lengths_come_as_often_as_they_weigh() -> None:
    counts = Counter(draw_many(EmpiricalLength({"512": 1, "64": 2, "1024": 1, "9": 0})))
    assert counts.keys() == {64, 512, 1024}
    assert counts[64] / 30_000 == pytest.approx(0.5, abs=0.015)
    assert counts[512] / 30_000 == pytest.approx(0.25, abs=0.013)


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
