"""The contract of workers, and who is hired for which wish."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias

import msgspec

from maitred.core.errors import ConfigError, MaitredError

TaskFunction: TypeAlias = Callable[[bytes], bytes]
"""A function of a module, which other processes can import."""

MAX_ATTEMPTS: Final = 3
"""How often a run may lose its worker."""


class CompletedTask(msgspec.Struct, frozen=True):
    """A task that is done."""

    index: int
    """Which of those that were given."""
    result: bytes


class LostWorkersError(MaitredError):
    """A run lost its worker again and again."""

    def __init__(self) -> None:
        super().__init__(
            f"a run lost its worker {MAX_ATTEMPTS} times: is there memory enough for so many at once (fewer --jobs)? "
            "A script that calls it needs: if __name__ == '__main__'"
        )


class Workers(Protocol):
    """To be used in a `with`; when the block ends, however it ends, they are gone."""

    def run(self, tasks: Sequence[bytes]) -> Iterator[CompletedTask]:
        """Every task once, as they are done. Raises LostWorkersError."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def available_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_workers(work: TaskFunction, *, jobs: int | None, ray: str | None = None) -> Workers:
    """`jobs` at a time on this machine (1: in this process; None: one for each core), or on the Ray cluster at `ray`, as many
    as it has CPUs.

    Raises ConfigError for what cannot be, and for a cluster that is not there.
    """
    if ray is not None:
        from maitred.study.workers.cluster import RayWorkers

        return RayWorkers(work, ray)
    if jobs is not None and not 1 <= jobs <= 1024:
        raise ConfigError(f"{jobs} processes cannot be used", where="--jobs", hint="1 or more, such as one for each core")
    count = available_cores() if jobs is None else jobs
    if count == 1:
        from maitred.study.workers.here import InProcessWorkers

        return InProcessWorkers(work)
    from maitred.study.workers.local import ProcessWorkers

    return ProcessWorkers(work, count)
