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

from maitred.study.workers.workers import MOST_TRIES, Answered, LostWorkersError, Work

_PATIENCE_SECS = 5.0
_context = get_context("spawn")


class LocalWorkers:
    """As many as `count` processes; they begin when there is something to do."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self._count = count
        self._team: list[_Worker] = []

    def answers(self, tasks: Sequence[bytes]) -> Iterator[Answered]:
        waiting, losses = deque(range(len(tasks))), Counter[int]()
        while waiting or any(worker.has is not None for worker in self._team):
            self._give_out(waiting, tasks)
            busy = {worker.pipe: worker for worker in self._team if worker.has is not None}
            for pipe in wait([*busy]):
                assert isinstance(pipe, Connection)
                worker = busy[pipe]
                index, worker.has = worker.has, None
                assert index is not None
                try:
                    answer = pipe.recv_bytes()
                except (EOFError, OSError):
                    self._team.remove(worker)
                    worker.end()
                    losses[index] += 1
                    if losses[index] == MOST_TRIES:
                        raise LostWorkersError from None
                    waiting.appendleft(index)
                else:
                    yield Answered(index, answer)

    def _give_out(self, waiting: deque[int], tasks: Sequence[bytes]) -> None:
        while waiting:
            worker = self._idle()
            if worker is None:
                return
            index = waiting.popleft()
            worker.has = index
            with suppress(OSError):  # it has died: its pipe will say so, to whoever waits for the answer
                worker.pipe.send_bytes(tasks[index])

    def _idle(self) -> _Worker | None:
        idle = next((worker for worker in self._team if worker.has is None), None)
        if idle is None and len(self._team) < self._count:
            idle = _Worker(self._work)
            self._team.append(idle)
        return idle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._team:
            worker.process.terminate()
        for worker in self._team:
            worker.end()
        self._team.clear()


class _Worker:
    """A process, and the task that it has."""

    def __init__(self, work: Work) -> None:
        self.pipe, theirs = _context.Pipe()
        self.has: int | None = None
        self.process: BaseProcess = _context.Process(target=_serve, args=(work, theirs), daemon=True)
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


def _serve(work: Work, pipe: Connection) -> None:
    """The life of a worker: until nobody is left who could give it anything."""
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(work(pipe.recv_bytes()))
