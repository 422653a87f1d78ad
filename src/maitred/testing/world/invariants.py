"""What must hold in a simulation: after each turn of the loop in which a core has decided, and at the end.

At the end, the requests as clients saw them are held beside the lines about them in the log of the gateway, the log of
decisions is run again, and nothing may be left: no task, timer, connection, descriptor or byte.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from maitred.core.decisions import DecisionLog
from maitred.core.errors import InvariantError
from maitred.replay import replay
from maitred.testing.world.clients import Fate, Sent, is_late_head
from maitred.wire.loop_clock import LoopClock

if TYPE_CHECKING:
    from maitred.testing.world.stage import Stage


def check_now(stage: Stage) -> Iterator[str]:
    """Yield what does not hold of the cores."""
    for room, check in stage.gateway.scheduler.checks().items():
        try:
            check()
        except InvariantError as error:
            yield f"{room} contradicts itself: {error}"


def check_end(stage: Stage) -> Iterator[str]:
    """Yield what does not hold when everything has ended."""
    yield from _unhandled(stage)
    yield from _left_over(stage)
    yield from _requests(stage)
    yield from _attempts(stage)
    yield from _decisions(stage)


def _unhandled(stage: Stage) -> Iterator[str]:
    for context in stage.loop.errors:
        yield f"nothing has caught an error: {context.get('message')}: {context.get('exception')!r}"


def _left_over(stage: Stage) -> Iterator[str]:
    loop, gateway = stage.loop, stage.gateway
    for task in sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name):
        yield f"a task is left: {task.get_coro()!r}"
    for handle in loop.pending():
        callback = getattr(handle, "_callback", None)
        if not isinstance(getattr(callback, "__self__", None), LoopClock):  # It belongs to the loop.
            yield f"a timer is left: {handle!r}"
    for connection in stage.network.connections.values():
        yield f"connection {connection.number} to {connection.target} is left"
    descriptors = stage.machine.place.descriptors.num_used - 3  # standard input, output, error
    leases = len(gateway.scheduler.admission.leases)
    parked = gateway.state().parked_body_bytes
    for count, what in ((descriptors, "descriptors"), (leases, "slots"), (parked, "bytes of bodies")):
        if count:
            yield f"{what} are left: {count}"


def _requests(stage: Stage) -> Iterator[str]:
    """Yield which requests ended otherwise for the gateway than for their clients, or several times."""
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
        elif sent.fate is Fate.ANSWERED and not is_late_head(sent) and not (told and _is_same_end(sent, told[0])):
            yield f"request {mark} was answered with {sent.status}, and for the gateway: {told}"


def _attempts(stage: Stage) -> Iterator[str]:
    """Yield which requests the engines have had too often."""
    # A request that was lost with a kept connection is no attempt for the gateway, and the engine may have read it.
    received: Counter[str] = Counter()
    for engine in stage.engines:
        received.update(engine.received)
    most = 2 * stage.settings.gateway.max_attempts
    for mark, count in received.items():
        if count > most:
            yield f"request {mark} has come to engines {count} times"


def _is_same_end(sent: Sent, told: dict[str, Any]) -> bool:
    """Return whether an answer is the one that the log of the gateway has."""
    # Behind the head of a stream that the gateway has sent in silence, an error is an event.
    is_error_event = sent.streams and sent.answer is not None and b'"error"' in sent.answer.body
    return told["status"] == sent.status or (is_error_event and told["status"] >= 400)


def _decisions(stage: Stage) -> Iterator[str]:
    """Yield whether the log of decisions is another one when its inputs are given again, and victims after their first byte."""
    lines = stage.decision_log.read_bytes().splitlines(keepends=True)
    again: list[bytes] = []
    replay((line.rstrip(b"\n") for line in lines), DecisionLog(again.append))
    if again != lines:
        where = next((i for i, (a, b) in enumerate(zip(lines, again, strict=False)) if a != b), min(len(lines), len(again)))
        yield f"the log of decisions is another one when it is run again, from line {where + 1} of {len(lines)} on"
    responding: set[int] = set()
    for line in map(msgspec.json.decode, lines):
        if line["room"] != "admission":
            continue
        if line.get("input") == "first_byte" and "raised" not in line:
            responding.add(line["id"])
        decision = line.get("decision", {})
        if decision.get("action") == "preempt_slot" and decision["subject"] in responding:
            yield f"request {decision['subject']} is a victim after its first byte"
