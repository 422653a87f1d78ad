"""Arrival processes have a mean of 1 and the given CV; rates change over time."""

from __future__ import annotations

import math
import statistics
from itertools import islice, pairwise
from random import Random

import pytest

from maitred.core.errors import ConfigError
from maitred.workload import parse_arrival_process
from maitred.workload.arrivals import weibull_cv, weibull_shape
from maitred.workload.spec import Arrival, Client, Cohort, Diurnal, Drain, Lifecycle, Spike, Window, Workload

SECOND = 1_000_000
HOUR = 3_600 * SECOND


def gaps(text: str, count: int = 20_000) -> list[float]:
    return list(islice(parse_arrival_process(text).gaps(Random("gaps").random, math.inf), count))


def arrivals(workload: Workload, client_id: str = "") -> list[int]:
    return [job.request.arrival for job in workload.jobs() if job.request.client_id.startswith(client_id)]


def client(client_id: str = "c", **fields: object) -> Client:
    return Client(id=client_id, input_distribution=10, output_distribution=10, **fields)  # type: ignore[arg-type]


def cohort(cohort_id: str = "c", population: int = 1, **fields: object) -> Cohort:
    return Cohort(id=cohort_id, population=population, input_distribution=10, output_distribution=10, **fields)  # type: ignore[arg-type]


def within(instants: list[int], start: int, end: int) -> int:
    return sum(start <= at < end for at in instants)


@pytest.mark.parametrize("text", ["poisson", "gamma:0.5", "gamma:1", "gamma:2.5", "weibull:0.5", "weibull:1", "weibull:2"])
def test_a_process_has_gaps_of_mean_1_and_the_spread_that_was_asked_for(text: str) -> None:
    """Tolerances are five standard errors of 20,000 draws."""
    cv = float(text.partition(":")[2] or 1)
    drawn = gaps(text)
    assert statistics.mean(drawn) == pytest.approx(1, abs=5 * cv / 141)
    assert statistics.stdev(drawn) / statistics.mean(drawn) == pytest.approx(cv, rel=0.08)
    assert min(drawn) >= 0


def test_a_median_that_only_the_right_distribution_has() -> None:
    """The medians: ln 2 (exponential), 3.672/4 (gamma of shape 4), (ln 2)^(1/k) / Γ(1 + 1/k) (Weibull of shape k)."""
    k = weibull_shape(0.5)
    assert statistics.median(gaps("poisson")) == pytest.approx(math.log(2), abs=0.02)
    assert statistics.median(gaps("gamma:0.5")) == pytest.approx(3.6721 / 4, abs=0.015)
    assert statistics.median(gaps("weibull:0.5")) == pytest.approx(math.log(2) ** (1 / k) / math.gamma(1 + 1 / k), abs=0.015)


def test_constant_arrivals_are_a_metronome() -> None:
    assert arrivals(
        Workload(aggregate_rate=4, num_requests=4, clients=[client(rate_fraction=1, arrival=Arrival(process="constant"))])
    ) == [
        250_000,
        500_000,
        750_000,
        1_000_000,
    ]


@pytest.mark.parametrize(("cv", "shape"), [(1.0, 1.0), (2.236068, 0.5), (0.5227232, 2.0)])
def test_the_weibull_shape_of_a_spread(cv: float, shape: float) -> None:
    """Shape 1 is exponential; shape 1/2 has CV² = Γ(5)/Γ(3)² - 1 = 5; shape 2 (Rayleigh) has 4/π - 1."""
    assert weibull_cv(shape) == pytest.approx(cv, rel=1e-6)
    assert weibull_shape(cv) == pytest.approx(shape, rel=1e-6)


def test_normalized_arrivals_are_as_many_as_expected_and_the_last_ends_the_span() -> None:
    """50 requests per second for 10 s are 500 requests with every seed."""
    steady = client(rate=50, arrival=Arrival(process="normalized"))
    for seed in range(5):
        instants = [job.request.arrival for job in Workload(horizon=10 * SECOND, clients=[steady]).jobs(seed=seed)]
        assert len(instants) == 500
        assert instants[-1] == 10 * SECOND
    spread = [later - earlier for earlier, later in pairwise(instants)]
    assert statistics.stdev(spread) / statistics.mean(spread) == pytest.approx(1, abs=0.15)


