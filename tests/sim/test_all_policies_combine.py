"""Every routing policy works with every scheduler and priority policy; without a queue, its order does not matter."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import pytest

from maitred import ClusterConfig, InstanceConfig, Job, Outcome, Request, RoutingConfig, synthetic
from maitred.kv import PromptTokenIds
from maitred.queueing import PRIORITIES, SCHEDULERS
from maitred.routing import ROUTERS
from maitred.sim import simulate

SPELLED = [*SCHEDULERS, "bounded(sjf)", "vtc(lpm, slack=200)", "by-priority(fcfs)"]
SCORED = "queue-depth:2, kv-utilization:1, load-balance:1, prefix-affinity:1, precise-prefix-cache:1, no-hit-lru:1"


def load(requests: int, rate: float) -> list[Job]:
    """Return prompts of three families, tenants, classes and sessions, so that every policy has something to order by."""
    jobs = synthetic(
        rate,
        requests,
        seed=3,
        input_tokens="uniform:20,300",
        output_tokens="uniform:5,60",
        class_mix="interactive:0.5,bulk:0.5",
        tenant_mix="auth:a:0.7,auth:b:0.3",
    )
    return [Job(_known(job.request), job.output_tokens) for job in jobs]


def _known(request: Request) -> Request:
    number = request.id
    tokens = (*range(number % 3 * 1000, number % 3 * 1000 + 16), *range(10_000 + number * 500, 10_000 + number * 500 + 500))
    return msgspec.structs.replace(
        request,
        prefix=PromptTokenIds(tokens[: request.prompt_tokens]),
        program=f"session {number % 5}",
        routing_key=f"adapter {number % 4}",
        slo_class=("critical", "standard", "batch", "sheddable", "background")[number % 5],
        priority=float(number % 3),
    )


JOBS = load(12, rate=400.0)


@pytest.mark.parametrize("routing", list(ROUTERS))
def test_all_of_them_run_together(routing: str) -> None:
    router = RoutingConfig(policy=routing, scorers=SCORED if routing == "weighted" else ())
    for scheduler, priority in product(SPELLED, [None, *PRIORITIES]):
        instance = InstanceConfig(
            scheduler=scheduler,
            priority_policy=priority,
            enable_prefix_caching=True,
            max_num_seqs=3,
            total_kv_blocks=90,
            preemption_policy="priority" if priority else "fcfs",
        )
        results = simulate(JOBS, ClusterConfig(num_instances=2), instance, router)
        assert np.all(results.outcome == Outcome.COMPLETED), (scheduler, priority)


@pytest.mark.parametrize("rate", [2.0, 9.0])
def test_below_10_requests_per_second_blis_schedulers_agree(rate: float) -> None:
    jobs = list(synthetic(rate, 300, seed=1, input_tokens="normal:500,150", output_tokens="normal:250,75"))
    figures = []
    for scheduler in ("fcfs", "sjf", "priority-fcfs", "reverse-priority"):
        instance = InstanceConfig(scheduler=scheduler, priority_policy="slo-based")
        results = simulate(jobs, ClusterConfig(num_instances=4), instance)
        ttft, e2e = results.first_token - results.arrival, results.finished - results.arrival
        figures.append([ttft.mean(), np.percentile(ttft, 99), e2e.mean(), np.percentile(e2e, 99)])
    assert np.max(figures, axis=0) == pytest.approx(np.min(figures, axis=0), rel=0.05)
