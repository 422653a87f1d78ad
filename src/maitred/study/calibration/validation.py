"""Validation: the errors of simulated TTFT, TPOT and E2E against measured ones, at their mean and quantiles.

**A timeline** (`validate`). Latencies of a timeline of the engine count from its wait queue. Those that clients have seen count
from the instant of sending, and the simulated ones from their arrival: with what a request waits outside the engine (α of the
latency model).

**A run at a live endpoint** (`predict`), whose requests are simulated on a cluster, with an error of each figure for all
requests and for each class. The simulation gets the workload as it was sent, with the tokens that the endpoint counted: a
prompt that the endpoint found longer is longer in the simulation too, and an answer that ended early is as short there.
Requests that did not complete keep what was asked for. In an open loop they arrive when they were sent, and latencies count
from the plan as those measured do: a millisecond decides which step a prompt is part of. In a closed loop the arrivals are the
simulation's own, because they follow from its answers.

Example: planned for 0.100 s, sent at 0.102 s. The simulated request arrives at 0.102 s and has its first token at 0.130 s: the
predicted TTFT is 30 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.request import RequestId
from maitred.core.units import MILLISECOND, SECOND
from maitred.files import read_input
from maitred.instance import InstanceConfig
from maitred.report.breakdown import By, split_by
from maitred.report.request_statistics import latency_statistics, request_latencies
from maitred.sim import Outcome, Results, simulate
from maitred.study.calibration.measurements import MeasuredRequest, timeline_jobs
from maitred.study.calibration.regression import Floats
from maitred.study.candidate import Candidate
from maitred.workload import Job, ReactiveWorkload
from maitred.workload.transforms import map_jobs

METRICS = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p90", "p99")
NO_PEERS: Mapping[tuple[str, str], float] = {}
_PEER = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "Latency"}, {"mean": "Mean", "p50": "Median", "p90": "P90", "p99": "P99"}


class ValidationLine(msgspec.Struct, frozen=True):
    """One statistic of one metric, in ms."""

    metric: str
    statistic: str
    measured: float
    predicted: float
    peer_error: float | None = None
    """The error of another simulator's prediction, if it is known."""

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1


class Validation(msgspec.Struct, frozen=True):
    """The errors for one configuration."""

    name: str
    requests: int
    lines: Sequence[ValidationLine]

    @property
    def mean_error(self) -> float:
        """Mean of the absolute errors."""
        return sum(abs(line.error) for line in self.lines) / len(self.lines)

    @property
    def worst_error(self) -> float:
        return max(abs(line.error) for line in self.lines)

    @property
    def peer(self) -> tuple[float, float] | None:
        """The peer's mean and worst error over the same lines, or None if they are not known."""
        errors = [abs(line.peer_error) for line in self.lines if line.peer_error is not None]
        return (sum(errors) / len(errors), max(errors)) if errors else None


def validate(name: str, rows: Sequence[MeasuredRequest], instance: InstanceConfig, peer: Path | None = None) -> Validation:
    """Simulate the requests of `rows` in one `instance`, and compare. Raises ConfigError if some cannot run there."""
    results = simulate(timeline_jobs(rows), instance=instance)
    refused = int(np.count_nonzero(results.outcome != Outcome.COMPLETED))
    if refused:
        hint = "is it the configuration that was measured? max_model_len and total_kv_blocks limit a request"
        raise ConfigError(f"{refused} of {len(rows)} requests cannot be served by this configuration", where=name, hint=hint)
    since = results.arrival if rows[0].seen_by_client else results.queued
    measured, predicted = _measured_latencies(rows), request_latencies(replace(results, arrival=since))
    return compare_latencies(name, len(rows), measured, predicted, {} if peer is None else peer_errors(peer))


