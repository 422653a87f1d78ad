"""Processes on this machine, each with a pipe of its own.

A pool of the standard library cannot say which run a dead worker had, and breaks as a whole; here its pipe ends, and that run
goes to the next one. Processes are spawned, so that they share nothing with this one. Ctrl-C is for this one alone: theirs is
blocked from before they begin, since one that is still importing would answer it with a traceback.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

from maitred.study.workers.workers import MAX_ATTEMPTS, CompletedTask, LostWorkersError, TaskFunction

_PATIENCE_SECS = 5.0
_context = get_context("spawn")


class ProcessWorkers:
    """As many as `count` processes; they begin when there is something to do."""

    def __init__(self, work: TaskFunction, count: int) -> None:
        self._work = work
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
                    answer = pipe.recv_bytes()
                except (EOFError, OSError):
                    self._workers.remove(worker)
                    worker.end()
                    losses[index] += 1
                    if losses[index] == MAX_ATTEMPTS:
                        raise LostWorkersError from None
                    waiting.appendleft(index)
                else:
                    yield CompletedTask(index, answer)

    def _assign(self, waiting: deque[int], tasks: Sequence[bytes]) -> None:
        while waiting:
            worker = self._idle()
            if worker is None:
                return
            index = waiting.popleft()
            worker.task_index = index
            with suppress(OSError):  # it has died: its pipe will say so, to whoever waits for the answer
                worker.pipe.send_bytes(tasks[index])

    def _idle(self) -> _Worker | None:
        idle = next((worker for worker in self._workers if worker.task_index is None), None)
        if idle is None and len(self._workers) < self._count:
            idle = _Worker(self._work)
            self._workers.append(idle)
        return idle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.end()
        self._workers.clear()


class _Worker:
    """A process, and the task that it has."""

    def __init__(self, work: TaskFunction) -> None:
        self.pipe, theirs = _context.Pipe()
        self.task_index: int | None = None
        self.process: BaseProcess = _context.Process(target=_worker_main, args=(work, theirs), daemon=True)
        with _interrupts_blocked():
            self.process.start()
        theirs.close()

    def end(self) -> None:
        """See it off."""
        self.pipe.close()
        self.process.join(_PATIENCE_SECS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """For what is started in the block for ever, and for this process until it ends."""
    resource_tracker.ensure_running()  # comes with the first process, and would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker_main(work: TaskFunction, pipe: Connection) -> None:
    """The life of a worker: until nobody is left who could give it anything."""
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(work(pipe.recv_bytes()))