def test_normalized_arrivals_without_an_end_cannot_be() -> None:
    with pytest.raises(ValueError, match="clients: 'c' has normalized arrivals, which need an end: a horizon, or windows"):
        Workload(num_requests=5, clients=[client(rate=5, arrival=Arrival(process="normalized"))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poison", "unknown arrival process 'poison' (did you mean 'poisson'?)"),
        ("gamma", "'gamma' has no number (write gamma:CV)"),
        ("poisson:2", "'poisson:2' has a number (write poisson)"),
        ("gamma:x", "'x' in 'gamma:x' is no number (write gamma:CV)"),
        ("weibull:20", "'weibull:20': cv must be from 0.01 to 10.4, not 20 (write weibull:CV)"),
        ("gamma:nan", "'gamma:nan': cv must be from 0.01 to 10.4, not nan (write gamma:CV)"),
    ],
)
def test_a_process_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_arrival_process(text)
    assert str(raised.value) == message


def test_clients_share_the_aggregate_rate_by_their_fractions() -> None:
    """30 requests per second, shared 2 : 1, for 1,000 s are 20,000 and 10,000, each within five standard deviations."""
    workload = Workload(
        aggregate_rate=30, horizon=1_000 * SECOND, clients=[client("a", rate_fraction=0.5), client("b", rate_fraction=0.25)]
    )
    assert len(arrivals(workload, "a")) == pytest.approx(20_000, abs=710)
    assert len(arrivals(workload, "b")) == pytest.approx(10_000, abs=500)


def test_a_client_that_stops_makes_the_others_faster() -> None:
    """Of 12 requests per second, a and b share the first 10 s, then a has all. Gaps are constant, so counts are exact."""
    steady = Arrival(process="constant")
    first_ten = Lifecycle(windows=[Window(start_us=0, end_us=10 * SECOND)])
    workload = Workload(
        aggregate_rate=12,
        horizon=20 * SECOND,
        clients=[
            client("a", rate_fraction=1, arrival=steady),
            client("b", rate_fraction=2, arrival=steady, lifecycle=first_ten),
        ],
    )
    a, b = arrivals(workload, "a"), arrivals(workload, "b")
    assert (within(a, 0, 10 * SECOND + 1), within(a, 10 * SECOND + 1, 20 * SECOND + 1)) == (40, 120)
    assert (len(b), b[-1]) == (80, 10 * SECOND)


def test_rates_of_ones_own_take_no_part_in_the_sharing() -> None:
    steady = Arrival(process="constant")
    workload = Workload(
        aggregate_rate=10,
        horizon=10 * SECOND,
        clients=[client("a", rate_fraction=0.3, arrival=steady), client("b", rate=7, arrival=steady)],
    )
    assert len(arrivals(workload, "a")) == 100
    assert len(arrivals(workload, "b")) == 70


def test_windows_with_rates_and_processes_of_their_own() -> None:
    """Without an aggregate rate: 10 per second for 10 s, none for 10 s, then gaps of 0.05 s (Weibull of a huge shape)."""
    windows = [
        Window(start_us=0, end_us=10 * SECOND, trace_rate=10),
        Window(start_us=20 * SECOND, end_us=30 * SECOND, arrival=Arrival(process="weibull", shape=120, scale=50_230)),
    ]
    workload = Workload(clients=[client(arrival=Arrival(process="constant"), lifecycle=Lifecycle(windows=windows))])
    instants = arrivals(workload)
    assert within(instants, 0, 10 * SECOND + 1) == 100
    assert within(instants, 10 * SECOND + 1, 20 * SECOND) == 0
    assert within(instants, 20 * SECOND, 30 * SECOND) == pytest.approx(200, abs=1)


def test_a_day_is_a_cosine_of_24_steps_over_and_over() -> None:
    """36 requests per hour at the peak (hour 14), a quarter of it at hour 2, halfway at hours 8 and 20, on both days."""
    day = cohort(rate=0.01, arrival=Arrival(process="constant"), diurnal=Diurnal(peak_hour=14, peak_to_trough_ratio=4))
    instants = arrivals(Workload(horizon=48 * HOUR, cohorts=[day]))
    by_hour = [within(instants, hour * HOUR, (hour + 1) * HOUR) for hour in range(48)]
    assert [by_hour[hour] for hour in (14, 2, 8, 20)] == [
        pytest.approx(36, abs=1),
        pytest.approx(9, abs=1),
        pytest.approx(22.5, abs=1),
        pytest.approx(22.5, abs=1),
    ]
    assert by_hour[24:] == [pytest.approx(n, abs=1) for n in by_hour[:24]]


def test_a_spike_comes_and_goes() -> None:
    workload = Workload(
        horizon=60 * SECOND,
        clients=[client("base", rate=10, arrival=Arrival(process="constant"))],
        cohorts=[
            cohort(
                "rush",
                population=4,
                arrival=Arrival(process="constant"),
                spike=Spike(start_time_us=20 * SECOND, duration_us=10 * SECOND, trace_rate=40),
            )
        ],
    )
    rush = arrivals(workload, "rush")
    assert len(arrivals(workload, "base")) == 600
    assert len(rush) == 400
    assert (rush[0], rush[-1]) == (20_100_000, 30_000_000)


