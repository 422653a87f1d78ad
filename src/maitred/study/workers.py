"""Workers: the processes that make the runs of a study, in this process, on this machine, or on a Ray cluster.

All of them give the same results; only the order in which results come differs. If a worker dies, only its own run is lost, and
another worker repeats it, `MAX_ATTEMPTS` times at most, because the run itself may be what kills its workers.

`ProcessWorkers` has a pipe to each process. A dead process ends its pipe, which says which run it had. The pools of the
standard library and of loky cannot say that: when one worker of two was killed among six tasks, `ProcessPoolExecutor` and loky
failed five of them, one on the healthy worker included, while here one task was repeated. After Ctrl-C, `ProcessPoolExecutor`
returned only when its running tasks of 8 s had ended, 8 s later; here, and with loky, it took 0.1 s.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import msgspec

from maitred.core.errors import ConfigError, MaitredError, describe_read_error, missing_library

TaskFunction: TypeAlias = Callable[[bytes], bytes]
"""A function of a module, so that other processes can import it."""

MAX_ATTEMPTS: Final = 3
"""How often a run is tried if it loses its worker."""
_PATIENCE_SECS: Final = 5.0
_FLAG: Final = "--ray"
_context = get_context("spawn")


class CompletedTask(msgspec.Struct, frozen=True):
    """A task that is done."""

    index: int
    """The index of the task among those that were given."""
    result: bytes


class LostWorkersError(MaitredError):
    """A run lost its worker `MAX_ATTEMPTS` times."""

    def __init__(self) -> None:
        super().__init__(
            f"a run lost its worker {MAX_ATTEMPTS} times: is there memory enough for so many at once (fewer --jobs)? "
            "A script that calls it needs: if __name__ == '__main__'"
        )


class Workers(ABC):
    """Workers to be used in a `with`. When the block ends, in whatever way, they are gone."""

    @abstractmethod
    def run(self, tasks: Sequence[bytes]) -> Iterator[CompletedTask]:
        """Yield every task once, in the order in which they complete. Raises LostWorkersError."""

    @abstractmethod
    def close(self) -> None:
        """End the workers, and what they work on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_workers(function: TaskFunction, *, jobs: int | None, ray: str | None = None) -> Workers:
    """Return workers for `jobs` tasks at a time on this machine, or for the Ray cluster at `ray`.

    `jobs` 1 means this process, None one process for each core. On a Ray cluster as many tasks run at a time as it has CPUs.
    Raises ConfigError for an impossible number of jobs, and for a cluster that cannot be reached.
    """
    if ray is not None:
        return RayWorkers(function, ray)
    if jobs is not None and not 1 <= jobs <= 1024:
        raise ConfigError(f"{jobs} processes cannot be used", where="--jobs", hint="1 or more, such as one for each core")
    count = available_cores() if jobs is None else jobs
    return InProcessWorkers(function) if count == 1 else ProcessWorkers(function, count)


class InProcessWorkers(Workers):
    """One task after another in this process, so that policies which a program has registered itself are known."""

    def __init__(self, function: TaskFunction) -> None:
        self._function = function

    def run(self, tasks: Sequence[bytes]) -> Iterator[CompletedTask]:
        for index, task in enumerate(tasks):
            yield CompletedTask(index, self._function(task))

    def close(self) -> None:
        pass


class ProcessWorkers(Workers):
    """At most `count` processes on this machine, started when there are tasks for them.

    Processes are spawned, so that they share nothing with this one. Ctrl-C is for this process alone: SIGINT is blocked in the
    workers from before they start, because a worker that is still importing would answer it with a traceback.
    """

    def __init__(self, function: TaskFunction, count: int) -> None:
        self._function = function
        self._count = count
        self._workers: list[_Worker] = []

    def run(self, tasks: Sequence[bytes]) -> Iterator[CompletedTask]:
        waiting, losses = deque(range(len(tasks))), Counter[int]()
        while waiting or any(worker.task_index is not None for worker in self._workers):
            self._assign(waiting, tasks)
            busy = {worker.pipe: worker for worker in self._workers if worker.task_index is not None}
            for pipe in wait([*busy]):
                assert isinstance(pipe, Connection)
                worker = busy[pipe]
                index, worker.task_index = worker.task_index, None
                assert index is not None
                try:
                    result = pipe.recv_bytes()
                except (EOFError, OSError):
                    # The worker has died, and its pipe with it. Its task goes first in the queue, so that a run which kills its
                    # workers is found at its third attempt and not at the end of the study.
                    self._workers.remove(worker)
                    worker.end()
                    losses[index] += 1
                    if losses[index] == MAX_ATTEMPTS:
                        raise LostWorkersError from None
                    waiting.appendleft(index)
                else:
                    yield CompletedTask(index, result)

    def _assign(self, waiting: deque[int], tasks: Sequence[bytes]) -> None:
        """Give waiting tasks to idle workers."""
        while waiting:
            worker = self._idle_worker()
            if worker is None:
                return
            index = waiting.popleft()
            worker.task_index = index
            with suppress(OSError):  # If the worker has died, its pipe ends, and `run` repeats the task.
                worker.pipe.send_bytes(tasks[index])

    def _idle_worker(self) -> _Worker | None:
        """Return an idle worker, a new one if there may be more, or None."""
        idle = next((worker for worker in self._workers if worker.task_index is None), None)
        if idle is None and len(self._workers) < self._count:
            idle = _Worker(self._function)
            self._workers.append(idle)
        return idle

    def close(self) -> None:
        # All are told to end before any is waited for, so that they end side by side.
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.end()
        self._workers.clear()


