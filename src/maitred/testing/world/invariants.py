"""What must hold in a simulation: after each turn of the loop in which a core has decided, when all is quiet, and at the end.

At the end, the requests as clients saw them are held beside the lines about them in the log of the gateway and beside what the
engines saw of them; the log of decisions is read by other rules (`books`) and run again; and nothing may be left: no task,
timer, connection, descriptor or byte.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from maitred.core.decisions import LOG_ROOM
from maitred.core.errors import InvariantError
from maitred.core.units import SECOND, from_seconds
from maitred.replay import ROOMS
from maitred.replay.verify import Verifier
from maitred.testing.world.behaviours import MODEL
from maitred.testing.world.books import Books
from maitred.testing.world.clients import Fate, Sent, is_late_head
from maitred.testing.world.engine_books import EngineBooks
from maitred.testing.world.program_books import Place, ProgramBooks
from maitred.testing.world.streams import Stream
from maitred.testing.world.threads import ThreadWork
from maitred.testing.world.transport import MemoryTransport
from maitred.wire.loop_clock import LoopClock

if TYPE_CHECKING:
    from maitred.testing.world.process import GatewayProcess, Life
    from maitred.testing.world.stage import Scene, Stage

_LEAVE_ENGINES_ALONE = frozenset(("lie", "lag", "fail", "hang", "reload", "slow disk", "full disk", "hung disk"))
"""Faults with which the gateway learns in time what engines serve."""
_NO_ENGINE_FAILS = frozenset(("lie", "lag", "drain", "reload", "slow disk", "full disk", "hung disk"))
"""Faults with which no engine fails a request, and each keeps its number."""
_MAX_IDLE_PER_BACKEND = 2
"""Connections to a backend that an idle gateway may have, for its polls."""
_TASKS_PER_BACKEND = 2
"""What polls a backend, and what learns its slots: a reload may have added backends."""


def check_now(stage: Stage) -> Iterator[str]:
    """Yield what does not hold of the cores."""
    for room, check in stage.process.gateway.scheduler.checks().items():
        try:
            check()
        except InvariantError as error:
            yield f"{room} contradicts itself: {error}"


def check_idle(stage: Stage) -> Iterator[str]:
    """Yield what is left in a gateway that has had no request for a while."""
    gateway, place = stage.process.gateway, stage.machine.place
    state = gateway.state()
    leases, parked = len(gateway.scheduler.admission.leases), state.parked_body_bytes
    memories = 0 if gateway.programs is None else len(gateway.programs.leases)
    held = ((leases, "slots"), (memories, "places in memory"), (parked, "bytes of bodies"))
    for count, what in (*held, (state.num_connections, "connections of clients")):
        if count:
            yield f"{what} are held by an idle gateway: {count}"
    most = stage.process.num_descriptors_at_start + _MAX_IDLE_PER_BACKEND * len(stage.settings.gateway.backends)
    if place.descriptors.num_used > most:
        yield f"an idle gateway has {place.descriptors.num_used} descriptors, and {most} at most are its own"
    num_tasks = sum(not task.done() for task in place.tasks)
    further = len(stage.settings.gateway.backends) - stage.process.num_backends_at_start
    if num_tasks > stage.process.num_tasks_at_start + _TASKS_PER_BACKEND * max(0, further):
        yield f"an idle gateway has {num_tasks} tasks, and {stage.process.num_tasks_at_start} when it was started"


def check_ended(stage: Stage) -> Iterator[str]:
    """Yield what is left of a gateway that has just ended by itself."""
    gateway, place = stage.process.gateway, stage.machine.place
    for task in place.tasks:
        if not task.done():
            yield f"a task is left: {task.get_coro()!r}"
    for handle in stage.loop.pending_at(place):
        owner = _owner(handle)
        is_late_thread = isinstance(owner, ThreadWork) and owner.met_trouble
        if not (is_late_thread or isinstance(owner, LoopClock | Stream | MemoryTransport)):
            yield f"a timer is left: {handle!r}"
    descriptors = place.descriptors.num_used - 3  # standard input, output, error
    leases = len(gateway.scheduler.admission.leases)
    parked = gateway.state().parked_body_bytes
    for count, what in ((descriptors, "descriptors"), (leases, "slots"), (parked, "bytes of bodies")):
        if count:
            yield f"{what} are left: {count}"


def check_end(stage: Stage) -> Iterator[str]:
    """Yield what does not hold when everything has ended."""
    yield from check_left_over(stage)
    yield from check_requests(stage, lambda mark: stage.process)
    yield from _unknown_models(stage)
    yield from _decisions(stage)


def _unknown_models(stage: Stage) -> Iterator[str]:
    """Yield which requests were told that nobody serves their model, although no fault has kept the gateway from an engine for
    a while."""
    slack = from_seconds(3 * stage.scenario.poll_secs + 5.0)
    harms = [(began_at, ended_at) for name, began_at, ended_at in stage.harms if name not in _LEAVE_ENGINES_ALONE]
    for mark, sent in stage.ledger.sent.items():
        if sent.model != MODEL or not _is_told_unknown(sent):
            continue
        since, until = sent.sent_at - slack, sent.ended_at or stage.loop.micros
        if since >= stage.process.lives[0].began_at and not any(b <= until and e >= since for b, e in harms):
            yield f"request {mark} was told that nobody serves {MODEL}"


def _is_told_unknown(sent: Sent) -> bool:
    return sent.answer is not None and (sent.status == 404 or b'"no_healthy_backend"' in sent.answer.body)


def check_left_over(scene: Scene) -> Iterator[str]:
    """Yield what nothing has caught, and what is left when all programs have ended."""
    yield from _unhandled(scene)
    yield from _left_over(scene)


def _unhandled(stage: Scene) -> Iterator[str]:
    for context in stage.loop.errors:
        yield f"nothing has caught an error: {context.get('message')}: {context.get('exception')!r}"


def _left_over(stage: Scene) -> Iterator[str]:
    loop = stage.loop
    for task in sorted(asyncio.all_tasks(loop) - set(loop.killed), key=asyncio.Task.get_name):
        yield f"a task is left: {task.get_coro()!r}"
    for handle in loop.pending():
        if not isinstance(_owner(handle), LoopClock):
            yield f"a timer is left: {handle!r}"
    for connection in stage.network.connections.values():
        yield f"connection {connection.number} to {connection.target} is left"


def _owner(handle: asyncio.Handle) -> object:
    """Return whose method is called: that of the clock of the loop outlives programs, and so do bytes under way."""
    return getattr(getattr(handle, "_callback", None), "__self__", None)


def check_requests(stage: Scene, process_of: Callable[[str], GatewayProcess]) -> Iterator[str]:
    """Yield which requests ended otherwise for the gateway than for their clients, or several times. `process_of` returns the
    gateway that a request was sent to, by its mark."""
    lines: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in stage.log.lines:
        fields = msgspec.json.decode(line)
        if "id" in fields:
            lines[fields["id"]].append(fields)
    for mark, sent in stage.ledger.sent.items():
        told = lines[mark]
        if sent.fate is None:
            yield f"request {mark} has never ended"
        elif len(told) > 1:
            yield f"request {mark} has ended several times for the gateway: {told}"
        elif sent.fate is Fate.ANSWERED and not is_late_head(sent):
            if told and not _is_same_end(sent, told[0]):
                yield f"request {mark} was answered with {sent.status}, and for the gateway: {told}"
            elif not told and not process_of(mark).was_killed_within(sent.sent_at, (sent.ended_at or 0) + SECOND):
                yield f"request {mark} was answered with {sent.status}, and the gateway knows nothing of it"
        yield from _broken_off(process_of(mark), sent)


def _broken_off(process: GatewayProcess, sent: Sent) -> Iterator[str]:
    """Yield whether the gateway has ended a stream with an error for which there is no reason."""
    if sent.error_code == "scheduler_preempted" and sent.has_tokens:
        yield f"request {sent.mark} was a victim after its first byte"
    if sent.error_code == "shutting_down" and not process.was_stopping_within(sent.sent_at, sent.ended_at or 0):
        yield f"request {sent.mark} was told that the gateway shuts down, and it did not"


def _is_same_end(sent: Sent, told: dict[str, Any]) -> bool:
    """Return whether an answer is the one that the log of the gateway has."""
    # Behind the head of a stream that the gateway has sent in silence, an error is an event.
    is_error_event = sent.streams and sent.answer is not None and b'"error"' in sent.answer.body
    return told["status"] == sent.status or (is_error_event and told["status"] >= 400)


def _decisions(stage: Stage) -> Iterator[str]:
    """Yield what does not hold of the log of decisions, and of what the engines saw."""
    books = Books(stage.ledger.sent, stage.stood_still)
    places = defaultdict[str, list[Place]](list)
    lives = lives_of(stage.decision_log.read_bytes().splitlines(keepends=True))
    for life in stage.process.lives:
        # Before its end: the next life may begin in that very instant, and this one have left no line.
        lines = next((each for each in lives if life.began_at <= _began_at(each) < _end_of(life, stage)), [])
        yield from check_replay(lines, may_lack_lines=life.may_lack_lines)
        yield from books.read(lines)
        yield from ProgramBooks(stage.stood_still, places).read(lines, may_lack_lines=life.may_lack_lines)
        yield from books.end_life(life.began_at, _end_of(life, stage), may_lack_lines=life.may_lack_lines)
    stage.reasons.update(books.reasons)
    engines = EngineBooks((run for engine in stage.engines for run in engine.runs), stage.stood_still)
    yield from engines.check_holds(books)
    failures = [began_at for name, began_at, _ in stage.harms if name not in _NO_ENGINE_FAILS]
    failures += engines.silences(from_seconds(stage.settings.gateway.ejection.silence_secs))
    yield from engines.check_places(places, books, until=min(failures, default=stage.loop.micros))
    gateway, num_preemptions = stage.settings.gateway, Counter(mark for mark, _ in books.preemptions)
    yield from engines.check_attempts(gateway.max_attempts, num_preemptions)
    lives_spans = [(life.began_at, _end_of(life, stage)) for life in stage.process.lives]
    spans = [(sent.sent_at, sent.ended_at or stage.loop.micros) for sent in stage.ledger.sent.values()]
    yield from engines.check_budget(gateway.retry, lives_spans, spans, books.preemptions)


def lives_of(lines: Sequence[bytes]) -> list[list[bytes]]:
    """Return the lines of each life of the process, of which some may have left none."""
    lives: list[list[bytes]] = []
    for line in lines:
        if line.startswith(b'{"room":"%b","version"' % LOG_ROOM.encode()):
            lives.append([])
        if not lives:  # The first line of a life is lost with its beginning.
            lives.append([])
        lives[-1].append(line)
    return lives


def _began_at(lines: Sequence[bytes]) -> int:
    """Return the first instant of which a line speaks, or -1 if none does."""
    return next((entry["at"] for line in lines if "at" in (entry := msgspec.json.decode(line))), -1)


def _end_of(life: Life, stage: Stage) -> int:
    return stage.loop.micros if life.ended_at is None else life.ended_at


def check_replay(lines: Sequence[bytes], *, may_lack_lines: bool) -> Iterator[str]:
    """Yield whether the cores decide otherwise when the inputs in the log of a life are given again, or a line is not as it was
    written. Only if its last lines may be missing may it end without a seal."""
    found = Verifier(ROOMS).run(("log", number, line) for number, line in enumerate(lines, 1))
    if found.difference is not None:
        where = f"from line {found.difference.place.line} of {len(lines)} on: {found.difference.problem}"
        yield f"the log of decisions is another one when it is run again, {where}"
    elif not may_lack_lines and (found.num_unsealed or found.torn):
        yield f"the log of decisions ends without a seal: {found.num_unsealed} lines"
