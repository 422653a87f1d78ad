"""`maitred simulate`: a workload on a simulated cluster.

The command only brings people and parts together. Flags become a configuration, a workload and open output files, in this
order, so that a mistake is found before the first event; then the simulation runs, and what came of it is written and
printed. Standard output carries results only, the same bytes for the same run; progress and wall-clock time go to standard
error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

import typer

from maitred.cli.printable import printable
from maitred.cli.simulate_config import configured, of_flag
from maitred.cli.simulate_flags import Flags, command
from maitred.cli.simulate_progress import Watch, watching
from maitred.cli.unwinding import unwinding
from maitred.errors import ConfigError
from maitred.units import Micros, from_ms, from_seconds

if TYPE_CHECKING:
    from maitred.report import OutputFile, Slo, Summary
    from maitred.workload import Job, Trace

_USAGE = "give --trace FORMAT:FILE, or --rate RATE --num-requests N"
_DEFAULT_LENGTHS = "normal:512,256"
_LONGEST = 1e11
"""Of a span that a flag gives, in whatever unit: three thousand years of seconds."""


@command
def run(flags: Flags) -> None:
    """Simulate a cluster under a workload, and print what its users would see.

    The workload is a recorded trace (--trace) or synthetic (--rate and --num-requests).
    """
    from maitred.decisions import DecisionLog
    from maitred.report import summarise, write_metrics, write_requests
    from maitred.sim import simulate

    config, slo, horizon = configured(flags), _slo(flags), _horizon(flags)
    for warning in config.instance.warnings(prefix_cache=config.instance.enable_prefix_caching):
        typer.echo(f"maitred: warning: {printable(warning)}", err=True)
    with unwinding(), ExitStack() as stack:
        trace = stack.enter_context(_trace(flags, flags.trace)) if flags.trace is not None else None
        jobs = _jobs(flags, trace)
        requests_file, metrics_file, log_file = _outputs(flags, trace, stack)
        began = monotonic()
        with _watching(flags, trace) as watch:
            results = simulate(
                jobs,
                config.cluster,
                config.instance,
                config.routing,
                config.admission,
                seed=flags.seed,
                horizon=horizon,
                progress=watch,
                log=DecisionLog(log_file.write) if log_file else None,
            )
        took, summary = monotonic() - began, summarise(results, slo)
        if requests_file:
            write_requests(results, requests_file.write)
        if metrics_file:
            write_metrics(summary, metrics_file.write)
    _print(flags, trace, summary, took)


def _slo(flags: Flags) -> Slo:
    from maitred.report import USUAL_SLO, Slo

    said = Slo(
        ttft=_positive("--slo-ttft-ms", flags.slo_ttft_ms, from_ms),
        tpot=_positive("--slo-tpot-ms", flags.slo_tpot_ms, from_ms),
        e2e=_positive("--slo-e2e-ms", flags.slo_e2e_ms, from_ms),
    )
    return said or USUAL_SLO


def _horizon(flags: Flags) -> Micros | None:
    return _positive("--horizon", flags.horizon, from_seconds)


def _positive(flag: str, value: float | None, convert: Callable[[float], Micros]) -> Micros | None:
    if value is None:
        return None
    if not (0 < value <= _LONGEST and convert(value)):
        raise ConfigError(f"{value:g} cannot be used", where=flag, hint=f"from a microsecond up to {_LONGEST:g}")
    return convert(value)


def _trace(flags: Flags, spec: str) -> Trace:
    from maitred.workload import BadRows, open_trace

    _forbid(flags, "--trace", ("rate", "num_requests", "input_tokens", "output_tokens"))
    if flags.max_requests is not None and flags.max_requests < 0:
        raise ConfigError(f"{flags.max_requests} requests cannot be read", where="--max-requests", hint="0 or more")
    return open_trace(spec, bad_rows=BadRows.SKIP if flags.skip_bad_rows else BadRows.REFUSE)


def _jobs(flags: Flags, trace: Trace | None) -> Iterable[Job]:
    if trace is None:
        return _synthetic(flags)
    from maitred.workload import parse_mix, parse_tenant_mix, reclassed, with_tenants

    jobs: Iterator[Job] = islice(trace, flags.max_requests)
    if flags.class_mix is not None:
        jobs = reclassed(jobs, parse_mix(flags.class_mix, where="--class-mix"), flags.seed)
    if flags.tenant_mix is not None:
        jobs = with_tenants(jobs, parse_tenant_mix(flags.tenant_mix, where="--tenant-mix"), flags.seed)
    return jobs


def _synthetic(flags: Flags) -> Iterator[Job]:
    from maitred.workload import synthetic

    if flags.rate is None and flags.num_requests is None:
        raise ConfigError("there is no workload", hint=_USAGE)
    if flags.rate is None or flags.num_requests is None:
        missing = "--rate" if flags.rate is None else "--num-requests"
        raise ConfigError(f"{missing} is missing", hint=_USAGE)
    _forbid(flags, "--rate", ("max_requests", "skip_bad_rows"))
    try:
        return synthetic(
            flags.rate,
            flags.num_requests,
            seed=flags.seed,
            input_tokens=_DEFAULT_LENGTHS if flags.input_tokens is None else flags.input_tokens,
            output_tokens=_DEFAULT_LENGTHS if flags.output_tokens is None else flags.output_tokens,
            class_mix=flags.class_mix,
            tenant_mix=flags.tenant_mix,
        )
    except ConfigError as error:  # it names the argument, and a flag is called after its argument
        raise of_flag(f"--{error.where.replace('_', '-')}", error) from error


def _forbid(flags: Flags, given: str, others: tuple[str, ...]) -> None:
    for name in others:
        if getattr(flags, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} does not go with {given}", hint=_USAGE)


def _outputs(flags: Flags, trace: Trace | None, stack: ExitStack) -> list[OutputFile | None]:
    from maitred.report import OutputFile

    named = {"--results-path": flags.results_path, "--metrics-path": flags.metrics_path, "--decision-log": flags.decision_log}
    inputs = {"--trace": trace.path if trace else None, "--config": flags.config, "--admission-config": flags.admission_config}
    taken = {os.path.realpath(path): f"{flag} reads" for flag, path in inputs.items() if path and path.is_file()}
    for flag, path in named.items():
        use = f"{flag} writes to"
        other = taken.setdefault(os.path.realpath(path), use) if path else use
        if other != use:
            raise ConfigError(f"{path} is already what {other}", where=flag, hint="name another file")
    return [stack.enter_context(OutputFile(path, where=flag)) if path else None for flag, path in named.items()]


def _watching(flags: Flags, trace: Trace | None) -> AbstractContextManager[Watch | None]:
    if flags.quiet:
        return nullcontext()
    expected = flags.num_requests or flags.max_requests

    def share_done(arrived: int) -> float:
        of_count = arrived / expected if expected else 0.0
        return max(of_count, trace.share_read) if trace else of_count

    return watching(share_done)


def _print(flags: Flags, trace: Trace | None, summary: Summary, took: float) -> None:
    if trace and trace.first_skipped:
        rows = "1 row was" if trace.skipped == 1 else f"{trace.skipped:,} rows were"
        typer.echo(f"maitred: {rows} skipped; the first: {printable(str(trace.first_skipped))}", err=True)
    if flags.quiet:
        return
    from rich.console import Console

    from maitred.report import print_summary

    print_summary(summary, Console())
    arrived = summary.total.arrived
    typer.echo(f"{arrived:,} requests in {took:.1f} s ({arrived / max(took, 1e-3):,.0f}/s)", err=True)
