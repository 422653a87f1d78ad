"""Threads for work that may hang: a disk, a name server.

The event loop is asked to run such work (`loop.run_in_executor(DAEMON_THREADS, work)`), so an event loop with time of its own
can run it as it likes. Each piece of work has a thread of its own, since one that hangs must hold up nothing else, and the
thread is a daemon: a process that ends does not wait for it. (The threads of `concurrent.futures` are waited for.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """Begins each piece of work at once, in a thread of its own."""

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin `work`. If the system gives this process no more threads, its result is that RuntimeError."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # Python cannot stop a thread, so it cannot be cancelled.

        def run() -> None:
            try:
                result = work(*args, **kwargs)
            except BaseException as error:  # It is raised where the result is awaited.
                done.set_exception(error)
            else:
                done.set_result(result)

        try:
            threading.Thread(target=run, daemon=True, name=f"runs {getattr(work, '__qualname__', work)}").start()
        except RuntimeError as error:
            done.set_exception(error)
        return done


DAEMON_THREADS: Final = DaemonThreads()
