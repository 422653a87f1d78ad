"""VirtualLoop: an event loop without a system below it, whose clock jumps to the next event.

There are two queues. `_ready` holds callbacks of `call_soon`, which run in the order in which they were given, as asyncio
promises. `_events` holds what has an instant: timers, bytes that arrive, threads that end, signals. A turn of the loop

    1. jumps to the instant of the first event, if no callback is ready
    2. takes some of the events that are due, in an order that the seed draws, and puts them before or behind the callbacks
    3. runs what was ready at the beginning of the turn

So everything that a real loop leaves open is drawn: which of two sockets is served first, whether a timer comes before the
data, how many sockets one turn serves. What a real loop promises is kept: callbacks in order, no timer early, and the bytes of
one stream in order (a stream has one event at a time).

Time passes only between turns; work takes none. A loop that has neither callback nor event, and whose main task has not ended,
would wait for ever: `Deadlock` says which tasks wait, and where. One that runs callbacks without end at one instant is found as
well: `Livelock`.

No thread is ever started (`threads`). A program that is killed runs no more (`drop`); of one that is paused, what comes and
falls due meanwhile runs when it goes on (`pause`, `resume`).
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import logging
import socket
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, Unpack, cast

from maitred.core.units import Micros, from_seconds, to_seconds
from maitred.testing.world.draws import Draws
from maitred.testing.world.place import PLACE, Place
from maitred.testing.world.threads import ThreadlessLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
START: Final[Micros] = from_seconds(1_000)
"""What the clock shows at the start: not 0, which code may take for "never"."""
MAX_EVENTS_PER_INSTANT: Final = 100_000
"""Callbacks at one instant from which on the loop is taken to run for ever."""
_MIN_CANCELLED: Final = 256
"""Cancelled timers from which on the queue of events is cleared of them."""
log = logging.getLogger("maitred.testing")


class Sockets(Protocol):
    """What the loop asks for its program, which uses the network. Each raises OSError as the calls of asyncio do."""

    def addresses_of(self, name: str) -> list[str]: ...
    async def connect(self, make_protocol: Any, host: str, port: int, options: Mapping[str, Any]) -> tuple[Any, Any]: ...
    async def serve(self, make_protocol: Any, options: Mapping[str, Any]) -> Any: ...
    def open_accepted(self, make_protocol: Any, connection: Any, options: Mapping[str, Any]) -> tuple[Any, Any]: ...


class Deadlock(RuntimeError):  # noqa: N818  (the field's name of the thing)
    """Nothing is due, and the main task has not ended."""


class Livelock(RuntimeError):  # noqa: N818
    """Callbacks run without end, and no time passes."""


class VirtualLoop(ThreadlessLoop):
    """An event loop in virtual time. Its sockets are those of a `Network`."""

    def __init__(self, seed: Draws | int = 0) -> None:
        self.draws = seed if isinstance(seed, Draws) else Draws(seed)
        super().__init__(self.draws.of("threads"))
        self.network: Sockets | None = None
        """The machines that can be reached, or None if there are none."""
        self.num_events = 0
        """Callbacks that have run."""
        self.errors: list[dict[str, Any]] = []
        """What callbacks and tasks have raised and nothing has caught, as given to an exception handler."""
        self.killed: list[asyncio.Task[Any]] = []
        """Tasks of programs that were killed: they never end."""
        self.after_turn: Callable[[], object] | None = None
        """Called after each turn, to check what must hold."""
        self.micros: Micros = START
        """The instant at which the clock stands."""
        self._secs = to_seconds(START)
        self._ready: deque[asyncio.Handle] = deque()
        self._events: list[tuple[Micros, float, int, asyncio.Handle]] = []
        """Instant, rank among the events of this instant, number and callback."""
        self._num_scheduled = self._num_cancelled = 0
        self._num_events_before = 0
        """Callbacks that had run when the clock jumped last."""
        self._order = self.draws.of("order")
        self._rank = self._order.random
        self._signal_handlers: dict[tuple[Place | None, int], asyncio.Handle] = {}
        self._paused: dict[Place, list[asyncio.Handle]] = {}
        """What is to run of each program that is paused, in the order in which it would have run."""
        self._is_stopping = self._is_running = self._is_closed = False
        self._task_factory: Any = None
        self._exception_handler: Any = None

    def time(self) -> float:
        """Return the virtual time in seconds: a whole number of microseconds."""
        return self._secs

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run `callback` in the next turn, behind those that are ready already."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # there are no threads

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` after `delay` seconds."""
        return self.call_at(self._secs + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` when the clock shows `when`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        instant = round(when * 1e6)
        if instant / 1e6 < when:  # No timer is early, not even by what a product of floats loses.
            instant += 1
        self._num_scheduled += 1
        heappush(self._events, (instant, self._rank(), self._num_scheduled, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Take note that a timer was cancelled (called by `TimerHandle.cancel`)."""
        self._num_cancelled += 1
        if self._num_cancelled > _MIN_CANCELLED and self._num_cancelled * 2 > len(self._events):
            self._events = [event for event in self._events if not event[3].cancelled()]
            heapify(self._events)
            self._num_cancelled = 0

    def run_forever(self) -> None:
        """Run until `stop`. Raises Deadlock."""
        self._check_open()
        if self._is_running:
            raise RuntimeError("this event loop is already running")
        self._is_running = True
        events._set_running_loop(self)
        try:
            while not self._is_stopping:
                self._turn()
        finally:
            self._is_stopping = self._is_running = False
            events._set_running_loop(None)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until `future` is done, and return its result. Raises Deadlock."""
        self._check_open()
        main: asyncio.Future[T] = asyncio.ensure_future(cast(Awaitable[T], future), loop=self)
        main.add_done_callback(self._on_main_done)
        try:
            self.run_forever()
        finally:
            main.remove_done_callback(self._on_main_done)
        if not main.done():
            raise RuntimeError("the event loop was stopped before its main task was done")
        return main.result()

    def stop(self) -> None:
        """End `run_forever` after this turn."""
        self._is_stopping = True

    def is_running(self) -> bool:
        """Return whether callbacks are being run."""
        return self._is_running

    def is_closed(self) -> bool:
        """Return whether the loop can be used no more."""
        return self._is_closed

    def close(self) -> None:
        """Drop all callbacks; the loop can be used no more."""
        if self._is_running:
            raise RuntimeError("a running event loop cannot be closed")
        self._is_closed = True
        self._ready.clear()
        self._events.clear()
        for task in self.killed:
            with suppress(BaseException):  # Its `finally` runs only now, when nobody sees it.
                task.get_coro().close()

    def drop(self, place: Place) -> None:
        """Run nothing more of the program at a place: none of its callbacks, timers and tasks, and no handler of a signal."""
        handles = [*self._ready, *(event[3] for event in self._events), *self._signal_handlers.values()]
        for handle in handles:
            if _place_of(handle) is place:
                handle.cancel()
        self._paused.pop(place, None)
        self._signal_handlers = {key: handle for key, handle in self._signal_handlers.items() if not handle.cancelled()}
        self.drop_threads(place)
        for task in place.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self.killed.append(task)

    def pause(self, place: Place) -> None:
        """Run nothing of the program at a place until `resume`, as after SIGSTOP. Its clock goes on."""
        self._paused.setdefault(place, [])

    def resume(self, place: Place) -> None:
        """Let a program go on, as after SIGCONT, with all that has come and fallen due meanwhile; nothing for one that runs."""
        self._ready.extend(self._paused.pop(place, ()))

    def stand_still(self, secs: float) -> None:
        """Let time pass without running anything, as if the machine had been stopped: what falls due meanwhile is late."""
        self.micros += from_seconds(secs)
        self._secs = to_seconds(self.micros)

    def pending(self) -> list[asyncio.Handle]:
        """Return the callbacks and events that are not cancelled and have not run, to see what is left at an end."""
        waiting = [*self._ready, *(event[3] for event in sorted(self._events))]
        return [handle for handle in waiting if not handle.cancelled()]

    def pending_at(self, place: Place) -> list[asyncio.Handle]:
        """Return those of the program at a place."""
        return [handle for handle in self.pending() if _place_of(handle) is place]

    def _turn(self) -> None:
        ready = self._ready
        due = self._take_due()
        if due:
            if ready and self._rank() < 0.5:
                ready.extendleft(reversed(due))
            else:
                ready.extend(due)
        if self.num_events - self._num_events_before > MAX_EVENTS_PER_INSTANT:
            raise Livelock(f"at {self._secs:.6f} s no time passes; among what runs: {list(ready)[:3]}")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if self._paused and (held := self._paused.get(_place_of(handle))) is not None:  # type: ignore[arg-type]
                held.append(handle)
            elif not handle._cancelled:
                self.num_events += 1
                handle._run()
        if self.after_turn is not None:
            self.after_turn()

    def _take_due(self) -> list[asyncio.Handle]:
        """Return some of the events that are due, in the order of their ranks, after a jump to the first if no callback is
        ready. Raises Deadlock."""
        queue, due = self._events, list[asyncio.Handle]()
        while queue:
            instant = queue[0][0]
            if instant > self.micros:
                if due or self._ready:
                    break
                if queue[0][3]._cancelled:
                    heappop(queue)  # A cancelled timer is no reason to jump.
                    self._num_cancelled -= 1
                    continue
                self.micros, self._secs = instant, instant / 1e6
                self._num_events_before = self.num_events
            elif due and self._rank() < 0.25:
                break  # The others come in the next turn, as from a system that tells of a few sockets at a time.
            handle = heappop(queue)[3]
            if handle._cancelled:
                self._num_cancelled -= 1
            else:
                due.append(handle)
        if not due and not self._ready:
            raise Deadlock(self._describe_deadlock())
        return due

    def _on_main_done(self, main: asyncio.Future[Any]) -> None:
        self.stop()

    def _describe_deadlock(self) -> str:
        lines = [f"at {self._secs:.6f} s nothing is due, and these tasks wait:"]
        for task in sorted(asyncio.all_tasks(self), key=asyncio.Task.get_name):
            frame = next(reversed(task.get_stack(limit=1)), None)
            where = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
            lines.append(f"  {task.get_name()}: {getattr(task.get_coro(), '__qualname__', task)}{where}")
        return "\n".join(lines)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the event loop is closed")

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        """Run a coroutine as a task."""
        self._check_open()
        if self._task_factory is not None:
            task: asyncio.Task[Any] = self._task_factory(self, coro)
            return task
        made: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        place = PLACE.get() if context is None else context.get(PLACE)
        if place is not None:
            place.tasks.add(made)
        return made

    def set_task_factory(self, factory: Any) -> None:
        """Make tasks with `factory` from now on; None: as asyncio does."""
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        """Return the task factory, or None."""
        return self._task_factory

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: asynchronous generators are not followed."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there are no threads."""

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> Any:
        """Return the addresses that the network has for a name, as `socket.getaddrinfo` does. Raises OSError."""
        found = self._known_network().addresses_of(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in found]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Return a transport and a protocol that are connected. Raises OSError."""
        return await self._known_network().connect(protocol_factory, host, port, options)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Return a server that listens at an address of the network, or on `sock`, one of its listeners. Raises OSError."""
        return await self._known_network().serve(protocol_factory, {"host": host, "port": port, **options})

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **options: Any) -> Any:
        """Return the transport and the protocol of a connection that was taken out of the backlog of a listener."""
        return self._known_network().open_accepted(protocol_factory, sock, options)

    def _known_network(self) -> Sockets:
        if self.network is None:
            raise OSError(errno.ENETDOWN, "this world has no network")
        return self.network

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Call `callback` for each `send_signal` of this number."""
        self._signal_handlers[PLACE.get(), sig] = asyncio.Handle(callback, args, self)

    def remove_signal_handler(self, sig: int) -> bool:
        """Call nothing for this signal any more, and return whether something was called."""
        return self._signal_handlers.pop((PLACE.get(), sig), None) is not None

    def send_signal(self, sig: int, place: Place | None = None) -> None:
        """Send a signal to the program at a place; None: to the only one that handles it. Raises ValueError if the program
        handles no such signal, which would end it."""
        handlers = [handle for key, handle in self._signal_handlers.items() if key[1] == sig and place in (None, key[0])]
        if len(handlers) != 1:
            raise ValueError(f"signal {sig} would end the program: it has no handler")
        self._ready.append(handlers[0])

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep in `errors`, and log, what nothing has caught."""
        self.errors.append(context)
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            log.error("%s", context.get("message"), exc_info=context.get("exception"))

    default_exception_handler = call_exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        """Call `handler` for what nothing catches, beside keeping it in `errors`."""
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        """Return the handler, or None."""
        return self._exception_handler


def _place_of(handle: asyncio.Handle) -> Place | None:
    """Return where a callback runs."""
    place: Place | None = handle._context.get(PLACE)  # type: ignore[attr-defined]
    return place