def compare_latencies(
    name: str,
    requests: int,
    measured: Mapping[str, Floats],
    predicted: Mapping[str, Floats],
    peers: Mapping[tuple[str, str], float] = NO_PEERS,
) -> Validation:
    """Return the errors of `predicted`, both in µs by metric. A metric that either side lacks is left out."""
    lines = []
    for metric in METRICS:
        of_measured, of_predicted = (latency_statistics(side[metric]) for side in (measured, predicted))
        for which in STATISTICS if of_measured is not None and of_predicted is not None else ():
            truth, guess = (getattr(of, which) / MILLISECOND for of in (of_measured, of_predicted))
            # A TPOT of 0 means that tokens came together. There is no error relative to 0.
            if truth:
                lines.append(ValidationLine(metric, which, truth, guess, peers.get((metric, which))))
    return Validation(name, requests, lines)


def _measured_latencies(rows: Sequence[MeasuredRequest]) -> dict[str, Floats]:
    """Return the measured latencies in µs. A request with a single token has no TPOT, as in vLLM's benchmarks."""
    return {
        "ttft": SECOND * np.array([row.ttft for row in rows]),
        "tpot": SECOND * np.array([row.tpot for row in rows if row.output_tokens > 1]),
        "e2e": SECOND * np.array([row.latency for row in rows]),
    }


def peer_errors(path: Path) -> dict[tuple[str, str], float]:
    """Read the table that LLMServingSim prints (`TTFT Mean  65456.6  65820.2  +0.6%`); empty if there is none."""
    if not path.exists():
        return {}
    metrics, statistics = _PEER
    found = {}
    for metric, word in metrics.items():
        for statistic, name in statistics.items():
            row = re.search(rf"^{word} {name}\s+([\d.]+)\s+([\d.]+)", read_input(path).decode(), re.MULTILINE)
            if row:
                found[metric, statistic] = float(row[2]) / float(row[1]) - 1
    return found


def validation_builtins(validation: Validation) -> dict[str, object]:
    """Return the validation for JSON: times in ms, errors as shares of 1."""
    peer = validation.peer
    return {
        "name": validation.name,
        "requests": validation.requests,
        "mean_error": validation.mean_error,
        "worst_error": validation.worst_error,
        "peer_mean_error": None if peer is None else peer[0],
        "peer_worst_error": None if peer is None else peer[1],
        "lines": [{**msgspec.to_builtins(line), "error": line.error} for line in validation.lines],
    }


def predict(jobs: Iterable[Job], candidate: Candidate, measured: Results, *, seed: int) -> Iterator[Validation]:
    """Simulate `jobs`, which were sent in the run `measured`, and yield the errors for all requests, then for each class.

    Raises ConfigError if no request completed in either.
    """
    sent = as_measured(jobs, measured)
    predicted = candidate.simulate(sent, seed=seed)
    if isinstance(sent, list):
        # The arrivals that the measured latencies count from.
        planned = dict(zip(measured.request_id.tolist(), measured.arrival.tolist(), strict=True))
        arrival = np.array([planned[number] for number in predicted.request_id.tolist()], dtype=np.int64)
        predicted = replace(predicted, arrival=arrival)
    for name, results in (("measured", measured), ("simulated", predicted)):
        if not (results.outcome == Outcome.COMPLETED).any():
            raise ConfigError(f"no request completed in the {name} run", where="--predict", hint="there is nothing to compare")
    yield _compared("all", measured, predicted)
    of_class = dict(split_by(predicted, By.CLASS))
    classes = [(name, part, of_class[name]) for name, part in split_by(measured, By.CLASS) if name in of_class]
    if len(classes) > 1:
        yield from (_compared(name, part, other) for name, part, other in classes)


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
    arrived = ((job, sent_at[job.request.id]) for job in takewhile(lambda job: job.request.id in sent_at, mapped))
    sent = [job if at < 0 else replace(job, request=replace(job.request, arrival=at)) for job, at in arrived]
    return sorted(sent, key=lambda job: (job.request.arrival, job.request.id))


def _compared(name: str, measured: Results, predicted: Results) -> Validation:
    return compare_latencies(name, len(measured), request_latencies(measured), request_latencies(predicted))
