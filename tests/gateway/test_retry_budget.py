"""The retry budget: a share of the traffic with a floor."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.units import SECOND
from maitred.gateway.config import RetryConfig
from maitred.gateway.forwarding.retry_budget import RetryBudget


def spend(budget: RetryBudget, num_requests: int, now: int, most: int = 10_000) -> int:
    """Return how many retries the budget allows at once."""
    return next(spent for spent in range(most) if not budget.withdraw(num_requests, now))


def test_a_quiet_gateway_has_its_floor() -> None:
    budget = RetryBudget(RetryConfig(budget_share=0.2, budget_floor_per_sec=10), 0)
    assert spend(budget, 0, 0) == 100  # what 10 seconds bring
    assert spend(budget, 0, SECOND) == 10
    assert spend(budget, 0, 1000 * SECOND) == 100  # no more is kept


def test_traffic_brings_its_share() -> None:
    budget = RetryBudget(RetryConfig(budget_share=0.2, budget_floor_per_sec=0), 0)
    assert spend(budget, 0, 0) == 0
    assert spend(budget, 500, 5 * SECOND) == 100
    assert spend(budget, 500, 6 * SECOND) == 0
    assert spend(budget, 20_500, 206 * SECOND) == 200  # 20,000 requests in 200 s: the share of 10 s is kept


def test_without_share_and_floor_nothing_is_sent_again() -> None:
    budget = RetryBudget(RetryConfig(budget_share=0, budget_floor_per_sec=0), 0)
    assert spend(budget, 10**6, 100 * SECOND) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 500), st.integers(0, 60)), max_size=60))
def test_retries_stay_below_what_floor_and_share_have_brought(steps: list[tuple[int, int, int]]) -> None:
    budget, now, requests, retries = RetryBudget(RetryConfig(budget_share=0.2, budget_floor_per_sec=2), 0), 0, 0, 0
    for secs, more, wanted in steps:
        now, requests = now + secs * SECOND, requests + more
        retries += sum(budget.withdraw(requests, now) for _ in range(wanted))
        assert retries <= 20 + 2 * now / SECOND + 0.2 * requests + 1e-6
