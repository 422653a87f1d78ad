"""The workload of a run, written as a trace while it happens, and completed with what came of it when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from maitred.cli.simulate.flags import Flags
from maitred.cli.trace_target import TraceTarget

if TYPE_CHECKING:
    from maitred.sim import Results
    from maitred.workload import Job


class Written:
    """A workload that is written down, or not."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = jobs
        """To be simulated."""
        self.results: Results | None = None
        """What came of it, to be said before the block ends."""


@contextmanager
def written_down(flags: Flags, jobs: Iterable[Job]) -> Iterator[Written]:
    """The file is there when the block ends well."""
    written, target = Written(jobs), target_of(flags)
    if target is None:
        yield written
        return
    from maitred.report import measured_lookup
    from maitred.workload import RecordingWorkload, RequestMeasurement

    nowhere = None if flags.summary_only else RequestMeasurement(-1, -1, 0, "not_arrived")

    with target, TemporaryFile("w+", encoding="utf-8", errors="surrogatepass", newline="\n") as rows:
        written.jobs = kept = RecordingWorkload(jobs, target.writer, rows.write)
        yield written
        kept.close()
        assert written.results is not None
        happened = measured_lookup(written.results)
        rows.seek(0)
        for row in rows:
            target.write(target.writer.with_measurement(row, lambda number: happened(number) or nowhere))
    target.report_losses()


def target_of(flags: Flags) -> TraceTarget | None:
    """What --trace-output names; None: nothing. Raises ConfigError."""
    return None if flags.trace_output is None else TraceTarget(_named(flags.trace_output), where="--trace-output")


def _named(said: str) -> str:
    """BLIS says what its two files are called without their endings."""
    if ":" in said or not said:
        return said
    return f"blis:{said}" if said.endswith((".csv", ".csv.gz")) else f"blis:{said}.csv"
