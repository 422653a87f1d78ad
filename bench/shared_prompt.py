"""What each router does with conversations that share a long system prompt: the table of docs/routing.md.

    python bench/shared_prompt.py [--write docs/routing.md]

The prompt of each turn is 2,800 tokens of one system prompt, and of its conversation up to 1,200. So what all conversations
share is most of every prompt, and a router for which no load outweighs a prefix sends all of them to one instance. There are
two instances of 8 sequences. Turns arrive at 30 per second (Poisson), which both carry together and neither alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from maitred import ClusterConfig, InstanceConfig, Job, Request, RoutingConfig
from maitred.kv.block_hashes import PromptTokenIds
from maitred.sim import simulate
from policies import print_or_write
from router_effect import row

SYSTEM, TURN, MAX_TURNS, OUTPUT = 2_800, 200, 6, 40
"""Tokens of the system prompt, of a turn, turns that a conversation keeps, tokens of an answer."""
RATE, CONVERSATIONS, INSTANCES = 30.0, 400, 2
UNBOUNDED = "balance_abs_threshold=inf"
CASES = (
    ("least-loaded", ""),
    ("session-affinity", ""),
    ("consistent-hashing", ""),
    ("cache-aware", ""),
    (f"cache-aware({UNBOUNDED})", ""),
    ("cache-aware(balance_abs_threshold=64)", ""),
    ("prefix-hash", ""),
    ("prefix-hash(load_factor=1, balance_abs_threshold=0)", ""),
    (f"prefix-hash({UNBOUNDED})", ""),
    ("weighted", "prefix-affinity:1, active-requests:1"),
    ("weighted", "prefix-affinity:2, load-balance:1"),
    (f"weighted({UNBOUNDED})", "prefix-affinity:2, load-balance:1"),
    ("weighted", ""),
)


def workload(turns: int) -> list[Job]:
    """Return so many turns of all conversations. One that is full begins anew."""
    rng, now, next_token = Random(0), 0.0, SYSTEM
    said: list[tuple[int, ...]] = [()] * CONVERSATIONS
    jobs = []
    for number in range(turns):
        now += rng.expovariate(RATE)
        speaker = rng.randrange(CONVERSATIONS)
        before = said[speaker] if len(said[speaker]) < MAX_TURNS * TURN else ()
        said[speaker] = (*before, *range(next_token, next_token + TURN))
        next_token += TURN
        prompt = (*range(SYSTEM), *said[speaker])
        request = Request(
            id=number, arrival=int(now * 1e6), prompt_tokens=len(prompt), program=f"{speaker}", prefix=PromptTokenIds(prompt)
        )
        jobs.append(Job(request, OUTPUT))
    return jobs


def table(jobs: Sequence[Job]) -> Iterator[str]:
    load = f"{len(jobs):,} turns of {CONVERSATIONS} conversations with one system prompt, {RATE:g} per second"
    yield f"Times in ms: {load}, {INSTANCES} instances of 8 sequences."
    yield ""
    yield "| policy | scorers | TTFT p50 | TTFT p99 | E2E p50 | hit rate | busiest / mean |"
    yield "|---|---|" + "---:|" * 5
    instance = InstanceConfig(enable_prefix_caching=True, total_kv_blocks=20_000, max_num_seqs=8, latency="linear:8000,20,300")
    for policy, scorers in CASES:
        routing = RoutingConfig(policy=policy, scorers=scorers)
        results = simulate(jobs, ClusterConfig(num_instances=INSTANCES), instance, routing)
        yield row(policy, scorers, INSTANCES, results)


if __name__ == "__main__":
    print_or_write(
        __doc__, "shared_prompt.py", lambda turns: table(workload(turns)), size=3_000, meaning="turns of all conversations"
    )
