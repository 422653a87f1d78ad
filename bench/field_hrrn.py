"""A field result: what SGLang's `hrrn` did to the time to first token in production, and what a simulation says of it.

    python bench/field_hrrn.py [--seeds 42 43 44] [--write docs/evidence.md]

Recorded (sgl-project/sglang#32911, July 2026): production traffic replayed with 100 requests under way, GLM-5.2 in NVFP4, one
prefill and one decode instance of 8 B200 each. Four orders of the prefill instance's queue; the traffic is not published.

What the scene is made of, and from where:

    100 users, each with one request under way                   said
    20,000 tokens of prompts computed per second, 20 ms a step   what others published of this model on 8 Blackwell GPUs
    16,384 tokens a step                                         SGLang's default there
    a system prompt of 16,384 tokens, shared by all sessions     recorded coding agents: 15,000 at the median
    a prefix cache of 8 million tokens                           a hundred sessions fit: where they do not, fcfs collapses
    25 s from a first token to the next request of a user        FITTED, as is who sends what: `SCENE`

The decode instance is a fixed time here, the same under all four orders. `docs/evidence.md` says what came of it, and what else
was tried.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from maitred import InstanceConfig, LinearLatency, Results, Workload
from maitred.sim import simulate
from maitred.units import MILLISECOND, SECOND
from maitred.workload.spec_clients import Client
from maitred.workload.spec_parts import MultiTurn, Reasoning
from policies import write


class Ttft(msgspec.Struct, frozen=True):
    """Seconds to the first token, and tokens of prompts per second."""

    mean: float
    p50: float
    p90: float
    p99: float
    input_rate: float


RECORDED = {
    "fcfs": Ttft(24.2, 13.43, 50.92, 60.5, 119_023),
    "lpm": Ttft(16.4, 5.6, 32.79, 213.3, 148_458),
    "dfs-weight": Ttft(19.0, 6.98, 45.34, 164.1, 141_790),
    "hrrn": Ttft(7.48, 4.5, 9.64, 55.48, 166_135),
}
USERS = 100
ELSEWHERE = 25 * SECOND
"""From a first token to the next request of the same user: the decode instance, and the user."""
SYSTEM_PROMPT = 16_384
PREFILL_RATE, STEP = 20_000, 20 * MILLISECOND
"""Tokens per second, and what a step takes besides, in µs."""
CHUNK = 16_384
PAGE = 256
"""Tokens. SGLang's is 64 here; the results are alike, and the simulation is faster."""
CACHE = 8_000_000
"""Tokens."""
WARM_UP = 200 * SECOND
"""Requests that come before are not counted: nothing is cached yet."""


class Scene(msgspec.Struct, frozen=True):
    """Who sends what. Lengths as `--input-tokens` has them."""

    growth: str
    """What a turn of a session adds, the answer before it included."""
    cold: int
    """Users who send prompts that share nothing with any other."""
    cold_prompts: str
    small: int
    """Users who send short ones that share nothing: titles, classifications."""
    small_prompts: str
    turns: Sequence[tuple[float, int]] = ((0.45, 2), (0.2, 8), (0.2, 20), (0.15, 40))
    """Of the other users, which share has sessions of how many turns."""
    requests: int = 2_500

    def workload(self, seed: int) -> Workload:
        talking = USERS - self.cold - self.small
        counts = [round(share * talking) for share, _ in self.turns]
        counts[-1] = talking - sum(counts[:-1])
        sessions = [
            _users(f"sessions-of-{turns}", count, self.growth, turns)
            for count, (_, turns) in zip(counts, self.turns, strict=True)
        ]
        others = (("cold", self.cold, self.cold_prompts), ("small", self.small, self.small_prompts))
        single = [_users(name, count, lengths) for name, count, lengths in others if count]
        return Workload(seed=seed, num_requests=self.requests, clients=[*sessions, *single])

    def run(self, policy: str, seed: int) -> Results:
        instance = InstanceConfig(
            scheduler=policy,
            max_num_batched_tokens=CHUNK,
            enable_prefix_caching=True,
            prefix_cache="radix",
            block_size_in_tokens=PAGE,
            total_kv_blocks=CACHE // PAGE,
            latency=LinearLatency((float(STEP), SECOND / PREFILL_RATE, 0.0)),
        )
        return simulate(self.workload(seed).jobs(), instance=instance)


def _users(name: str, count: int, lengths: str, turns: int = 1) -> Client:
    """Users who ask for one token, and some time after that again."""
    talk = MultiTurn(max_rounds=turns, think_time_us=ELSEWHERE, context_growth="accumulate")
    return Client(
        id=name,
        concurrency=count,
        think_time_us=ELSEWHERE,
        timeout=0,
        input_distribution=lengths,
        output_distribution=1,
        prefix_group="agent" if turns > 1 else "",
        prefix_length=SYSTEM_PROMPT if turns > 1 else None,
        reasoning=Reasoning(multi_turn=talk) if turns > 1 else None,
    )


SCENE = Scene(
    growth="lognormal:5500,8250",
    cold=7,
    cold_prompts="lognormal:72000,14400",
    small=20,
    small_prompts="lognormal:3000,3000",
)


def ttft(runs: Sequence[Results]) -> Ttft:
    """Of several runs: the mean of each figure."""
    return Ttft(*np.mean([_figures(results) for results in runs], axis=0).tolist())


def _figures(results: Results) -> list[float]:
    counted = results.arrival >= WARM_UP
    waits = (results.first_token - results.arrival)[counted] / SECOND
    rate = results.prompt_tokens[counted].sum() * SECOND / (results.end - WARM_UP)
    return [waits.mean(), *np.percentile(waits, [50, 90, 99]), rate]


def simulated(seeds: Sequence[int], scene: Scene = SCENE) -> dict[str, Ttft]:
    return {policy: ttft([scene.run(policy, seed) for seed in seeds]) for policy in RECORDED}


def table(found: dict[str, Ttft]) -> Iterator[str]:
    """In Markdown: recorded and simulated beside each other, and both in relation to fcfs."""
    figures = {"TTFT mean": "mean", "p99": "p99", "input tokens/s": "input_rate"}
    yield "| |" + "".join(f" {name}, to fcfs: recorded | simulated | apart |" for name in figures)
    yield "|---|" + "---:|" * 9
    for policy in RECORDED:
        cells: list[str] = []
        for figure in figures.values():
            was, came = (_ratio(of, policy, figure) for of in (RECORDED, found))
            cells += [f"{was:.2f}", f"{came:.2f}", f"{came / was - 1:+.0%}" if policy != "fcfs" else ""]
        yield f"| `{policy}` | {' | '.join(cells)} |"
    yield ""
    yield "| seconds: recorded → simulated | mean | p50 | p90 | p99 | input tokens/s |"
    yield "|---|---:|---:|---:|---:|---:|"
    for policy, recorded in RECORDED.items():
        pairs = zip(msgspec.structs.astuple(recorded), msgspec.structs.astuple(found[policy]), strict=True)
        cells = [f"{was:,.1f} → {came:,.1f}" if was < 1000 else f"{was:,.0f} → {came:,.0f}" for was, came in pairs]
        yield f"| `{policy}` | {' | '.join(cells)} |"


def _ratio(of: dict[str, Ttft], policy: str, figure: str) -> float:
    return float(getattr(of[policy], figure) / getattr(of["fcfs"], figure))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document")
    asked = parser.parse_args()
    text = "\n".join(table(simulated(asked.seeds)))
    if asked.write:
        write(asked.write, "field_hrrn.py", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
