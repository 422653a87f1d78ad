"""Every router in the simulator: the same choices with and without skipping, and no request is lost."""

from __future__ import annotations

import msgspec
import pytest

from maitred import InstanceConfig, Job, synthetic
from maitred.kv.block_hashes import PromptTokenIds
from maitred.routing import ROUTERS, SCORERS, RoutingConfig
from maitred.sim import ClusterConfig, Outcome, simulate

CLUSTER = ClusterConfig(num_instances=4)
INSTANCE = InstanceConfig(enable_prefix_caching=True, total_kv_blocks=400, max_num_seqs=8)
CASES = [(name, "") for name in ROUTERS] + [("weighted", f"{name}:1, active-requests:0.5") for name in SCORERS]
CASES = [case for case in CASES if case[1] != "active-requests:1, active-requests:0.5"]


def jobs() -> list[Job]:
    """Eight families of prompts, which share the first 64 tokens, and ten sessions."""
    made = synthetic(60, 150, seed=3, input_tokens="uniform:70,200", output_tokens="uniform:5,60")
    return [msgspec.structs.replace(job, request=_with_prompt(job)) for job in made]


def _with_prompt(job: Job) -> object:
    number, length = job.request.id, job.request.prompt_tokens
    tokens = [*(1000 * (number % 8) + n for n in range(64)), *(100_000 * (1 + number) + n for n in range(length - 64))]
    return msgspec.structs.replace(job.request, prefix=PromptTokenIds(tuple(tokens)), program=f"p{number % 10}")


@pytest.mark.parametrize(("policy", "scorers"), CASES)
def test_every_router_chooses_alike_whether_or_not_steps_are_skipped(policy: str, scorers: str) -> None:
    routing = RoutingConfig(policy=policy, scorers=scorers)
    fast = simulate(jobs(), CLUSTER, INSTANCE, routing)
    slow = simulate(jobs(), CLUSTER, msgspec.structs.replace(INSTANCE, step_by_step=True), routing)
    assert fast.instance.tolist() == slow.instance.tolist()
    assert fast.finished.tolist() == slow.finished.tolist()
    assert set(fast.outcome.tolist()) == {Outcome.COMPLETED}
    used = set(fast.instance.tolist())
    assert used == ({0} if policy == "always-busiest" else {0, 1, 2, 3})


def test_affinity_computes_what_a_family_shares_only_once() -> None:
    def hits(policy: str, scorers: str = "") -> int:
        return int(simulate(jobs(), CLUSTER, INSTANCE, RoutingConfig(policy=policy, scorers=scorers)).cached_tokens.sum())

    assert hits("weighted", "prefix-affinity:1, active-requests:0.2") == (150 - 8) * 64
    assert hits("power-of-two") < (150 - 8 * 3) * 64, "nearly every instance computes every prefix"


def test_a_session_is_on_one_instance() -> None:
    results = simulate(jobs(), CLUSTER, INSTANCE, RoutingConfig(policy="session-affinity"))
    instances: dict[int, set[int]] = {}
    for number, instance in enumerate(results.instance.tolist()):
        instances.setdefault(number % 10, set()).add(instance)
    assert all(len(used) == 1 for used in instances.values())
