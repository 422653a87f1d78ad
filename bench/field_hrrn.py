"""A field result: the effect of SGLang's `hrrn` on the time to first token in production, and in a simulation.

    python bench/field_hrrn.py [--seeds 42 90] [--write docs/evidence.md]

The record (sgl-project/sglang#32911, July 2026) is production traffic replayed with 100 requests in flight: GLM-5.2 in NVFP4,
one prefill and one decode instance of 8 B200 each, and four policies of the prefill instance. The traffic is not published.

`field_scene.py` has traffic in its place, and says which of its parameters are known and which are fitted. The script prints
the four policies beside the record, and the six ratios (mean and p99 of each policy, to fcfs) for other values of every fitted
parameter. It takes a few minutes. `docs/evidence.md` has the conclusions, and the scenes that were tried before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from field_scene import Scene
from maitred import Results
from maitred.core.units import SECOND
from policies import write


class TtftFigures(msgspec.Struct, frozen=True):
    """Time to first token in seconds, and prompt tokens per second."""

    mean: float
    p50: float
    p90: float
    p99: float
    input_rate: float


RECORDED = {
    "fcfs": TtftFigures(24.2, 13.43, 50.92, 60.5, 119_023),
    "lpm": TtftFigures(16.4, 5.6, 32.79, 213.3, 148_458),
    "dfs-weight": TtftFigures(19.0, 6.98, 45.34, 164.1, 141_790),
    "hrrn": TtftFigures(7.48, 4.5, 9.64, 55.48, 166_135),
}
BASE, *OTHERS = RECORDED
FITTED = ("first_prompt", "turns", "single", "single_prompt", "open_talks", "spread", "cache", "requests")
VARIED_SEEDS = 16
"""How many of the seeds are used for each variation."""


def ttft(results: Results) -> TtftFigures:
    """Return the figures of all requests, including the first ones, which meet an empty cache."""
    waits = (results.first_token - results.arrival) / SECOND
    rate = results.prompt_tokens.sum() * SECOND / results.end
    return TtftFigures(*(float(figure) for figure in (waits.mean(), *np.percentile(waits, [50, 90, 99]), rate)))


def mean(runs: Sequence[TtftFigures]) -> TtftFigures:
    """Return the mean of each figure over several runs."""
    return TtftFigures(*np.mean([msgspec.structs.astuple(run) for run in runs], axis=0).tolist())


def simulated(scene: Scene, seeds: Sequence[int], orders: Mapping[str, str] | None = None) -> dict[str, list[TtftFigures]]:
    """Run the scene once per seed and policy. `orders` replaces the policy that is run for a name."""
    return {policy: [ttft(scene.run((orders or {}).get(policy, policy), seed)) for seed in seeds] for policy in RECORDED}


def ratio(of: Mapping[str, TtftFigures], policy: str, figure: str) -> float:
    return float(getattr(of[policy], figure) / getattr(of[BASE], figure))


def deviation(found: Mapping[str, TtftFigures], policy: str, figure: str) -> float:
    """Return the relative deviation of the simulated ratio from the recorded one."""
    return ratio(found, policy, figure) / ratio(RECORDED, policy, figure) - 1


def ratios(runs: Mapping[str, Sequence[TtftFigures]]) -> Iterator[str]:
    """Yield the recorded and simulated ratios to fcfs, in Markdown."""
    found = {policy: mean(of) for policy, of in runs.items()}
    yield "| to `fcfs` | | recorded | simulated | apart | 8 of 10 runs are within |"
    yield "|---|---|---:|---:|---:|---:|"
    for name, figure in (("TTFT mean", "mean"), ("TTFT p99", "p99"), ("input tokens/s", "input_rate")):
        for policy in OTHERS:
            was, came, off = ratio(RECORDED, policy, figure), ratio(found, policy, figure), deviation(found, policy, figure)
            each = [ratio(dict(zip(runs, run, strict=True)), policy, figure) for run in zip(*runs.values(), strict=True)]
            low, high = np.percentile(each, [10, 90])
            yield f"| {name} | `{policy}` | {was:.2f} | {came:.2f} | {off:+.0%} | {low:.2f} – {high:.2f} |"


def seconds(runs: Mapping[str, Sequence[TtftFigures]]) -> Iterator[str]:
    """Yield the recorded and simulated seconds, in Markdown."""
    yield "| seconds: recorded → simulated | mean | p50 | p90 | p99 | input tokens/s |"
    yield "|---|---:|---:|---:|---:|---:|"
    for policy, recorded in RECORDED.items():
        pairs = zip(msgspec.structs.astuple(recorded), msgspec.structs.astuple(mean(runs[policy])), strict=True)
        cells = [f"{was:,.1f} → {came:,.1f}" if was < 1000 else f"{was:,.0f} → {came:,.0f}" for was, came in pairs]
        yield f"| `{policy}` | {' | '.join(cells)} |"


def variations(seeds: Sequence[int], scene: Scene) -> Iterator[str]:
    """Yield the six ratios for other values of each parameter, in Markdown."""
    columns = [(policy, figure) for figure in ("mean", "p99") for policy in OTHERS]
    yield f"| {len(seeds)} seeds | {' | '.join(f'{figure} `{policy}`' for policy, figure in columns)} | farthest apart |"
    yield "|---|" + "---:|" * (len(columns) + 1)
    yield f"| recorded | {' | '.join(f'{ratio(RECORDED, *column):.2f}' for column in columns)} | |"
    for name, run in _variants(seeds, scene):
        found = {policy: mean(of) for policy, of in run().items()}
        cells = " | ".join(f"{ratio(found, *column):.2f}" for column in columns)
        yield f"| {name} | {cells} | {max((deviation(found, *column) for column in columns), key=abs):+.0%} |"


def _variants(seeds: Sequence[int], scene: Scene) -> Iterator[tuple[str, Callable[[], dict[str, list[TtftFigures]]]]]:
    def of(**changed: float) -> Callable[[], dict[str, list[TtftFigures]]]:
        return lambda: simulated(replace(scene, **changed), seeds)

    yield "the scene", of()
    for name in FITTED:
        default = getattr(scene, name)
        for factor, sign in ((0.9, "−"), (1.1, "+")):
            value = type(default)(round(default * factor, 4))
            yield f"`{name}` {sign}10 %: {value:,}", of(**{name: value})
    for agents in (1, 2, 4):
        yield f"`agents` {agents}", of(agents=agents)
    for times in (2, 4):
        yield f"`requests` {times * scene.requests:,}", of(requests=times * scene.requests)
    yield "pages of 64", of(page=64)
    yield (
        "SGLang's own orders, tie for tie",
        lambda: simulated(scene, seeds, {policy: f"sglang({policy})" for policy in OTHERS}),
    )


def tables(seeds: Sequence[int]) -> Iterator[str]:
    scene = Scene()
    runs = simulated(scene, seeds)
    yield from ratios(runs)
    yield ""
    yield from seconds(runs)
    yield ""
    yield from variations(seeds[:VARIED_SEEDS], scene)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=(42, 90), metavar=("FIRST", "END"), help="from FIRST to below END"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this document")
    asked = parser.parse_args()
    text = "\n".join(tables(range(*asked.seeds)))
    if asked.write:
        write(asked.write, "field_hrrn.py", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
