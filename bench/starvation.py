"""Longest prefix first, under load: what it gains, what starves, and what a ceiling changes. A table of
docs/policies.md.

    python bench/starvation.py [--write docs/policies.md]

There are two scenes, with one instance each. The prompts of a family share all but the end of 2,048 tokens (three
blocks of 512). They come faster than they can be served, for as long as requests come at all. Between them come cold
requests, which share nothing.

`fits`: the cache holds all families, so they hit in any order. What differs is which requests wait: under lpm the cold ones do,
    until the surge is over.
`thrashes`: the cache does not hold all families. In the order of arrival a family is evicted before it is asked for again; lpm
    serves those first that are still cached, so more is served.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import msgspec
import numpy as np

from maitred import InstanceConfig, Job
from maitred.core.request import Request
from maitred.core.units import SECOND
from maitred.sim import Results, simulate
from maitred.workload.prefix_keys import ChainedBlockIds
from policies import print_or_write

BLOCK, BLOCKS = 512, 4
"""Tokens in a block, blocks in a prompt."""
ANSWER = 8
"""Output tokens."""
COLD = 1_000_000
"""Requests with ids from here on are cold."""
LASTS_SECS = 30
"""Seconds in which requests come."""


class Scene(msgspec.Struct, frozen=True):
    """The requests that come, and the instance that they come to."""

    families: int
    hot: float
    """Requests per second, of all families."""
    cold: float
    """Requests per second."""
    kv_blocks: int
    max_wait: float
    """The ceiling that is tried, in seconds."""

    @property
    def bounded(self) -> str:
        return f"bounded(lpm, max_wait={self.max_wait:g})"

    @property
    def policies(self) -> Sequence[str]:
        return ("fcfs", "lpm", self.bounded, "hrrn")

    def jobs(self, lasts_secs: int) -> list[Job]:
        """Return the requests of so many seconds."""
        random, jobs, now = Random(0), list[Job](), 0.0
        while (now := now + random.expovariate(self.hot + self.cold)) < lasts_secs:
            own = (self.families + len(jobs)) * BLOCKS
            if random.random() * (self.hot + self.cold) < self.cold:
                jobs.append(_job(COLD + len(jobs), now, range(own, own + BLOCKS)))
            else:
                shared = random.randrange(self.families) * BLOCKS
                jobs.append(_job(len(jobs), now, [*range(shared, shared + BLOCKS - 1), own]))
        return jobs

    def run(self, policy: str, lasts_secs: int = LASTS_SECS) -> Results:
        instance = InstanceConfig(scheduler=policy, max_num_seqs=32, total_kv_blocks=self.kv_blocks, enable_prefix_caching=True)
        return simulate(self.jobs(lasts_secs), instance=instance)


SCENES = {
    "fits": Scene(families=8, hot=95, cold=3, kv_blocks=6_000, max_wait=8),
    "thrashes": Scene(families=60, hot=80, cold=6, kv_blocks=7_000, max_wait=12),
}


def _job(number: int, seconds: float, ids: Sequence[int]) -> Job:
    tokens, at = BLOCK * BLOCKS, round(seconds * SECOND)
    return Job(Request(id=number, arrival=at, prompt_tokens=tokens, prefix=ChainedBlockIds(tuple(ids), tokens, BLOCK)), ANSWER)


def hit_rate(results: Results) -> float:
    """Return the cached tokens per prompt token."""
    return float(results.cached_tokens.sum() / results.prompt_tokens.sum())


def ttft(results: Results, of: np.ndarray, percentile: float) -> float:
    """Return the seconds to the first token of the requests that the mask `of` selects."""
    return float(np.percentile((results.first_token - results.arrival)[of], percentile)) / SECOND


def table(lasts_secs: int) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    yield "| scene | policy | hit rate | cold p50 | p99 | hot p50 | p99 | longest wait | all served after |"
    yield "|---|---|" + "---:|" * 7
    for name, scene in SCENES.items():
        for policy in scene.policies:
            results = scene.run(policy, lasts_secs)
            cold = results.request_id >= COLD
            spans = [ttft(results, of, percentile) for of in (cold, ~cold) for percentile in (50, 99)]
            spans += [float((results.scheduled - results.arrival).max()) / SECOND, results.end / SECOND]
            yield f"| {name} | `{policy}` | {hit_rate(results):.1%} | {' | '.join(f'{s:.1f}' for s in spans)} |"


if __name__ == "__main__":
    print_or_write(__doc__, "starvation.py", table, size=LASTS_SECS, meaning="seconds in which requests come")
