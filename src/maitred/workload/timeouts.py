"""How long clients wait for an answer before they leave, said for a whole workload in place of what it says itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from maitred.errors import ConfigError
from maitred.units import Micros, from_seconds
from maitred.workload.changed import changed
from maitred.workload.job import Job

LONGEST_SECS: Final = 1e9
"""Thirty years."""


def with_timeout(jobs: Iterable[Job], seconds: float, *, where: str = "") -> Iterable[Job]:
    """The same jobs, each to be answered within so many seconds of its arrival; 0: whenever. A reactive workload stays one.

    Raises ConfigError, said of `where`, for what is no such time.
    """
    if not (seconds == 0 or 1e-6 <= seconds <= LONGEST_SECS):
        hint = f"seconds from a microsecond to {LONGEST_SECS:g}; 0: clients do not leave"
        raise ConfigError(f"{seconds:g} cannot be used", where=where, hint=hint)
    span: Micros | None = from_seconds(seconds) or None

    def patient(job: Job) -> Job:
        deadline = None if span is None else job.request.arrival + span
        return Job(replace(job.request, deadline=deadline), job.output_tokens, job.whole)

    return changed(jobs, patient)
