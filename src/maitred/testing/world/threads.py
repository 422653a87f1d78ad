"""Threads of a world: there are none. `run_in_executor` calls its function in the loop, after a delay.

What decides on the delay, on a failure, or whether the work is held up, is `thread_fate` of the context: the disk of the
machine on which the program runs.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeAlias, TypeVar, TypeVarTuple, Unpack

from maitred.testing.world.place import PLACE, Place
from maitred.testing.world.unsupported import UnsupportedCalls

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
ThreadFate: TypeAlias = Callable[[Callable[..., object]], tuple[object, float | OSError | None]]
"""Returns what may hold up a piece of work; and its duration in seconds, what it raises, or None if it is held up."""


class ThreadlessLoop(UnsupportedCalls):
    """What a loop does that is asked for work in a thread."""

    def __init__(self, delays: Random) -> None:
        """`delays` draws how long work takes."""
        self.thread_fate: contextvars.ContextVar[ThreadFate | None] = contextvars.ContextVar("thread_fate", default=None)
        """What decides on work in threads; None: it takes `thread_delay`."""
        self._thread_delay = delays
        self._held_threads: list[tuple[object, contextvars.Context, Callable[[], object]]] = []
        """Work that is held up: by what, where it runs, and what begins it."""

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Call `func` in this thread after a delay that the seed draws, and return the future of what it returns."""
        done: asyncio.Future[T] = self.create_future()
        self._begin_thread(done, func, args)
        return done

    def release_threads(self, holder: object) -> None:
        """Begin the work that `holder` has held up."""
        held, self._held_threads = self._held_threads, []
        for holds, context, begin in held:
            if holds is holder:
                context.run(begin)
            else:
                self._held_threads.append((holds, context, begin))

    def _begin_thread(self, done: asyncio.Future[T], func: Callable[[Unpack[Ts]], T], args: tuple[*Ts]) -> None:
        decide = self.thread_fate.get(None)
        holder, fate = (None, self.thread_delay()) if decide is None else decide(func)
        if fate is None:
            begin = partial(self._begin_thread, done, func, args)
            self._held_threads.append((holder, contextvars.copy_context(), begin))
        elif isinstance(fate, OSError):
            self.call_later(self.thread_delay(), _fail, done, fate)
        else:
            self.call_later(fate, _call_into, done, func, args)

    def thread_delay(self) -> float:
        """Return for how many seconds the next piece of work in a thread takes: mostly little, at times much."""
        return float(self._thread_delay.expovariate(1_000.0) * (100.0 if self._thread_delay.random() < 0.05 else 1.0))

    def drop_threads(self, place: Place) -> None:
        """Begin nothing of what a program had to do that was held up."""
        self._held_threads = [held for held in self._held_threads if held[1].get(PLACE) is not place]


def _fail(done: asyncio.Future[T], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


def _call_into(done: asyncio.Future[T], func: Callable[[Unpack[Ts]], T], args: tuple[*Ts]) -> None:
    """Call `func`, and give its outcome to `done`, unless that was cancelled."""
    try:
        result = func(*args)
    except Exception as error:
        _fail(done, error)
    else:
        if not done.done():
            done.set_result(result)
