"""`maitred simulate`: a workload on a simulated cluster.

The command only brings people and parts together. Flags become a configuration, a workload and open output files, in this
order, so that a mistake is found before the first event; then the simulation runs, and what came of it is written and
printed. Standard output carries results only, the same bytes for the same run; progress and wall-clock time go to standard
error.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from time import monotonic
from typing import TYPE_CHECKING

import typer

from maitred.cli.flags import command
from maitred.cli.printable import printable
from maitred.cli.simulate.config import configured, warnings
from maitred.cli.simulate.flags import Flags
from maitred.cli.simulate.objective import horizon, slo
from maitred.cli.simulate.outputs import outputs
from maitred.cli.simulate.progress import Watch, watching
from maitred.cli.simulate.synthetic import specification
from maitred.cli.simulate.trace_output import written_down
from maitred.cli.simulate.workload import jobs_of, opened
from maitred.cli.unwinding import unwinding

if TYPE_CHECKING:
    from maitred.report import Summary
    from maitred.workload import Trace


@command(Flags)
def run(flags: Flags) -> None:
    """Simulate a cluster under a workload, and print what its users would see.

    The workload is a recorded trace (--trace), a file that describes clients (--workload-spec), or one stream of requests
    (--rate and --num-requests).
    """
    from maitred.decisions import DecisionLog
    from maitred.report import summarise, write_metrics, write_requests
    from maitred.sim import simulate

    config, workload, last = configured(flags), specification(flags), horizon(flags)
    targets = slo(flags, workload)
    for warning in warnings(flags, config):
        typer.echo(f"maitred: warning: {printable(warning)}", err=True)
    with unwinding(), ExitStack() as stack:
        trace = stack.enter_context(opened(flags, flags.trace)) if flags.trace is not None else None
        jobs = jobs_of(flags, trace, workload)
        requests_file, metrics_file, log_file = outputs(flags, trace, stack)
        jobs = stack.enter_context(written_down(flags, jobs))
        began = monotonic()
        with _watching(flags, trace) as watch:
            results = simulate(
                jobs,
                config.cluster,
                config.instance,
                config.routing,
                config.admission,
                seed=flags.run_seed,
                horizon=last,
                progress=watch,
                log=DecisionLog(log_file.write) if log_file else None,
            )
        took, summary = monotonic() - began, summarise(results, targets)
        if requests_file:
            write_requests(results, requests_file.write)
        if metrics_file:
            write_metrics(summary, metrics_file.write)
    _print(flags, trace, summary, took)


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
