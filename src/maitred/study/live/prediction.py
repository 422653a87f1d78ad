"""Prediction: the requests of a measured run simulated on a cluster, and the error of each figure.

The simulation gets the workload as it was sent, with the tokens that the endpoint counted: a prompt that the endpoint found
longer is longer in the simulation too, and an answer that ended early is as short there. Requests that did not complete keep
what was asked for. In a closed loop the arrivals are the simulation's own, because they follow from its answers.

Figures are those of `maitred validate`, for all requests and for each class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

import numpy as np
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.table import Table

from maitred.core.errors import ConfigError
from maitred.core.request import RequestId
from maitred.report.breakdown import By, split_by
from maitred.report.request_statistics import request_latencies
from maitred.report.table import format_number
from maitred.sim import Outcome, Results, simulate
from maitred.study.calibration.validation import Validation, compare_latencies
from maitred.study.candidate import Candidate
from maitred.workload import Job
from maitred.workload.transforms import map_jobs

_ALL = "all"


def _simulate_on(candidate: Candidate, jobs: Iterable[Job], seed: int) -> Results:
    return simulate(
        jobs,
        candidate.cluster,
        candidate.instance,
        candidate.routing,
        candidate.admission,
        candidate.programs,
        seed=seed,
    )


def predict(jobs: Iterable[Job], candidate: Candidate, measured: Results, *, seed: int) -> Iterator[Validation]:
    """Simulate `jobs`, which were sent in the run `measured`, and yield the errors for all requests, then for each class.

    Raises ConfigError if no request completed in either.
    """
    predicted = _simulate_on(candidate, as_measured(jobs, measured), seed)
    for name, results in (("measured", measured), ("simulated", predicted)):
        if not (results.outcome == Outcome.COMPLETED).any():
            raise ConfigError(f"no request completed in the {name} run", where="--predict", hint="there is nothing to compare")
    yield _compared(_ALL, measured, predicted)
    of_class = dict(split_by(predicted, By.CLASS))
    classes = [(name, part, of_class[name]) for name, part in split_by(measured, By.CLASS) if name in of_class]
    if len(classes) > 1:
        yield from (_compared(name, part, other) for name, part, other in classes)


def prediction_table(found: Sequence[Validation]) -> Table:
    """Return measured and predicted figures side by side, with the error of each."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("predicted beside measured", "requests", "measured", "predicted", "error"):
        table.add_column(name, justify="left" if name == "requests" or not table.columns else "right")
    for group in found:
        for line in group.lines:
            figures = (format_number(line.measured), format_number(line.predicted), f"{line.error:+.1%}")
            table.add_row(f"{line.metric.upper()} {line.statistic} ms", group.name, *figures)
        table.add_section()
    return table


def _measured_tokens(measured: Results) -> dict[RequestId, tuple[int, int]]:
    """Return the tokens of prompt and answer of the completed requests, by id."""
    rows = np.flatnonzero(measured.outcome == Outcome.COMPLETED)
    columns = (measured.request_id, measured.prompt_tokens, measured.output_tokens)
    return {number: (prompt, output) for number, prompt, output in zip(*(c[rows].tolist() for c in columns), strict=True)}


def as_measured(jobs: Iterable[Job], measured: Results) -> Iterable[Job]:
    """Return `jobs` with the tokens that were measured, as far as they were sent."""
    tokens = _measured_tokens(measured)
    sent = set(measured.request_id.tolist())

    def changed(job: Job) -> Job:
        found = tokens.get(job.request.id)
        if found is None:
            return job
        return replace(job, request=replace(job.request, prompt_tokens=max(1, found[0])), output_tokens=max(1, found[1]))

    mapped = map_jobs(jobs, changed)
    # A run that was stopped early has sent the first jobs of an open loop only.
    return mapped if mapped is not iter(mapped) else takewhile(lambda job: job.request.id in sent, mapped)


def _compared(name: str, measured: Results, predicted: Results) -> Validation:
    return compare_latencies(name, len(measured), request_latencies(measured), request_latencies(predicted))
