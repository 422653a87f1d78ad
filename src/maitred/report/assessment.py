"""Assessment: what a run was, how much of the instances it used, and what is wrong with it; and how it is printed.

The line of `run_setup` stands above the tables of a run, the use of the instances (`utilisation`) and the verdicts (`verdicts`)
below them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import Console

from maitred.report.breakdown import By
from maitred.report.run_setup import RunSetup
from maitred.report.summary import Summary
from maitred.report.table import format_number, format_share, print_summary
from maitred.report.utilisation import Utilisation, measure_utilisation
from maitred.report.verdicts import Verdict, find_verdicts
from maitred.sim import Results


class Assessment(msgspec.Struct, frozen=True):
    """What a run was, how much of the instances it used, and what is wrong with it."""

    simulated: str
    utilisation: Utilisation
    verdicts: tuple[Verdict, ...]


def assess(results: Results, summary: Summary, setup: RunSetup) -> Assessment:
    """Return what a run was and what to think of it. Queues and KV are judged by the samples of `results`, if it has any."""
    used = measure_utilisation(results, summary.total, summary.all_instances.utilisation, setup)
    return Assessment(setup.in_one_line(), used, tuple(find_verdicts(results, summary, setup)))


def print_run(summary: Summary, assessment: Assessment, console: Console, per: By = By.CLASS) -> None:
    """Print what was simulated, the tables (`table.print_summary`), the use of the instances, and the verdicts."""
    console.print(assessment.simulated, style="dim", highlight=False, markup=False)
    print_summary(summary, console, per)
    for line in utilisation_lines(assessment.utilisation):
        console.print(line, style="dim", highlight=False, markup=False)
    if assessment.verdicts:
        console.print()
    for verdict in assessment.verdicts:
        console.print(f"! {verdict.text}", style="yellow", highlight=False, markup=False)


def utilisation_lines(used: Utilisation) -> list[str]:
    """Return the use of the instances in sentences."""
    if used.with_work is None:
        return []
    return [_batch_line(used), *_output_line(used)]


def _batch_line(used: Utilisation) -> str:
    first = f"Instances: with work {used.with_work:.0%} of the time"
    if used.batch is not None:
        first += (
            f", batch {format_share(used.batch)} full, KV {format_share(used.kv)} used ({format_share(used.kv_peak)} at most)"
        )
    return f"{first}."


def _output_line(used: Utilisation) -> Iterator[str]:
    """Yield a sentence about the output beside its limit, if there is one."""
    if used.output_rate is not None and used.output_limit and used.arrival_rate and used.limit:
        share = used.output_rate / used.output_limit
        yield (
            f"Output: {format_number(used.output_rate)} tokens/s while requests arrived, {share:.0%} of what full batches "
            f"could make of this traffic ({format_number(used.output_limit)}/s); {format_number(used.arrival_rate)} requests/s "
            f"arrived, the limit is {format_number(used.limit)}/s: headroom {used.limit / used.arrival_rate:.2f}."
        )
