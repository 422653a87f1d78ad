"""The serving experiment of the ThunderAgent paper, simulated: throughput over the number of agent programs at once.

    python bench/programs_paper.py                                          # print the table
    python bench/programs_paper.py --write docs/evidence.md                 # put it into the document
    python bench/programs_paper.py --plot docs/images/programs_paper.svg    # draw it

The paper (arXiv 2602.13692, figures 4a, 5a and 10a) runs mini-SWE agents on GLM-4.6, one node of 8 H100: N programs at once, a
new one when one ends, and counts steps (a response and its tool) from minute 10 to 70. Here the same is done to a simulated
instance: without awareness of programs (`--router default`; with one instance that is vLLM by itself), by ThunderAgent's rules
as documented (`flavour: thunderagent`), and by ours, also with each estimator of acting programs.

What the paper does not publish was fitted, by hand and to `default` at N = 24 and N = 96 alone (throughput, hit rate):

    step time      16 ms + 33 µs per prefill token + 0.33 ms per decode token: 222 steps/min at N = 24; the prefill rate sets
                   the 140 at N = 96
    context        3,300 tokens that all programs share (hit rate 30 % at N = 96, where nothing else is found any more), about
                   700 of the task, 250 per response and 120 per tool in 15 to 50 turns
    tool times     0.15 s in the median, 8 s in the 99th percentile, 60 s at most (the paper's limit)

The KV memory (27,283 blocks of 16 tokens) is that of ThunderAgent's sample configuration for this model and these GPUs. All
other figures are predictions: where the knee is, how deep the fall, and everything of `thunderagent` and `ours`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from maitred import ClusterConfig, InstanceConfig, LinearLatency, Results
from maitred.core.units import SECOND
from maitred.programs import ProgramsConfig
from maitred.sim import Outcome, simulate
from maitred.workload.synthetic import agent_programs
from policies import write

PAPER: Final[Mapping[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "tests/vectors/thunderagent_paper.json").read_text(encoding="utf-8")
)
PROGRAMS: Final[Sequence[int]] = PAPER["programs"]
SEEDS: Final = (1,)
WARM_UP, MINUTES = 10, 70
"""The paper counts from minute 10 to minute 70."""
KV_BLOCKS: Final = 27_283
VARIANTS: Final[Mapping[str, ProgramsConfig]] = {
    "default": ProgramsConfig(mode="default"),
    "thunderagent": ProgramsConfig(mode="tr", flavour="thunderagent"),
    "ours": ProgramsConfig(mode="tr"),
    "ours, fixed": ProgramsConfig(mode="tr", acting_estimator="fixed"),
    "ours, decay": ProgramsConfig(mode="tr", acting_estimator="decay"),
}
_MINUTE: Final = 60 * SECOND
_KINDS: Final = {"steps_per_minute": "steps/min", "hit_percent": "KV hits %", "step_latency_s": "step s"}


class Figures(msgspec.Struct, frozen=True):
    """Of one run, or the means of several."""

    steps_per_minute: float
    hit_percent: float
    """Of the prompt tokens, those found in the KV memory."""
    step_latency_s: float
    """From the time at which a request may go until it has ended."""
    pauses: float
    """Per minute."""


def run(variant: str, programs: int, seed: int, *, scale: float = 1.0, minutes: int = MINUTES) -> Results:
    """Simulate a node with `scale` times the KV memory of the paper's."""
    jobs = agent_programs(
        programs,
        num_programs=1_000_000,  # more than there is time for
        seed=seed,
        turns="uniform:15,50",
        prefix_tokens=3_300,
        start_tokens="lognormal:700,500",
        input_tokens="lognormal:120,200",
        output_tokens="lognormal:250,150",
        tool_time_ms="quantiles:150,1000,8000,60000",
    )
    instance = InstanceConfig(
        total_kv_blocks=round(KV_BLOCKS * scale),
        enable_prefix_caching=True,
        max_num_batched_tokens=8_192,
        latency=LinearLatency((16_000.0, 33.0, 330.0)),
    )
    config = VARIANTS[variant]
    return simulate(jobs, ClusterConfig(), instance, programs=config, seed=seed, horizon=minutes * _MINUTE)


