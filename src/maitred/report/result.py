"""`maitred.simulate`, and the result that it returns, for use in programs and notebooks.

    import maitred

    workload = maitred.synthetic(rate=20, num_requests=1_000, class_mix="interactive:1,bulk:2")
    result = maitred.simulate(workload, maitred.ClusterConfig(num_instances=2))
    result.summary().total.ttft.p99     # µs
    result.to_frame()                   # polars, a row per request
    result.report("report.html")

Figures are computed when they are asked for, so one run can be judged by several SLOs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from maitred.admission import AdmissionConfig
from maitred.admission.terms.config import AdmissionMode
from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.programs import ProgramsConfig
from maitred.report import export
from maitred.report.arguments import check_sections, check_seed_and_slo, horizon_of, sample_distance_of
from maitred.report.breakdown import By
from maitred.report.output_file import OutputFile
from maitred.report.page import write_page
from maitred.report.run_setup import RunSetup, derived_keys
from maitred.report.slo import DEFAULT_SLO, Slo
from maitred.report.steady_state import MSER, Warmup, warmup_of
from maitred.report.summary import Summary, summarise
from maitred.report.verdicts import Assessment, assess
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Results
from maitred.sim import simulate as run
from maitred.sim.instance_groups import resolve_fleet
from maitred.workload import Job, Workload, open_trace

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


class Result:
    """A simulated run: its rows, and methods that derive figures, tables and charts from them. It never changes."""

    def __init__(self, rows: Results, setup: RunSetup, slo: Slo) -> None:
        """`slo` is the default for all methods that take an SLO."""
        self.rows = rows
        """One row per request, in columns (numpy). Instants are in µs."""
        self.setup = setup
        """The configuration of the run."""
        self.slo = slo

    def summary(self, slo: Slo | None = None, by: Iterable[By] = By) -> Summary:
        """Return the figures of the run and of its breakdowns. That by class is always included."""
        return summarise(self.rows, self.slo if slo is None else slo, by)

    def assess(self, slo: Slo | None = None, *, warmup: Warmup = MSER) -> Assessment:
        """Return the setup of the run, the share of the instances that it used, its steady state, and verdicts on what is
        wrong with the run.

        `warmup` says what the steady state leaves out: "mser" (MSER-5), "none", or a number of seconds.
        """
        return assess(self.rows, self.summary(slo), self.setup, warmup_of(warmup))

    def to_frame(self) -> pl.DataFrame:
        """Return a row per request, in the order of arrival, with the columns of `report.export`. Raises ConfigError without
        polars."""
        return export.to_frame(self.rows)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the latencies and the panels over time, and write them to `path` (png, svg or pdf, by its suffix) if it is
        given.

        Raises ConfigError without matplotlib, and for a path that cannot be written.
        """
        from maitred.report.figure import draw_run, plot_format, save_figure

        figure = draw_run(self.rows, self.slo)
        if path is not None:
            kind = plot_format(Path(path))
            with OutputFile(Path(path)) as file:
                save_figure(figure, kind, file.write)
        return figure

    def report(self, path: str | Path) -> None:
        """Write the run as one self-contained HTML page. Raises ConfigError for a path that cannot be written."""
        with OutputFile(Path(path)) as file:
            write_page(self.rows, self.summary(), self.setup, file.write)

    def __repr__(self) -> str:
        from maitred.report.table import format_number, format_share

        total = self.summary(by=()).total
        ttft = "no first token" if total.ttft is None else f"TTFT p99 {format_number(total.ttft.p99 / 1000)} ms"
        met = "" if total.attainment is None else f", {format_share(total.attainment)} within SLO"
        return f"<Result: {total.completed:,} of {total.arrived:,} requests completed, {ttft}{met}>"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        from maitred.report.page import notebook_html

        return notebook_html(self.summary(by=()), self.setup)


_SECTIONS: Final = {
    "cluster": ClusterConfig,
    "instance": InstanceConfig,
    "routing": RoutingConfig,
    "admission": AdmissionConfig,
    "programs": ProgramsConfig,
}
"""The arguments of `simulate` behind the workload, in order."""


def simulate(
    workload: Iterable[Job] | Workload | str,
    cluster: ClusterConfig | None = None,
    instance: InstanceConfig | None = None,
    routing: RoutingConfig | None = None,
    admission: AdmissionConfig | None = None,
    programs: ProgramsConfig | None = None,
    *,
    seed: int = 42,
    horizon_secs: float | None = None,
    slo: Slo = DEFAULT_SLO,
    sample_every_ms: float | None = 5.0,
    progress: Callable[[int], None] | None = None,
    log: DecisionLog | None = None,
) -> Result:
    """Run a workload through a simulated cluster until all requests have ended or `horizon_secs` have passed.

    `workload` is an iterable of jobs in the order of arrival (`synthetic(...)`, a trace), a `Workload` (with its own seed; use
    its `jobs(seed=...)` for another), or a trace as the command line names it (`"azure:FILE"`). Sections that are None have
    their defaults. If `admission` is None, the default classes apply if `cluster` limits slots, and otherwise every request may
    enter. If `programs` is None, requests are routed one by one. `slo` is the default of the result's methods. The first
    distance of the samples for charts is `sample_every_ms`, which grows during the run; None takes no samples. `progress` is
    called from time to time with the number of arrived requests. `log` receives the decisions of admission. The same arguments
    give the same result.

    Raises ConfigError for arguments of another type, unknown policies, impossible limits, jobs out of order, a workload that
    was read before, and a trace that cannot be read.
    """
    sections = (cluster, instance, routing, admission, programs)
    check_sections(workload, sections, _SECTIONS)
    check_seed_and_slo(seed, slo)
    horizon, sample_every = horizon_of(horizon_secs), sample_distance_of(sample_every_ms)
    name = workload if isinstance(workload, str) else ""
    stated = instance or InstanceConfig()
    fleet, resolved = resolve_fleet(cluster or ClusterConfig(), stated)
    setup = RunSetup(
        workload=name,
        seed=seed,
        horizon=horizon,
        sections=_sections(fleet, resolved, routing, admission, programs),
        derived=derived_keys(stated, resolved),
    )

    def run_jobs(jobs: Iterable[Job]) -> Result:
        observed_run = partial(run, progress=progress, log=log, sample_every=sample_every, log_itl=True)
        return Result(observed_run(jobs, *sections, seed=seed, horizon=horizon), setup, slo)

    if isinstance(workload, Workload):
        return run_jobs(workload.jobs())
    if not isinstance(workload, str):
        result = run_jobs(workload)
        if isinstance(workload, Iterator) and not len(result.rows):
            hint = "an iterator is read once: give a list, or make it anew"
            raise ConfigError("it has no requests", where="workload", hint=hint)
        return result
    with open_trace(workload) as trace:
        return run_jobs(trace)


def _sections(
    cluster: ClusterConfig | None,
    instance: InstanceConfig,
    routing: RoutingConfig | None,
    admission: AdmissionConfig | None,
    programs: ProgramsConfig | None,
) -> dict[str, msgspec.Struct]:
    """Return the configuration of a run by section, with the defaults filled in."""
    cluster = cluster or ClusterConfig()
    mode: AdmissionMode = "priority" if cluster.limits_slots else "off"
    return {
        "cluster": cluster,
        "instance": instance,
        "routing": routing or RoutingConfig(),
        "admission": admission or AdmissionConfig(mode=mode),
        **({} if programs is None else {"programs": programs}),
    }
