"""Prediction: the requests of a measured run simulated on a cluster, and the error of each figure.

The simulation gets the workload as it was sent, with the tokens that the endpoint counted: a prompt that the endpoint found
longer is longer in the simulation too, and an answer that ended early is as short there. Requests that did not complete keep
what was asked for. In an open loop they arrive when they were sent, and latencies count from the plan as those measured do: a
millisecond decides which step a prompt is part of. In a closed loop the arrivals are the simulation's own, because they follow
from its answers.

Example: planned for 0.100 s, sent at 0.102 s. The simulated request arrives at 0.102 s and has its first token at 0.130 s: the
predicted TTFT is 30 ms.

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
from maitred.core.units import Micros
from maitred.report.breakdown import By, split_by
from maitred.report.request_statistics import request_latencies
from maitred.report.table import format_number
from maitred.sim import Outcome, Results, simulate
from maitred.study.calibration.validation import Validation, compare_latencies
from maitred.study.candidate import Candidate
from maitred.workload import Job, ReactiveWorkload
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
    sent = as_measured(jobs, measured)
    predicted = _simulate_on(candidate, sent, seed)
    if isinstance(sent, list):
        predicted = _from_plan(predicted, measured)
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
    """Return `jobs` with the tokens that were measured; those of an open loop as a list, as far as and when they were sent."""
    tokens = _measured_tokens(measured)
    sent_at = dict(zip(measured.request_id.tolist(), measured.queued.tolist(), strict=True))

    def changed(job: Job) -> Job:
        found = tokens.get(job.request.id)
        if found is None:
            return job
        return replace(job, request=replace(job.request, prompt_tokens=max(1, found[0])), output_tokens=max(1, found[1]))

    mapped = map_jobs(jobs, changed)
    if isinstance(mapped, ReactiveWorkload):
        return mapped
    # A run that was stopped early has sent the first jobs only.
    sent = [_sent(job, sent_at[job.request.id]) for job in takewhile(lambda job: job.request.id in sent_at, mapped)]
    return sorted(sent, key=lambda job: (job.request.arrival, job.request.id))


def _sent(job: Job, at: Micros) -> Job:
    return job if at < 0 else replace(job, request=replace(job.request, arrival=at))


def _from_plan(predicted: Results, measured: Results) -> Results:
    """Return the prediction with the arrivals that the measured latencies count from."""
    planned = dict(zip(measured.request_id.tolist(), measured.arrival.tolist(), strict=True))
    return replace(predicted, arrival=np.array([planned[number] for number in predicted.request_id.tolist()], dtype=np.int64))


def _compared(name: str, measured: Results, predicted: Results) -> Validation:
    return compare_latencies(name, len(measured), request_latencies(measured), request_latencies(predicted))
