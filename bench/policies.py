"""What each policy does to the time to first token, on one trace: the table of docs/policies.md.

    python bench/policies.py                                            # the sample that comes with maitred
    python bench/policies.py --trace mooncake:FILE --speed 2.5 --kv-blocks 27000 100000 400000 --processes 2
    python bench/policies.py --write docs/policies.md                   # into the document, where this trace is
    python bench/policies.py --by-length --write docs/evidence.md       # what pays for short first: a table by length of prompt

All instances are equal and behind a router, there is no admission, and each policy gets the same requests. They arrive
`--speed` times as fast as they were recorded, so that requests wait: where none does, all policies are alike. With one
size of the KV memory the table shows what pays for an order; with several (`--kv-blocks A B C`), what the sizes do to
hit rate, median and tail. `--by-length` shows the shortest third of the prompts, the middle one and the longest
instead.

What a trace lacks is added by a rule, the same for each policy: `max_output_tokens` is the answer's length rounded up
to a power of two, and twice that for every other request, as cautious clients do; of the tenants, the first sends half
of all requests.

The instances keep prefixes (`--no-prefix-caching`: they do not). A policy that needs prefixes is left out where they
are not kept, and where the trace has none. The table says nothing of other traces and other loads; it takes minutes to
make it from your own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice, product
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from maitred import InstanceConfig, Job
from maitred.core.errors import ConfigError, MaitredError
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND, Micros
from maitred.queueing import QueueingConfig
from maitred.sim import ClusterConfig, Results, simulate
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
SHORT_FIRST = (
    "fcfs",
    "sjf",
    "srpt",
    "aged-sjf",
    "bounded(sjf, max_wait=4)",
    "bounded(sjf, max_displacement=30)",
    "hrrn",
)
"""The default policies of `--by-length`."""
TENANTS = ("a", "b", "c", "d")
BEGIN, END = "<!-- made by bench/{} -->", "<!-- end -->"


class Waits(msgspec.Struct, frozen=True):
    """Times to the first token of some requests, in milliseconds."""

    p50: float
    p99: float
    most: float


class Case(msgspec.Struct, frozen=True):
    """One run of one policy. Times are milliseconds to the first token."""

    policy: str
    blocks: int
    hit_rate: float
    """Cached tokens per prompt token."""
    p50: float
    p99: float
    most: float
    classes: dict[str, float]
    """p99 of each class, where there is more than one."""
    thirds: tuple[Waits, Waits, Waits]
    """The third of the requests with the shortest prompts, the middle one, the longest."""
    tenants: float
    """p99 of the tenants that do not send half of all requests."""
    preempted: int


def workload(spec: str, speed: float, most: int | None) -> list[Job]:
    """Return the trace, faster, with what it lacks."""
    rng = Random(0)
    with open_trace(spec) as trace:
        return [_completed(job, speed, rng) for job in islice(trace, most)]


def _completed(job: Job, speed: float, rng: Random) -> Job:
    request = job.request
    allowed = request.max_output_tokens or (1 << (job.output_tokens - 1).bit_length()) * (1 + request.id % 2)
    tenant = request.tenant or (TENANTS[0] if rng.random() < 0.5 else rng.choice(TENANTS[1:]))
    arrival: Micros = round(request.arrival / speed)
    changed = msgspec.structs.replace(request, arrival=arrival, tenant=tenant, max_output_tokens=max(allowed, 1))
    return msgspec.structs.replace(job, request=changed)


def run(case: tuple[int, str], jobs: Sequence[Job], options: argparse.Namespace) -> Case:
    blocks, policy = case
    instance = InstanceConfig(
        scheduler=policy,
        max_num_seqs=options.max_num_seqs,
        total_kv_blocks=blocks,
        enable_prefix_caching=options.prefix_caching,
    )
    results = simulate(jobs, ClusterConfig(num_instances=options.num_instances), instance)
    waits = _ttft_ms(results)
    few = np.array([job.request.tenant != TENANTS[0] for job in jobs])
    present = [c for c in sorted(PriorityClass, reverse=True) if np.any(results.priority_class == c)]
    classes = {c.label: _percentile(waits[results.priority_class == c], 99) for c in present} if len(present) > 1 else {}
    return Case(
        policy=policy,
        blocks=blocks,
        hit_rate=float(results.cached_tokens.sum() / results.prompt_tokens.sum()),
        p50=_percentile(waits, 50),
        p99=_percentile(waits, 99),
        most=_percentile(waits, 100),
        classes=classes,
        thirds=_thirds(waits, results.prompt_tokens),
        tenants=_percentile(waits[few], 99),
        preempted=int(results.preemptions.sum()),
    )


def _ttft_ms(results: Results) -> np.ndarray:
    """Return the milliseconds to the first token; infinite where there was none."""
    waits = (results.first_token - results.arrival) / 1000.0
    return np.where(results.first_token >= results.arrival, waits, np.inf)


def _thirds(waits: np.ndarray, lengths: np.ndarray) -> tuple[Waits, Waits, Waits]:
    shorter, longer = np.percentile(lengths, [100 / 3, 200 / 3])
    parts = waits[lengths <= shorter], waits[(lengths > shorter) & (lengths <= longer)], waits[lengths > longer]
    short, middle, long = (Waits(*(_percentile(part, of) for of in (50, 99, 100))) for part in parts)
    return short, middle, long


def _percentile(waits: np.ndarray, of: float) -> float:
    return float(np.percentile(waits, of)) if len(waits) else np.nan


def table(cases: Sequence[Case]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    sizes = list(dict.fromkeys(case.blocks for case in cases))
    yield from one_size(cases) if len(sizes) == 1 else by_size(cases, sizes)


def one_size(cases: Sequence[Case]) -> Iterator[str]:
    """Yield a row for each policy, with all figures."""
    classes = list(cases[0].classes)
    figures = ["p50", "p99", "longest", *(f"{c} p99" for c in classes), "other tenants p99", "preempted", "hit rate"]
    yield f"| policy | {' | '.join(figures)} |"
    yield "|---|" + "---:|" * len(figures)
    for case in cases:
        spans = [case.p50, case.p99, case.most, *case.classes.values(), case.tenants]
        counts = [f"{ms:,.0f}" for ms in spans] + [str(case.preempted), f"{case.hit_rate:.1%}"]
        yield f"| `{case.policy}` | {' | '.join(counts)} |"


def by_size(cases: Sequence[Case], sizes: Sequence[int]) -> Iterator[str]:
    """Yield a row for each policy, with three figures for each size."""
    yield "| policy |" + "".join(f" {blocks:,} blocks: hit rate | p50 | p99 |" for blocks in sizes)
    yield "|---|" + "---:|" * 3 * len(sizes)
    for policy in dict.fromkeys(case.policy for case in cases):
        found = [f" {c.hit_rate:.1%} | {c.p50:,.0f} | {c.p99:,.0f} |" for c in cases if c.policy == policy]
        yield f"| `{policy}` |" + "".join(found)


def by_length(cases: Sequence[Case]) -> Iterator[str]:
    """Yield a row for each policy, with three figures for each third of the prompts."""
    yield "| policy |" + "".join(f" {third} prompts: p50 | p99 | longest |" for third in ("short", "middle", "long"))
    yield "|---|" + "---:|" * 9
    for case in cases:
        found = [f" {waits.p50:,.0f} | {waits.p99:,.0f} | {waits.most:,.0f} |" for waits in case.thirds]
        yield f"| `{case.policy}` |" + "".join(found)


def described(options: argparse.Namespace, jobs: Sequence[Job], left_out: Sequence[str]) -> Iterator[str]:
    span = jobs[-1].request.arrival / SECOND
    blocks = " or ".join(f"{size:,}" for size in options.kv_blocks)
    fleet = f"{options.num_instances} instance{'s' * (options.num_instances > 1)} of {options.max_num_seqs} sequences"
    what = f"{len(jobs):,} requests of `{name_of(options.trace)}` in {span:,.0f} s (speed {options.speed:g})"
    yield f"Time to first token in ms: {what}, {fleet} and {blocks} KV blocks."
    if left_out:
        yield f"Left out, for nothing is kept in the prefix cache: {', '.join(f'`{policy}`' for policy in left_out)}."


def name_of(trace: str) -> str:
    """Return `sample:NAME`, or the name of the file without format and folder."""
    return trace if trace.startswith("sample:") else Path(trace.rpartition(":")[2]).name


def write(path: Path, maker: str, text: str) -> None:
    """Put `text` into the document, between the two marks of what `maker` makes."""
    document, begin = path.read_text(encoding="utf-8"), BEGIN.format(maker)
    if begin not in document or END not in document.partition(begin)[2]:
        raise SystemExit(f"{path} has no place for it: a line {begin} and a line {END}")
    before, _, rest = document.partition(begin)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def print_or_write(about: str, maker: str, table: Callable[[int], Iterable[str]], size: int, meaning: str) -> None:
    """Be the command line of a script that makes one table: print the lines of `table`, or put them into the document that
    `--write` names. `size` is what `table` is given unless `--size` says otherwise, and `meaning` says what that is."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=size, metavar="N", help=f"{meaning} (default: %(default)s)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document")
    options = parser.parse_args()
    text = "\n".join(table(options.size))
    if options.write:
        write(options.write, maker, text)
    else:
        print(text)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="sample:mixed", help="FORMAT:FILE or sample:NAME (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster than recorded (default: %(default)s)")
    parser.add_argument("--max-requests", type=int, help="only the first N requests")
    parser.add_argument("--num-instances", type=int, default=1)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--kv-blocks", type=int, nargs="+", default=[27_000], help="of 16 tokens, per instance")
    parser.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false", help="nothing is kept for the next")
    parser.add_argument("--processes", type=int, default=1, help="cases at a time (default: %(default)s)")
    parser.add_argument("--policies", nargs="+", metavar="POLICY", help="default: all of the table's")
    parser.add_argument("--by-length", action="store_true", help="a table by length of prompt (one size of the KV memory)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document")
    options = parser.parse_args()
    options.policies = options.policies or list(SHORT_FIRST if options.by_length else POLICIES)
    return options


def needs_prefix_cache(policy: str) -> bool:
    """Return whether the order of `policy` is another one without a prefix cache, or none."""
    try:
        warnings = QueueingConfig(scheduler=policy).warnings(prefix_cache=False)
    except ConfigError:
        return True
    return any("prefix cache, which is off" in line for line in warnings)


def main() -> None:
    options = parse_options()
    try:
        jobs = workload(options.trace, options.speed, options.max_requests)
        kept = options.prefix_caching and any(job.request.prefix is not None for job in jobs)
        left_out = [] if kept or options.by_length else [p for p in options.policies if needs_prefix_cache(p)]
        policies = [p for p in options.policies if p not in left_out]
        cases = []
        with ProcessPoolExecutor(options.processes) as workers:
            for case in workers.map(partial(run, jobs=jobs, options=options), product(options.kv_blocks, policies)):
                cases.append(case)
                print(f"{case.policy}, {case.blocks:,} blocks", file=sys.stderr)
    except MaitredError as error:
        raise SystemExit(f"bench/policies.py: {error}") from error
    text = "\n".join([*described(options, jobs, left_out), "", *(by_length(cases) if options.by_length else table(cases))])
    if options.write:
        write(options.write, f"policies.py: {name_of(options.trace)}", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
