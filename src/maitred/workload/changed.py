"""A workload with each job changed as it comes, reactive if it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from maitred.request import Request
from maitred.units import Micros
from maitred.workload.job import Job
from maitred.workload.reactive import Reactive

Change: TypeAlias = Callable[[Job], Job]
"""Leaves id, arrival and program as they are."""


def changed(jobs: Iterable[Job], change: Change) -> Iterable[Job]:
    return _Changed(jobs, change) if isinstance(jobs, Reactive) else map(change, jobs)


class _Changed:
    def __init__(self, jobs: Reactive, change: Change) -> None:
        self._jobs = jobs
        self._change = change

    def __iter__(self) -> Iterator[Job]:
        return map(self._change, self._jobs)

    def ended(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        return [self._change(job) for job in self._jobs.ended(request, completed, output_tokens, now)]
