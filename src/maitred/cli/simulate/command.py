"""`maitred simulate`: a workload on a simulated cluster.

The command only brings people and parts together. Flags become a configuration, a workload and open output files, in this
order, so that a mistake is found before the first event; then the simulation runs, and what came of it is written and
printed. Standard output carries results only, the same bytes for the same run; progress and wall-clock time go to standard
error.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from time import monotonic
from typing import TYPE_CHECKING

import typer

from maitred.cli.flags import command, spelled
from maitred.cli.printable import printable
from maitred.cli.simulate.config import configured, warnings
from maitred.cli.simulate.flags import Flags
from maitred.cli.simulate.objective import horizon, short_horizon, slo
from maitred.cli.simulate.outputs import outputs
from maitred.cli.simulate.progress import Watch, watching
from maitred.cli.simulate.trace_output import written_down
from maitred.cli.simulate.workload import described, jobs_of, opened, specification
from maitred.cli.skipped_rows import report_skipped
from maitred.cli.unwinding import unwinding
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.units import MILLISECOND, Micros

if TYPE_CHECKING:
    from maitred.config import Config
    from maitred.report import By, RunSetup, Summary
    from maitred.workload import Trace


@command(Flags)
def run(flags: Flags) -> None:
    """Simulate a cluster under a workload, and print what its users would see.

    The workload is a recorded trace (--trace), a file that describes clients (--workload-spec), or one stream of requests
    (--rate and --num-requests).
    """
    from maitred.core.decisions import DecisionLog
    from maitred.report import By, StreamingSummary, fitness, parse_weights, summarise
    from maitred.sim import simulate

    config, workload, last, per = configured(flags), specification(flags), horizon(flags), _per(flags)
    weights = None if flags.fitness_weights is None else parse_weights(flags.fitness_weights, where="--fitness-weights")
    _warn([*warnings(flags, config), *short_horizon(flags)])
    with unwinding(), ExitStack() as stack:
        trace = stack.enter_context(opened(flags)) if flags.trace is not None else None
        targets = slo(flags, trace or workload)
        tally = StreamingSummary(targets, [*By] if flags.metrics_path else [per]) if flags.summary_only else None
        jobs = jobs_of(flags, trace, workload)
        files = outputs(flags, trace, stack)
        written = stack.enter_context(written_down(flags, jobs))
        began = monotonic()
        with _watching(flags, trace) as watch:
            results = written.results = simulate(
                written.jobs,
                config.cluster,
                config.instance,
                config.routing,
                config.admission,
                seed=flags.run_seed,
                horizon=last,
                progress=watch,
                log=DecisionLog(files.decisions.write) if files.decisions else None,
                sink=tally.add if tally else None,
                sample_every=5 * MILLISECOND if files.charts else None,
                log_itl=tally is None,
            )
        took = monotonic() - began
        by = [*By] if flags.metrics_path or flags.report else [per]
        summary = tally.summary(results) if tally else summarise(results, targets, by)
        score = None if weights is None else fitness(summary, weights)
        files.write(flags, results, summary, _setup(flags, config, last), score)
    _print(flags, trace, summary, per, took)
    if score is not None and not flags.quiet:
        made_of = ", ".join(f"{name} {value:.4f}" for name, value in score.components.items())
        typer.echo(f"fitness {score.score:.4f} ({made_of})")


def _per(flags: Flags) -> By:
    from maitred.report import By

    if flags.per is None:
        return By.CLASS
    if flags.per not in [*By]:
        raise ConfigError(
            f"there is no breakdown {flags.per!r}", where="--per", hint=nearest_name_hint(flags.per, [by.value for by in By])
        )
    return By(flags.per)


def _setup(flags: Flags, config: Config, last: Micros | None) -> RunSetup:
    from maitred.instance.catalogue import resolve_instance
    from maitred.report import RunSetup

    sections = {name: getattr(config, name) for name in ("cluster", "instance", "routing", "admission")}
    return RunSetup(
        workload=described(flags),
        command=spelled("simulate", flags),
        seed=flags.run_seed,
        horizon=last,
        sections={**sections, "instance": resolve_instance(config.instance)},
    )


def _watching(flags: Flags, trace: Trace | None) -> AbstractContextManager[Watch | None]:
    if flags.quiet:
        return nullcontext()
    expected = flags.num_requests or flags.max_requests

    def share_done(arrived: int) -> float:
        of_count = arrived / expected if expected else 0.0
        return max(of_count, trace.fraction_read) if trace else of_count

    return watching(share_done)


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        typer.echo(f"maitred: warning: {printable(warning)}", err=True)


def _print(flags: Flags, trace: Trace | None, summary: Summary, per: By, took: float) -> None:
    _warn(summary.warnings)
    if trace:
        report_skipped(trace)
    if flags.quiet:
        return
    from rich.console import Console

    from maitred.report import print_summary

    print_summary(summary, Console(), per)
    arrived = summary.total.arrived
    typer.echo(f"{arrived:,} requests in {took:.1f} s ({arrived / max(took, 1e-3):,.0f}/s)", err=True)