class _Worker:
    """A process, the pipe to it, and the task that it works on."""

    def __init__(self, function: TaskFunction) -> None:
        self.pipe, their_end = _context.Pipe()
        self.task_index: int | None = None
        self.process: BaseProcess = _context.Process(target=_worker_main, args=(function, their_end), daemon=True)
        with _sigint_blocked():
            self.process.start()
        # While this process held the other end open too, the pipe would not end with the worker.
        their_end.close()

    def end(self) -> None:
        """Close the pipe and wait for the process to exit; kill it if it takes too long."""
        self.pipe.close()
        self.process.join(_PATIENCE_SECS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this process during the block, and for good in processes that are started in it."""
    resource_tracker.ensure_running()  # it starts with the first process, and would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker_main(function: TaskFunction, pipe: Connection) -> None:
    """Work on tasks until the pipe ends."""
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(function(pipe.recv_bytes()))


class RayWorkers(Workers):
    """A Ray cluster, which runs as many tasks at a time as it has CPUs.

    Ray itself repeats the task of a lost worker or node. At most twice as many tasks as CPUs are handed over at a time, so that
    little work is lost when a study is stopped. A trace must be readable under its path on every node.
    """

    def __init__(self, function: TaskFunction, address: str) -> None:
        """`address` is `auto` for the cluster of this machine, HOST:PORT or ray://HOST:PORT.

        In a program that has called `ray.init`, its cluster is used. Raises ConfigError without Ray, and if there is no such
        cluster.
        """
        self._function = function
        self._is_ours = _connect(address)
        self._pending: dict[Any, int] = {}

    def run(self, tasks: Sequence[bytes]) -> Iterator[CompletedTask]:
        import ray

        remote = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1, retry_exceptions=False)(self._function)
        most = 2 * max(1, _num_cpus())
        remaining = iter(enumerate(tasks))
        while True:
            for index, task in islice(remaining, most - len(self._pending)):
                self._pending[remote.remote(task)] = index
            if not self._pending:
                return
            for done in ray.wait([*self._pending], num_returns=1)[0]:
                yield CompletedTask(self._pending.pop(done), _fetch(done))

    def close(self) -> None:
        import ray

        for pending in self._pending:
            with suppress(Exception):  # a task may be gone already, in any of Ray's ways
                ray.cancel(pending, force=True)
        self._pending.clear()
        if self._is_ours:
            ray.shutdown()


def _num_cpus() -> int:
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return int(resources.get("CPU", 1))


def _fetch(done: Any) -> bytes:
    """Return the result of a task. Raises LostWorkersError if Ray has given it up."""
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    try:
        result: bytes = ray.get(done)
    except (NodeDiedError, OutOfMemoryError, WorkerCrashedError) as error:
        raise LostWorkersError from error
    return result


def _connect(address: str) -> bool:
    """Connect to the cluster, and return whether this call has made the connection. Raises ConfigError."""
    try:
        import ray
    except ImportError as error:
        raise missing_library("Ray", "ray", _FLAG) from error
    if ray.is_initialized():
        return False
    where = _cluster_of_this_machine() if address == "auto" else address
    _check_reachable(where)
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _unreachable(where, "no Ray of this version answers there") from error
    return True


def _cluster_of_this_machine() -> str:
    """Return the address in Ray's environment variable, or in the file that `ray start` writes."""
    configured = os.environ.get("RAY_ADDRESS", "")
    if configured and configured != "auto":
        return configured
    try:
        return (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster").read_text().strip()  # noqa: S108
    except OSError as error:
        what = "this machine is in no Ray cluster"
        raise ConfigError(what, where=_FLAG, hint="ray start --head begins one, or name it as HOST:PORT") from error


def _check_reachable(address: str) -> None:
    """Raise ConfigError if nothing listens at the address. Ray itself would wait for a minute, and then end the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and host and port.isdigit()):
        raise ConfigError(f"{address!r} is no address of a Ray cluster", where=_FLAG, hint="auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE_SECS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, describe_read_error(error)) from error


def _unreachable(address: str, why: str) -> ConfigError:
    return ConfigError(f"there is no Ray cluster at {address}: {why}", where=_FLAG, hint="ray start --head begins one")
