"""LinkClient: a gateway's end of the link, with its socket and its timer.

Without a connection it connects again, every 100 ms at most, where a scheduler leads (`Dialer`). If another try comes to the
same until a person has changed something (another secret, another version), it is made every 5 s. Why there is no link is
logged once for each reason. What requests ask meanwhile is kept (`GatewayEnd`), and told in the next hello.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, cast

import msgspec

from maitred.admission import ReleaseReason
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.scheduler.link.events import Closed, LinkEvent, Opened
from maitred.scheduler.link.failure_kinds import FailureKind
from maitred.scheduler.link.gateway_end import EndState, GatewayEnd
from maitred.scheduler.link.messages import AttemptOutcome, EndProgram, Note, ProgramTokens, Progress
from maitred.scheduler.link.prompt_hashes import pack_hashes
from maitred.scheduler.link.terms import ClassNote, ProgramTerms, RequestTerms
from maitred.scheduler.sharing.class_notes import ClassNotes
from maitred.scheduler.sharing.dialer import Dialer
from maitred.scheduler.sharing.link_writer import LinkWriter, close_link
from maitred.wire.clock import Clock
from maitred.wire.tasks import end_asking

log = logging.getLogger("maitred.gateway")
_RECONNECT_SECS: Final = 0.1
_LASTING_SECS: Final = 5.0
"""The time between two connections of which each is refused for good."""
_DEFECT: Final = "the scheduler could not be looked for"


class LinkClient:
    """Connects to a scheduler, from `start` to `close`."""

    def __init__(
        self, dialer: Dialer, name: str, secret: bytes, clock: Clock, random: Random, on_event: Callable[[LinkEvent], object]
    ) -> None:
        """`dialer` connects to the scheduler, and `name` is that of this gateway. `random` draws what no other process may
        draw. `on_event` is told what requests and the fleet must know."""
        self.end = GatewayEnd(name, random.randbytes(8).hex(), secret)
        """What the link says and hears."""
        self.on_event = on_event
        self.peer = "the scheduler"
        """What the other end is, in the log."""
        self.notes = ClassNotes()
        """The classes that requests have asked for, until they are submitted."""
        self.block_sizes: Sequence[int] = ()
        """The sizes of blocks, in tokens, for which the router asks prompts."""
        self.dialer = dialer
        """What finds the scheduler."""
        self._clock, self._random = clock, random
        self._writer = LinkWriter()
        self._requests = self.end.requests
        self._is_flush_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer = DeadlineTimer(self._on_due, clock)
        self._task: asyncio.Task[None] | None = None
        self._is_down = asyncio.Event()
        """Set while there is no connection."""
        self._is_down.set()
        self._pause_secs = _RECONNECT_SECS
        self._was_greeting = False
        """Whether the last connection that was lost had not shown yet who it was."""
        self._told: set[str] = set()
        """Why there is no link, as far as the log has it."""
        self.problem: str | None = None
        """Why there is no link, as was found out last; None while there is one."""
        self.on_opened: Callable[[], object] = _ignore
        """Called when the scheduler has welcomed this gateway: what was told before may be lost."""
        self.on_changed: Callable[[], object] = _ignore
        """Called when the link was opened or lost."""
        self.lost_for_good: Callable[[str], object] | None = None
        """Called once, with the reason, when nobody listens any more, if a scheduler that is gone does not come back. Then no
        connection is tried again."""

    def use_secret(self, secret: bytes) -> None:
        """Prove further links by another secret."""
        self.end.secret = secret

    def start(self) -> None:
        """Connect, inside this event loop."""
        self._task = asyncio.create_task(self._connect_repeatedly())

    async def close(self) -> None:
        """Disconnect."""
        await end_asking(self._task)
        self._timer.cancel()
        self._write()
        self.end.lost()
        if self._writer.transport is not None:
            self._writer.transport.close()

    # What the driver of admission asks (`RemoteEnd`).

    def submit(self, number: int, request: Request, cost: int, memory: int, now: Micros) -> None:
        """Ask at `now` for a slot. `memory` is the number of the memory of a request of a program, or 0."""
        note = self.notes.take(request.id) if self.notes.takes_notes else None
        self.end.submit(number, _terms_of(request, cost, memory, self.block_sizes, note), now)
        if len(self._requests) == 1:  # Nothing to share a frame with: a turn of the loop would be in vain.
            self._write()
        else:
            self._flush_soon()

    def confirm_first_byte(self, number: int) -> bool:
        """Return whether the first byte of a response may be sent."""
        self._flush_soon()
        return self.end.confirm_first_byte(number)

    def may_send(self, number: int) -> bool:
        """Return whether a request that was granted a slot may be sent to its backend now."""
        return self.end.may_send(number, self._clock.now())

    def yield_slot(self, number: int) -> None:
        """Give up the slot of a preempted request, which asks again."""
        self.end.yield_slot(number)
        self._flush_soon()

    def leave_backend(self, number: int, reason: str, kind: FailureKind) -> None:
        """Ask for another place for a request that its backend has failed."""
        self.end.leave_backend(number, reason, kind)
        self._flush_soon()

    def release(self, number: int, end: ReleaseReason, tokens: int | None) -> None:
        """End a request."""
        self.end.release(number, end, tokens)
        if not self._requests:  # As in `submit`.
            self._write()
        else:
            self._flush_soon()

    # What the driver of the programs asks (`ProgramsEnd`).

    def begin_program(self, number: int, terms: ProgramTerms) -> None:
        """Ask for memory for a request of a program."""
        self.end.begin_program(number, terms, self._clock.now())
        self._flush_soon()

    def add_program_tokens(self, number: int, tokens: int) -> None:
        """Tell that tokens of a response have come."""
        self.report(ProgramTokens(number, tokens))

    def end_program(self, ended: EndProgram) -> None:
        """Give the memory of a request back."""
        self.end.end_program(ended)
        self._flush_soon()

    def report(self, message: AttemptOutcome | Progress | ProgramTokens | Note) -> None:
        """Tell of a backend, how far answers have come, or something else."""
        self.end.report(message)
        self._flush_soon()

    # The connection.

    async def _connect_repeatedly(self) -> None:
        while True:
            await self._is_down.wait()
            self._is_down.clear()
            self._pause_secs = _RECONNECT_SECS
            try:
                await self.dialer.connect(lambda: _Connection(self))
            except OSError as error:
                self._is_down.set()
                if self.lost_for_good is not None and isinstance(error, FileNotFoundError | ConnectionRefusedError):
                    self.lost_for_good(str(error))
                    return
                self._tell(self.dialer.describe(error))
            except Exception:  # A store's client has a defect: a gateway that looks no more would never be linked again.
                self._is_down.set()
                if self.problem != _DEFECT:
                    log.exception(_DEFECT)
                self.problem, self._pause_secs = _DEFECT, _LASTING_SECS
            await asyncio.sleep(_RECONNECT_SECS)  # Also where a connection is cut as soon as it is made.
            if self._pause_secs > _RECONNECT_SECS and self._is_down.is_set():
                await asyncio.sleep(self._pause_secs)

    def _tell(self, problem: str) -> None:
        """Log why there is no link, once until there is one again."""
        self.problem = problem
        if problem not in self._told:
            self._told.add(problem)
            log.warning("%s", problem)

    def connected(self, transport: asyncio.WriteTransport) -> None:
        """Begin on a connection."""
        self._writer = LinkWriter()
        self._writer.transport = transport
        self.end.connect(self._random.randbytes(32), self._clock.now())
        self._timer.set_to(self.end.next_deadline())
        self._flush_soon()

    def feed(self, transport: asyncio.WriteTransport | None, data: bytes) -> None:
        """Take bytes of a connection."""
        if transport is self._writer.transport:
            self._take(self.end.feed(data, self._clock.now()))
            self._write()  # Most often nothing is to be said, and a turn of the loop would be in vain.
            self._timer.set_to(self.end.next_deadline())

    def lost(self, transport: asyncio.WriteTransport | None) -> None:
        """Note that a connection is gone."""
        if transport is self._writer.transport:
            self._writer.transport = None
            if self.end.state is not EndState.OPEN:
                self.dialer.turn()
            if self.end.state is not EndState.DOWN:
                before, self._was_greeting = self._was_greeting, self.end.state is EndState.GREETING
                if before or not self._was_greeting:  # The system takes connections for a scheduler that was killed just now.
                    self._tell(self._loss())
                self.end.lost()
            self._is_down.set()
            self.on_changed()

    def _loss(self) -> str:
        """Return in words what the end of a connection means that nobody has explained."""
        where = self.dialer.address
        if self.end.state is EndState.GREETING:
            hint = "is it a scheduler, and do both ends speak TLS, or neither?"
            return f"{where} has closed the connection before it has shown who it is: {hint}"
        return f"the link to {self.peer} at {where} is lost"

    def _take(self, events: Sequence[LinkEvent]) -> None:
        for event in events:
            if type(event) is Closed:
                self._close(event)
            elif type(event) is Opened:
                self._was_greeting = False
                log.info("%s is linked to %s at %s, epoch %d", self.end.name, self.peer, self.dialer.address, event.epoch)
                self._told.clear()
                self.on_event(event)
                self.problem, self.notes.takes_notes = None, event.keeps_notes
                self.on_changed()
                self.on_opened()
            else:
                try:
                    self.on_event(event)
                except (ValueError, msgspec.MsgspecError) as error:
                    self._close(self.end.give_up(f"{type(event).__name__} makes no sense: {error}", is_lasting=True))

    def _close(self, closed: Closed) -> None:
        if closed.is_lasting:
            self._pause_secs = _LASTING_SECS
        again = f" (tried again every {_LASTING_SECS:g} s)" if closed.is_lasting else ""
        self._tell(self.dialer.explain(f"no link to {self.peer} at {self.dialer.address}: {closed.reason}{again}"))
        transport = self._writer.transport
        close_link(transport, closed.last_bytes)
        self.lost(transport)  # A peer that stands still would end the connection late, or never.

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            # Kept, because in CPython 3.11 `get_running_loop` is a system call.
            self._loop = self._loop or asyncio.get_running_loop()
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_flush_due = False
        if self._writer.transport is not None:
            if left := self._writer.take_left():
                self.end.note_written(left)
            if data := self.end.take_bytes():
                self._writer.write(data)

    def _on_due(self) -> None:
        self._take(self.end.advance(self._clock.now()))
        self._timer.set_to(self.end.next_deadline())
        self._flush_soon()


class _Connection(asyncio.Protocol):
    def __init__(self, client: LinkClient) -> None:
        self._client = client
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._client.connected(self._transport)

    def data_received(self, data: bytes) -> None:
        self._client.feed(self._transport, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self._transport)


def _ignore() -> None:
    pass


def _terms_of(request: Request, cost: int, memory: int, block_sizes: Sequence[int], note: ClassNote | None) -> RequestTerms:
    return RequestTerms(
        model=request.model,
        priority_class=request.priority_class,
        tenant=request.tenant,
        cost=cost,
        prompt_tokens=request.prompt_tokens,
        max_output_tokens=request.max_output_tokens,
        sequences=request.sequences,
        client_id=request.client_id,
        stream=request.stream,
        priority=request.priority,
        routing_key=request.routing_key,
        program=request.program,
        cache_namespace=request.cache_namespace,
        slo_class=request.slo_class,
        slo_target=request.slo_target,
        instances=request.instances,
        memory=memory,
        prompt=pack_hashes(request.prefix, block_sizes) if block_sizes and not memory else None,
        class_note=note,
    )
