"""Threads of a world: there are none. `run_in_executor` calls its function in the loop, after a delay.

What decides on the delay, on a failure, or whether the work is held up, is `thread_fate` of the context: the disk of the
machine on which the program runs.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from random import Random
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, TypeVarTuple, Unpack

from maitred.testing.world.place import PLACE, Place
from maitred.testing.world.unsupported import UnsupportedCalls

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ThreadFate(NamedTuple):
    """What becomes of a piece of work that is given to a thread."""

    secs: float | None
    """How long it takes; None: it does not begin before `VirtualLoop.release_threads` is called with what holds it up."""
    error: OSError | None = None
    """What it raises in the place of doing anything."""
    trouble: object = None
    """What is the matter with what it works on, and may hold it up; None: nothing is."""


FateOfWork: TypeAlias = Callable[[Callable[..., object]], ThreadFate]
"""Returns the fate of a function."""


class ThreadWork(Generic[T]):
    """A piece of work in a thread: its function is called when the thread ends. Nothing can end it before."""

    def __init__(self, done: asyncio.Future[T], call: Callable[[], T]) -> None:
        self._done, self._call = done, call
        self.met_trouble = False
        """Whether it was late or failed because of what it works on."""

    def end(self) -> None:
        """Call the function, and give its outcome to who waits for it, if anybody still does."""
        try:
            result = self._call()
        except Exception as error:
            self.fail(error)
        else:
            if not self._done.done():
                self._done.set_result(result)

    def fail(self, error: Exception) -> None:
        """Give an error to who waits for the outcome."""
        if not self._done.done():
            self._done.set_exception(error)


class ThreadlessLoop(UnsupportedCalls):
    """What a loop does that is asked for work in a thread."""

    def __init__(self, delays: Random) -> None:
        """`delays` draws how long work takes."""
        self.thread_fate: contextvars.ContextVar[FateOfWork | None] = contextvars.ContextVar("thread_fate", default=None)
        """What decides on work in threads; None: it takes `thread_delay`."""
        self._thread_delay = delays
        self._held_threads: list[tuple[object, contextvars.Context, Callable[[], object]]] = []
        """Work that is held up: by what, where it runs, and what begins it."""

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Call `func` in this thread after a delay that the seed draws, and return the future of what it returns."""
        done: asyncio.Future[T] = self.create_future()
        self._begin_thread(ThreadWork(done, lambda: func(*args)), func)
        return done

    def release_threads(self, holder: object) -> None:
        """Begin the work that `holder` has held up."""
        held, self._held_threads = self._held_threads, []
        for holds, context, begin in held:
            if holds is holder:
                context.run(begin)
            else:
                self._held_threads.append((holds, context, begin))

    def _begin_thread(self, work: ThreadWork[Any], func: Callable[..., object]) -> None:
        decide = self.thread_fate.get(None)
        fate = ThreadFate(self.thread_delay()) if decide is None else decide(func)
        work.met_trouble |= fate.trouble is not None
        if fate.secs is None:
            self._held_threads.append((fate.trouble, contextvars.copy_context(), lambda: self._begin_thread(work, func)))
        elif fate.error is not None:
            self.call_later(fate.secs, work.fail, fate.error)
        else:
            self.call_later(fate.secs, work.end)

    def thread_delay(self) -> float:
        """Return for how many seconds the next piece of work in a thread takes: mostly little, at times much."""
        return float(self._thread_delay.expovariate(1_000.0) * (100.0 if self._thread_delay.random() < 0.05 else 1.0))

    def drop_threads(self, place: Place) -> None:
        """Begin nothing of what a program had to do that was held up."""
        self._held_threads = [held for held in self._held_threads if held[1].get(PLACE) is not place]
