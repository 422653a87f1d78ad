"""A Ray cluster: as many runs at a time as it has CPUs.

Ray itself gives the run of a worker or node that was lost to another one. Few more runs than there are CPUs are handed over at
a time, so that little is in vain when a study is stopped. A trace must be readable under its path on every node.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from maitred.core.errors import ConfigError
from maitred.study.workers.workers import MAX_ATTEMPTS, CompletedTask, LostWorkersError, TaskFunction

_PATIENCE_SECS: Final = 5.0
_FLAG: Final = "--ray"


class RayWorkers:
    """At `address`: `auto` for the cluster of this machine, HOST:PORT or ray://HOST:PORT. Within a program that has called
    `ray.init`, the cluster that it is in."""

    def __init__(self, work: TaskFunction, address: str) -> None:
        """Raises ConfigError if there is no such cluster, and without Ray."""
        self._work = work
        self._connected = _connect(address)
        self._pending: dict[Any, int] = {}

    def run(self, tasks: Sequence[bytes]) -> Iterator[CompletedTask]:
        import ray

        make = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1, retry_exceptions=False)(self._work)
        most = 2 * max(1, _cpus())
        left = iter(enumerate(tasks))
        while True:
            for index, task in left:
                self._pending[make.remote(task)] = index
                if len(self._pending) >= most:
                    break
            if not self._pending:
                return
            for ended in ray.wait([*self._pending], num_returns=1)[0]:
                yield CompletedTask(self._pending.pop(ended), _fetch(ended))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        import ray

        for run in self._pending:
            with suppress(Exception):  # what is stopped may be gone already, in any of Ray's ways
                ray.cancel(run, force=True)
        self._pending.clear()
        if self._connected:
            ray.shutdown()


def _cpus() -> int:
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return int(resources.get("CPU", 1))


def _fetch(run: Any) -> bytes:
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    try:
        answer: bytes = ray.get(run)
    except (NodeDiedError, OutOfMemoryError, WorkerCrashedError) as error:
        raise LostWorkersError from error
    return answer


def _connect(address: str) -> bool:
    """Whether it was this that connected. Raises ConfigError."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("needs Ray, which is not installed", where=_FLAG, hint="pip install 'maitred[ray]'") from error
    if ray.is_initialized():
        return False
    where = _current() if address == "auto" else address
    _check_reachable(where)
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _unreachable(where, _first_line(error)) from error
    return True


def _current() -> str:
    """The address of the cluster that this machine is in: Ray's variable, or where `ray start` leaves it."""
    said = os.environ.get("RAY_ADDRESS", "")
    if said and said != "auto":
        return said
    try:
        return (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster").read_text().strip()  # noqa: S108
    except OSError as error:
        what = "this machine is in no Ray cluster"
        raise ConfigError(what, where=_FLAG, hint="ray start --head begins one, or name it as HOST:PORT") from error


def _check_reachable(address: str) -> None:
    """Ray itself would wait for a minute, and then end the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and host and port.isdigit()):
        raise ConfigError(f"{address!r} is no address of a Ray cluster", where=_FLAG, hint="auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE_SECS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, said: str) -> ConfigError:
    return ConfigError(f"there is no Ray cluster at {address}: {said}", where=_FLAG, hint="ray start --head begins one")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
