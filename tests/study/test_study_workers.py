"""Workers in processes: every task completes once, whichever worker is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from maitred.core.errors import ConfigError
from maitred.study.workers import LostWorkersError, ProcessWorkers, make_workers


def upper(task: bytes) -> bytes:
    return task.upper()


def dies_once(task: bytes) -> bytes:
    """Kill this worker at the first attempt of a task that is the path of `victim`. The file records the attempt."""
    marker = Path(task.decode())
    if marker.name == "victim" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def dies(task: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def blocked(task: bytes) -> bytes:
    return b"blocked" if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()) else b"open"


def test_ctrl_c_never_reaches_a_worker_and_always_us() -> None:
    with ProcessWorkers(blocked, 1) as workers:
        assert [done.result for done in workers.run([b""])] == [b"blocked"]
        assert blocked(b"") == b"open"


def test_every_task_is_answered_once_and_workers_serve_again() -> None:
    with ProcessWorkers(upper, 2) as workers:
        for tasks in ([b"a", b"b", b"c", b"d", b"e"], [b"f"], []):
            answers = {done.index: done.result for done in workers.run(tasks)}
            assert [answers[index] for index in range(len(tasks))] == [task.upper() for task in tasks]


def test_the_task_of_a_killed_worker_is_done_by_another(tmp_path: Path) -> None:
    tasks = [str(tmp_path / name).encode() for name in ("one", "victim", "two", "three")]
    with ProcessWorkers(dies_once, 2) as workers:
        done = [*workers.run(tasks)]
    assert (tmp_path / "victim").exists()
    assert sorted((each.index, each.result) for each in done) == [*enumerate(tasks)]


def test_a_task_that_kills_its_workers_is_given_up() -> None:
    with ProcessWorkers(dies, 1) as workers, pytest.raises(LostWorkersError, match="lost its worker 3 times"):
        [*workers.run([b"x"])]


def test_no_worker_is_left_when_the_block_ends_early() -> None:
    with ProcessWorkers(upper, 2) as workers:
        next(workers.run([b"a", b"b", b"c"]))
        team = [worker.process for worker in workers._workers]
        pids = [process.pid for process in team]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)


def test_no_processes_at_all_cannot_work() -> None:
    with pytest.raises(ConfigError, match="--jobs: 0 processes"):
        make_workers(upper, jobs=0)
