"""Job: a request together with the true length of its answer, which no policy may know.

A workload is an iterator of jobs in the order of arrival. A *reactive* workload cannot name all of its jobs in advance: a
session continues after the previous answer, and a closed loop sends a request when another one has ended. Such a workload
yields the jobs that come whatever happens; the driver reports every request that ends, and gets the jobs that follow. The
driver (`maitred.sim`) merges them into the arrivals in the order of (arrival, id).

Example: a session of two rounds with 2 s of thinking. The workload yields the first round, at 0 s. Its answer is complete at
3.5 s; the driver reports that, and gets the second round with the arrival 5.5 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.request import PrefixKeys, Request
from maitred.core.units import Micros


class Job(msgspec.Struct, frozen=True, gc=False):
    """One arrival of a workload."""

    request: Request
    output_tokens: int
    """Tokens of the answer, at least 1: where the model will end the sequence."""
    conversation_prefix: PrefixKeys | None = None
    """The content of prompt and answer together, or None if no later request contains the answer. Its keys begin with those of
    the prompt."""
    think_time: Micros | None = None
    """µs from the end of the previous request of its program to this one, or None if the workload does not say. The arrival is
    what counts; a trace that is written keeps it for closed-loop replays."""


class RepeatableJobs:
    """Jobs that are made anew each time they are read."""

    def __init__(self, make: Callable[[], Iterable[Job]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Job]:
        return iter(self._make())


class ReadOnce:
    """The base of workloads that change as they are read, and so can be read only once."""

    _is_read = False

    def begin_reading(self) -> None:
        """Note that the workload is about to be read. Raises ConfigError if it was read before."""
        if self._is_read:
            raise read_before()
        self._is_read = True


def no_job(given: object) -> ConfigError:
    """Return the error of a workload that yields something else than jobs."""
    return ConfigError(f"the workload has a {type(given).__name__} in place of a job", hint="Job(Request(...), output_tokens)")


def check_whole_numbers(job: Job) -> None:
    """Raise ConfigError unless id, arrival, deadline and lengths of a job are whole numbers."""
    request = job.request
    given = {"arrival": request.arrival, "prompt_tokens": request.prompt_tokens, "output_tokens": job.output_tokens}
    given |= {"max_output_tokens": request.max_output_tokens or 0, "deadline": request.deadline or 0, "id": request.id}
    for name, value in given.items():
        if type(value) is not int:
            what = f"request {request.id} has {name} {value!r} ({type(value).__name__})"
            raise ConfigError(what, hint="a whole number (int): arrivals and deadlines are µs, lengths are tokens")


def read_before() -> ConfigError:
    """Return the error of a workload that is read a second time."""
    return ConfigError("the workload was read before, and can be read once", hint="make it anew for each run, or keep a list")


@runtime_checkable
class ReactiveWorkload(Protocol):
    """A workload in which later jobs follow from the ends of earlier requests.

    Iteration and `on_request_end` happen in the order of time: `on_request_end(..., now)` comes after the jobs that arrived
    before `now`.
    """

    def __iter__(self) -> Iterator[Job]: ...

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        """Return the jobs that follow from the end of `request` at `now`.

        `completed` says that the answer is complete; otherwise the request was rejected, dropped, aborted or timed out after
        `output_tokens` tokens. The jobs arrive at `now` or later. Their ids differ from those of all other jobs of this
        workload, past and future.
        """
        ...


@runtime_checkable
class ProgramWorkload(Protocol):
    """A workload that knows which of its programs are over."""

    def is_program_over(self, program: str) -> bool:
        """Return whether no request of a program of which one has just ended will come any more."""
        ...


def is_program_over(jobs: Iterable[Job], program: str) -> bool:
    """Return whether `jobs` knows that no more requests of `program` will come."""
    return isinstance(jobs, ProgramWorkload) and jobs.is_program_over(program)
