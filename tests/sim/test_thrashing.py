"""KV memory that is slightly or far too small: the run ends, every request is served, and tokens computed twice are counted."""

from __future__ import annotations

import pytest

from maitred.core.units import from_seconds
from maitred.instance import InstanceConfig
from maitred.sim import ClusterConfig, Outcome, simulate
from maitred.workload import synthetic


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("blocks", "thrashes"), [(20_000, False), (2100, True), (120, True)])
def test_a_run_without_memory_ends_and_says_what_it_wasted(blocks: int, thrashes: bool, caching: bool) -> None:
    jobs = synthetic(40.0, 400, seed=1, input_tokens="normal:500,150", output_tokens="normal:400,100")
    instance = InstanceConfig(total_kv_blocks=blocks, enable_prefix_caching=caching)
    results = simulate(jobs, ClusterConfig(), instance)
    assert set(results.outcome.tolist()) == {Outcome.COMPLETED}
    assert (results.preemptions.sum() > 100) == thrashes
    assert (results.wasted_tokens.sum() > 20_000) == thrashes
    assert ((results.wasted_tokens > 0) <= (results.preemptions > 0)).all()
    assert results.instances[0].preemptions == results.preemptions.sum()
    assert results.instances[0].itl.count == (results.output_tokens - 1).sum()  # pauses count as gaps, and nothing twice


@pytest.mark.parametrize("priority_policy", ["slo-based", "inverted-slo"])
def test_victims_by_age_do_not_preempt_one_another_for_ever(priority_policy: str) -> None:
    """By BLIS's rules a victim starts anew. So the run ends only if one request is always the last to be a victim."""
    jobs = synthetic(200.0, 40, seed=1, input_tokens="normal:500,150", output_tokens="normal:400,100")
    instance = InstanceConfig(
        flavour="blis",
        total_kv_blocks=120,
        scheduler="priority-fcfs",
        priority_policy=priority_policy,
        preemption_policy="priority",
    )
    results = simulate(jobs, ClusterConfig(), instance, horizon=from_seconds(600))
    assert set(results.outcome.tolist()) == {Outcome.COMPLETED}
    assert results.preemptions.sum() > 20