def measure(results: Results, *, warm_up: int = WARM_UP, minutes: int = MINUTES) -> Figures:
    """Return the figures of the time after the warm-up."""
    counted = (results.finished >= warm_up * _MINUTE) & (results.outcome == Outcome.COMPLETED)
    assert results.programs is not None, "every variant schedules programs"
    return Figures(
        steps_per_minute=float(counted.sum()) / (minutes - warm_up),
        hit_percent=100 * float(results.cached_tokens[counted].sum() / results.prompt_tokens[counted].sum()),
        step_latency_s=float((results.finished - results.queued)[counted].mean()) / SECOND,
        pauses=float(results.programs.pauses.sum()) / minutes,
    )


def _measure_case(case: tuple[str, int, int]) -> Figures:
    return measure(run(*case))


def measure_all(processes: int) -> dict[tuple[str, int], Figures]:
    """Return the figures of each variant with each number of programs: means over the seeds."""
    cases = list(product(VARIANTS, PROGRAMS, SEEDS))
    with ProcessPoolExecutor(processes) as pool:
        measured = dict(zip(cases, pool.map(_measure_case, cases), strict=True))
    means = {}
    for variant, programs in product(VARIANTS, PROGRAMS):
        of_seeds = [msgspec.structs.astuple(measured[variant, programs, seed]) for seed in SEEDS]
        means[variant, programs] = Figures(*np.mean(of_seeds, axis=0).tolist())
    return means


def table(means: Mapping[tuple[str, int], Figures]) -> Iterator[str]:
    """In Markdown."""
    columns = " | ".join(f"{label}: paper | simulated" for label in _KINDS.values())
    yield f"| programs | scheduler | {columns} | pauses/min |"
    yield "|---:|---|" + "---:|" * 7
    for programs, variant in product(PROGRAMS, VARIANTS):
        figures = means[variant, programs]
        cells = [str(programs), variant]
        for kind in _KINDS:
            of_paper = PAPER[kind].get(variant)
            printed = (
                "" if of_paper is None else f"{of_paper[PROGRAMS.index(programs)]:.{0 if kind == 'steps_per_minute' else 1}f}"
            )
            simulated = getattr(figures, kind)
            cells += [printed, f"{simulated:.{0 if kind == 'steps_per_minute' else 1}f}"]
        yield f"| {' | '.join([*cells, f'{figures.pauses:.1f}'])} |"


def draw(means: Mapping[tuple[str, int], Figures], path: Path) -> None:
    """Draw throughput, hit rate and latency over the number of programs: lines are simulated, marks are the paper's."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "programs_paper"  # or the same figures give other bytes each time
    import matplotlib.pyplot as plt

    colours = {"default": "tab:red", "thunderagent": "tab:blue", "ours": "tab:green"}
    figure, axes = plt.subplots(1, len(_KINDS), figsize=(11, 3.4), layout="constrained")
    for axis, (kind, label) in zip(axes, _KINDS.items(), strict=True):
        for variant, colour in colours.items():
            simulated = [getattr(means[variant, programs], kind) for programs in PROGRAMS]
            axis.plot(PROGRAMS, simulated, color=colour, label=f"{variant}, simulated")
            if variant in PAPER[kind]:
                axis.plot(PROGRAMS, PAPER[kind][variant], color=colour, marker="o", linestyle=":", label=f"{variant}, paper")
        axis.set_xlabel("programs at once")
        axis.set_title(label)
        axis.set_xticks(PROGRAMS)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize="small", loc="lower left")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", nargs="+", help="put the table into these documents")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it into this file")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time (default: %(default)s)")
    options = parser.parse_args()
    means = measure_all(options.processes)
    text = "\n".join(table(means))
    for document in options.write or ():
        write(document, "programs_paper.py", text)
    if not options.write:
        print(text)
    if options.plot:
        draw(means, options.plot)


if __name__ == "__main__":
    main()