def test_a_drain_steps_down_to_nothing() -> None:
    """100 per second for 10 s, then ten steps of 1 s: 100, 90, ..., 10."""
    drained = cohort(
        rate=100, arrival=Arrival(process="constant"), drain=Drain(start_time_us=10 * SECOND, ramp_duration_us=10 * SECOND)
    )
    instants = arrivals(Workload(cohorts=[drained]))
    counts = [within(instants, n * SECOND + 1, (n + 1) * SECOND + 1) for n in range(9, 21)]
    assert counts == [100, *(pytest.approx(n, abs=1) for n in range(100, 0, -10)), 0]


def test_a_cohort_is_as_fast_as_it_says_whatever_its_population() -> None:
    workload = Workload(aggregate_rate=50, num_requests=5_000, cohorts=[cohort(population=20, rate_fraction=1)])
    jobs = list(workload.jobs())
    assert jobs[-1].request.arrival == pytest.approx(100 * SECOND, rel=0.07)
    assert {job.request.client_id for job in jobs} == {f"c-{member}" for member in range(20)}


def test_jobs_come_in_order_with_ids_from_0_and_nothing_beyond_the_horizon() -> None:
    workload = Workload(
        aggregate_rate=100,
        horizon=10 * SECOND,
        clients=[client("a", rate_fraction=1), client("b", rate_fraction=1, arrival=Arrival(process="gamma", cv=3))],
    )
    requests = [job.request for job in workload.jobs()]
    instants = [request.arrival for request in requests]
    assert [request.id for request in requests] == list(range(len(requests)))
    assert instants == sorted(instants)
    assert 9 * SECOND < instants[-1] <= 10 * SECOND


def test_twice_the_rate_is_twice_as_many_in_the_same_windows() -> None:
    steady = Arrival(process="constant")
    workload = Workload(
        aggregate_rate=5,
        clients=[
            client(rate_fraction=1, arrival=steady, lifecycle=Lifecycle(windows=[Window(start_us=0, end_us=10 * SECOND)]))
        ],
    )
    assert [job.request.arrival for job in workload.jobs(rate_scale=2)] == [100_000 * n for n in range(1, 101)]


def test_a_window_may_have_bursts_of_its_own() -> None:
    """Constant gaps at 10 per second, except in the second of three windows, where 10 per second come in bursts."""
    windows = [
        Window(start_us=0, end_us=100 * SECOND),
        Window(start_us=100 * SECOND, end_us=200 * SECOND, arrival=Arrival(process="gamma", cv=3)),
        Window(start_us=200 * SECOND, end_us=300 * SECOND),
    ]
    steady = client(rate=10, arrival=Arrival(process="constant"), lifecycle=Lifecycle(windows=windows))
    instants = arrivals(Workload(clients=[steady]))
    spreads = []
    for start in (0, 100 * SECOND, 200 * SECOND):
        gaps_there = [b - a for a, b in pairwise(at for at in instants if start + SECOND < at < start + 99 * SECOND)]
        spreads.append(statistics.pstdev(gaps_there) / statistics.mean(gaps_there))
    assert spreads[0] == pytest.approx(0, abs=1e-3)
    assert 2 < spreads[1] < 4
    assert spreads[2] == pytest.approx(0, abs=1e-3)


def test_windows_weigh_by_their_trace_rate_and_may_say_something_else() -> None:
    """16 requests per second in all. For 10 s the weights of a and b are 1 : 1, then 1 : 3 with longer prompts of b."""
    steady = Arrival(process="constant")
    windows = [
        Window(start_us=0, end_us=10 * SECOND, trace_rate=1),
        Window(
            start_us=10 * SECOND, end_us=20 * SECOND, trace_rate=3, input_distribution=70, output_distribution="uniform:7,7"
        ),
    ]
    workload = Workload(
        aggregate_rate=16,
        horizon=20 * SECOND,
        clients=[
            client("a", rate_fraction=1, arrival=steady),
            client("b", rate_fraction=1, arrival=steady, lifecycle=Lifecycle(windows=windows)),
        ],
    )
    jobs = [job for job in workload.jobs() if job.request.client_id == "b"]
    lengths = [(job.request.prompt_tokens, job.output_tokens) for job in jobs]
    assert lengths == [(10, 10)] * 80 + [(70, 7)] * 120
    assert len(arrivals(workload, "a")) == 80 + 40
