"""The workload of a run, written as a trace while it happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from maitred.cli.simulate.flags import Flags
from maitred.cli.trace_target import TraceTarget

if TYPE_CHECKING:
    from maitred.workload import Job


@contextmanager
def written_down(flags: Flags, jobs: Iterable[Job]) -> Iterator[Iterable[Job]]:
    """`jobs`, as they are to be simulated. The file is there when the block ends well."""
    target = target_of(flags)
    if target is None:
        yield jobs
        return
    from maitred.workload import Kept

    with target:
        kept = Kept(jobs, target.writer, target.write)
        yield kept
        kept.close()
    target.report_losses()


def target_of(flags: Flags) -> TraceTarget | None:
    """What --trace-output names; None: nothing. Raises ConfigError."""
    return None if flags.trace_output is None else TraceTarget(_named(flags.trace_output), where="--trace-output")


def _named(said: str) -> str:
    """BLIS says what its two files are called without their endings."""
    if ":" in said or not said:
        return said
    return f"blis:{said}" if said.endswith((".csv", ".csv.gz")) else f"blis:{said}.csv"
