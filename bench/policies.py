"""What each policy does to the time to first token, on one trace: the table of docs/policies.md.

    python bench/policies.py                                            # the sample that comes with maitred
    python bench/policies.py --trace mooncake:conversation_trace.jsonl.gz --speed 4 --num-instances 8
    python bench/policies.py --write docs/policies.md                   # into the document

Equal instances behind a router, no admission, each policy on the same requests. Arrivals come `--speed` times as fast as they
were recorded, so that somebody waits: where nobody does, all policies are alike. The KV memory is varied (`--kv-blocks A B C`).
What a trace lacks is given to it by a rule, the same for each policy: `max_output_tokens`, the answer's length rounded up to
a power of two and, for every other request, twice that, as clients do who play safe; and a tenant, the first of which sends
half of all requests.

A policy that needs the prefix cache is left out as long as the instances have none. The table says nothing of other traces and
other loads; it takes a minute to make it from one's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from maitred import ClusterConfig, InstanceConfig, Job, Results, simulate
from maitred.errors import MaitredError
from maitred.queueing import QueueingConfig
from maitred.request import PriorityClass
from maitred.units import SECOND, Micros
from maitred.workload import open_trace

POLICIES = (
    "fcfs",
    "sjf",
    "bounded(sjf, max_wait=2)",
    "bounded(sjf, max_displacement=30)",
    "aged-sjf",
    "lof",
    "srpt(hint)",
    "srpt",
    "slo",
    "vtc",
    "random",
    "priority-fcfs(inverted-slo)",
    "lpm",
    "bounded(lpm)",
    "vtc(lpm, slack=20000)",
    "hrrn",
    "dfs-weight",
    "shortest-prefill-first",
)
TENANTS = ("a", "b", "c", "d")
BEGIN, END = "<!-- made by bench/policies.py -->", "<!-- end -->"


class Case(msgspec.Struct, frozen=True):
    """One run of one policy. Times are milliseconds to the first token."""

    policy: str
    blocks: int
    p50: float
    p99: float
    most: float
    classes: dict[str, float]
    """p99 of each class, where there is more than one."""
    tenants: float
    """p99 of the tenants that do not send half of all requests."""
    preempted: int


def workload(spec: str, speed: float, most: int | None) -> list[Job]:
    """The trace, faster, with what it lacks."""
    rng = Random(0)
    with open_trace(spec) as trace:
        return [_given(job, speed, rng) for job in islice(trace, most)]


def _given(job: Job, speed: float, rng: Random) -> Job:
    request = job.request
    allowed = request.max_output_tokens or (1 << (job.output_tokens - 1).bit_length()) * (1 + request.id % 2)
    tenant = request.tenant or (TENANTS[0] if rng.random() < 0.5 else rng.choice(TENANTS[1:]))
    arrival: Micros = round(request.arrival / speed)
    changed = msgspec.structs.replace(request, arrival=arrival, tenant=tenant, max_output_tokens=max(allowed, 1))
    return msgspec.structs.replace(job, request=changed)


def run(policy: str, blocks: int, jobs: Sequence[Job], asked: argparse.Namespace) -> Case:
    instance = InstanceConfig(scheduler=policy, max_num_seqs=asked.max_num_seqs, total_kv_blocks=blocks)
    results = simulate(jobs, ClusterConfig(num_instances=asked.num_instances), instance)
    waits = _waits(results)
    few = np.array([job.request.tenant != TENANTS[0] for job in jobs])
    present = [c for c in sorted(PriorityClass, reverse=True) if np.any(results.priority_class == c)]
    classes = {c.label: _percentile(waits[results.priority_class == c], 99) for c in present} if len(present) > 1 else {}
    return Case(
        policy=policy,
        blocks=blocks,
        p50=_percentile(waits, 50),
        p99=_percentile(waits, 99),
        most=_percentile(waits, 100),
        classes=classes,
        tenants=_percentile(waits[few], 99),
        preempted=int(results.preemptions.sum()),
    )


def _waits(results: Results) -> np.ndarray:
    """Milliseconds to the first token; infinite where there was none."""
    waits = (results.first_token - results.arrival) / 1000.0
    return np.where(results.first_token >= results.arrival, waits, np.inf)


def _percentile(waits: np.ndarray, of: float) -> float:
    return float(np.percentile(waits, of)) if len(waits) else np.nan


def table(cases: Sequence[Case]) -> Iterator[str]:
    """In Markdown."""
    classes = list(cases[0].classes)
    figures = ["KV blocks", "p50", "p99", "longest", *(f"{c} p99" for c in classes), "other tenants p99", "preempted"]
    yield f"| policy | {' | '.join(figures)} |"
    yield "|---|" + "---:|" * len(figures)
    for case in cases:
        spans = [case.p50, case.p99, case.most, *case.classes.values(), case.tenants]
        yield f"| `{case.policy}` | {case.blocks:,} | {' | '.join(f'{ms:,.0f}' for ms in spans)} | {case.preempted} |"


def described(asked: argparse.Namespace, jobs: Sequence[Job], left_out: Sequence[str]) -> Iterator[str]:
    span = jobs[-1].request.arrival / SECOND
    name = asked.trace if asked.trace.startswith("sample:") else Path(asked.trace).name
    yield (
        f"Time to first token in ms: {len(jobs):,} requests of `{name}` in {span:,.0f} s (speed {asked.speed:g}), "
        f"{asked.num_instances} instance{'s' * (asked.num_instances > 1)} of {asked.max_num_seqs} sequences."
    )
    if left_out:
        yield f"Left out, for the instances have no prefix cache: {', '.join(f'`{policy}`' for policy in left_out)}."


def write(path: Path, text: str) -> None:
    """Into the document, between its two marks."""
    document = path.read_text(encoding="utf-8")
    if BEGIN not in document or END not in document.partition(BEGIN)[2]:
        raise SystemExit(f"{path} has no place for it: a line {BEGIN} and a line {END}")
    before, _, rest = document.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="sample:mixed", help="FORMAT:FILE or sample:NAME (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster than recorded (default: %(default)s)")
    parser.add_argument("--max-requests", type=int, help="only the first so many")
    parser.add_argument("--num-instances", type=int, default=1)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--kv-blocks", type=int, nargs="+", default=[27_000], help="of 16 tokens, per instance")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), metavar="POLICY")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document")
    return parser.parse_args()


def main() -> None:
    asked = options()
    try:
        left_out = [p for p in asked.policies if QueueingConfig(scheduler=p).needs_prefix_cache()]
        jobs = workload(asked.trace, asked.speed, asked.max_requests)
        cases = []
        for blocks in asked.kv_blocks:
            for policy in asked.policies:
                if policy not in left_out:
                    cases.append(run(policy, blocks, jobs, asked))
                    print(f"{policy}, {blocks:,} blocks", file=sys.stderr)
    except MaitredError as error:
        raise SystemExit(f"bench/policies.py: {error}") from error
    text = "\n".join([*described(asked, jobs, left_out), "", *table(cases)])
    if asked.write:
        write(asked.write, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
