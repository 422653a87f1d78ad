"""Simulated runs, written down as a gateway writes them: a decision log and a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from random import Random

from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass, Request
from maitred.instance import InstanceConfig
from maitred.sim import ClusterConfig, Outcome, Results, simulate
from maitred.study.candidate import Candidate
from maitred.workload import Job
from maitred.workload.formats.maitred import RECORDED_COLUMNS, Measured, format_row
from maitred.workload.trace_writer import csv_line

CLASSES = (PriorityClass.INTERACTIVE, PriorityClass.BULK)
CLUSTER = ClusterConfig(num_instances=2, capacity=8)
INSTANCE = InstanceConfig(max_num_seqs=4)
NO_LIMITS = AdmissionConfig(mode="priority", default_max_class="system")


def mixed_jobs(count: int = 600, every: int = 90_000) -> list[Job]:
    """Return requests of two classes and two tenants, `every` so many µs on average."""
    gap = Random(7).expovariate
    return [
        Job(
            Request(
                id=i,
                arrival=at,
                prompt_tokens=100 + 37 * i % 900,
                max_output_tokens=300,
                client_id=f"r{i}",
                model="m",
                priority_class=CLASSES[i % 3 > 0],
                tenant=("auth:acme", "auth:beta")[i % 2],
            ),
            output_tokens=20 + 53 * i % 160,
        )
        for i, at in enumerate(accumulate(int(gap(1 / every)) for _ in range(count)))
    ]


class Recorder:
    """Passes a workload on, and keeps the requests as they came."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = jobs
        self.seen: dict[int, Request] = {}

    def _keep(self, job: Job) -> Job:
        request = replace(job.request, client_id=job.request.client_id or f"r{job.request.id}")
        self.seen[request.id] = request
        return replace(job, request=request)

    def __iter__(self) -> Iterator[Job]:
        return map(self._keep, self.jobs)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: int) -> Iterable[Job]:
        more = getattr(self.jobs, "on_request_end", lambda *_: ())
        return [self._keep(job) for job in more(request, completed, output_tokens, now)]


def write_run(folder: Path, jobs: Iterable[Job], candidate: Candidate, epoch: int = 1_700_000_000_000_000) -> tuple[Path, Path]:
    """Simulate `jobs`, and return the log and the record of the run."""
    log, record = folder / "decisions.jsonl", folder / "record.csv"
    workload = Recorder(jobs)
    with log.open("wb") as file:
        sections = (candidate.cluster, candidate.instance, candidate.routing, candidate.admission, candidate.programs)
        results = simulate(workload, *sections, log=DecisionLog(file.write))
    record.write_text(csv_line(RECORDED_COLUMNS) + "".join(_rows(results, workload.seen, epoch)))
    return log, record


def _rows(results: Results, requests: dict[int, Request], epoch: int) -> Iterator[str]:
    for i, number in enumerate(results.request_id.tolist()):
        arrival, is_complete = int(results.arrival[i]), results.outcome[i] == Outcome.COMPLETED
        sent, first, end = (int(getattr(results, name)[i]) for name in ("admitted", "first_token", "finished"))
        request = requests[number]
        measured = Measured(
            tokens_from="usage",
            cached_tokens=None,
            backend=f"http://engine-{results.instance[i]}" if results.instance[i] >= 0 else "",
            sent=None if sent < 0 else sent - arrival,
            ttft=first - arrival if first >= 0 and request.stream else None,
            e2e=end - arrival,
            request_id=request.client_id,
        )
        outcome = "completed" if is_complete else "status_429" if results.outcome[i] == Outcome.REJECTED else "broken_off"
        output = int(results.output_tokens[i]) if is_complete else None
        yield format_row(replace(request, arrival=arrival + epoch), request.prompt_tokens, output, outcome, measured=measured)


def candidate(admission: AdmissionConfig = NO_LIMITS, **cluster: int) -> Candidate:
    return Candidate(cluster=replace(CLUSTER, **cluster), instance=INSTANCE, admission=admission)
