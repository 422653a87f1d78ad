"""Length distributions as users write them."""

from __future__ import annotations

import statistics
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.errors import ConfigError
from maitred.workload import parse_lengths

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
    st.sampled_from(["normal:1,1000", "lognormal:1,100000000", "lognormal:100000000,100000000", "uniform:1,2"]),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2),
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
