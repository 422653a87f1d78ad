"""A backend as the scheduler knows it, the requests that it has, and what wants to know how it is (`BackendObserver`).

`fleet_view` keeps all backends up to date; nothing else changes one, except for the requests in flight.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

from maitred.admission import QueueEstimate
from maitred.admission.learned_slots import OwnRequest, OwnRequests, SlotController
from maitred.admission.terms.lead import NO_LEAD
from maitred.core.histogram import Histogram
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.scheduler.drivers.cancel_scope import CancelScope
from maitred.scheduler.ejection import Circuit
from maitred.scheduler.engines.report import EngineReport
from maitred.wire.origin import Origin

_STALE_AFTER: Final = 3
"""Looks in a row without an answer after which the last report of a load says nothing any more (SMG's number of intervals)."""


class Backend:
    """An engine behind HTTP, as routers see it (`InstanceView`)."""

    __slots__ = (
        *(
            "failures_in_a_row",
            "requests",
            "healthy",
            "in_flight",
            "index",
            "is_draining",
            "kv",
            "load",
            "models",
        ),
        *("origin", "has_been_polled", "problem", "reported_slots", "was_ever_healthy", "url"),
        *("learned_slots", "slot_shares", "lead", "own_requests", "in_use", "kv_tokens", "reading", "first_data_times"),
        *("circuit", "is_in_use", "is_left", "_queue", "_report", "_repeats"),
        *("is_drained", "is_leaving", "is_forgotten", "is_gone"),
    )

    def __init__(self, index: int, url: str) -> None:
        self.index = index
        self.origin = Origin.parse(url, where="--backend")
        self.url = str(self.origin)
        self.requests: dict[UpstreamRequest, None] = {}
        """Those that it has now, in the order in which they came: a set has the order of addresses in memory."""
        self.in_flight = 0
        """Sequences of the requests of this gateway that the backend has now."""
        self.has_been_polled = False  # whether a poll has ended, with or without success
        self.healthy = False
        self.was_ever_healthy = False
        """Whether it has been healthy before."""
        self.models: dict[str, dict[str, Any]] = {}
        """The models in its last good answer, by id; kept while it is down."""
        self.reported_slots: int | None = None
        """Requests that the backend reports it can run at once, or None if it reports no number."""
        self.learned_slots: SlotController | None = None
        """What learns its slots, or None if they are told or no limit."""
        self.lead = NO_LEAD
        """Learned slots beyond what it runs at once, as last told to admission."""
        self.slot_shares: dict[str, int] = {}
        """Its learned slots by pool, if it serves models of several."""
        self.own_requests = OwnRequests()
        """The requests of this gateway that it has, where its slots are learned."""
        self.in_use = asyncio.Event()
        """Set while it has such requests."""
        self.reading: EngineReport | None = None
        """What was last read of it for learned slots, or None."""
        self.first_data_times = Histogram()
        """From the sending of a request to the first data of its answer, µs."""
        self.load: EngineReport | None = None
        """The load that the backend reports, or None if that is unknown: nothing reads it, the backend reports none, or has not
        done so for `_STALE_AFTER` looks."""
        self._queue = QueueEstimate()
        self._report: EngineReport | None = None  # the last one, even if it is too old to be used
        self.kv_tokens: int | None = None
        """Tokens of its KV memory, as a report of its load has last said, or None if none has."""
        self._repeats = 0  # looks since then that found no other report
        self.kv: EngineReport | None = None
        """What the backend reports of its KV memory, or None if it reports nothing or nothing reads it."""
        self.is_draining = False
        """Whether nothing more is sent to it, because an operator wants that (`is_drained`) or it is about to go
        (`is_leaving`)."""
        # Forgotten: it goes as soon as it has no request.
        self.is_drained = self.is_leaving = self.is_forgotten = self.is_gone = False
        self.circuit = Circuit()
        """What is known of the requests that it has failed."""
        self.is_in_use = False  # whether it gets requests: it is healthy, and neither drained nor, unless all are, ejected
        self.is_left = False
        """Whether it is ejected, and other backends serve all of its models."""
        self.failures_in_a_row = 0
        """Polls that have failed since the last good one."""
        self.problem = "not polled yet"
        """Why the backend is not healthy, or "" if it is."""

    def takes(self, model: str) -> bool:
        """Return whether a request for `model` may be sent to it because its program has memory there."""
        return not self.is_left and self.serves(model)

    def serves(self, model: str) -> bool:
        """Return whether it serves `model`, be it ejected or not."""
        return self.healthy and not self.is_draining and (not model or model in self.models)

    def has_answered(self, since: Micros, num_answers: int) -> bool:
        """Return whether a piece of an answer has come since an instant at which it had given `num_answers`."""
        return self.circuit.num_answers != num_answers or any(sent.last_data_at >= since for sent in self.requests)

    def note_load(self, report: EngineReport | None) -> None:
        """Take over what the backend reports now, or None. The last report once more says that a look has found no other one:
        that may be a busy engine, so the report is used for a few looks, and then the load is unknown."""
        if report is not None and report is self._report:
            self._repeats += 1
            if self._repeats < _STALE_AFTER:
                return
            self.load = None
        else:
            self._report = self.load = report
            self._repeats = 0
            if report is not None and report.capacity is not None:
                self.kv_tokens = report.capacity
        waiting = None if self.load is None else self.load.waiting
        if self.load is None or waiting is None:
            self._queue.forget()
        else:
            self._queue.look(waiting, self.load.running or 0, self.in_flight)

    @property
    def waiting(self) -> int | None:
        """Requests that wait there, with what has come and gone since it reported its load, or None if it does not."""
        return None if self.load is None or self.load.waiting is None else self._queue.waiting(self.in_flight)

    @property
    def running(self) -> int | None:
        """Requests that run there, or None if it does not report its load."""
        return None if self.load is None else self.load.running

    @property
    def kv_usage(self) -> float | None:
        """Share of its KV memory in use, 0 to 1, or None if it does not report it."""
        return None if self.load is None else self.load.kv_usage

    def cached_blocks(self, request: Request) -> int:
        return 0


def others_serving(backends: Sequence[Backend], model: str, tried: Sequence[Backend]) -> Sequence[Backend]:
    """Return those of `backends` that serve `model` and are not in `tried`; ejected ones only if there are no others."""
    others = [backend for backend in backends if backend.serves(model) and backend not in tried]
    return [backend for backend in others if not backend.circuit.is_ejected] or others


class AnswerTimes(Protocol):
    """What is known of an answer: `RequestRecord`, as far as the fleet needs it."""

    sent_at: Micros | None
    first_data_at: Micros | None
    last_data_at: Micros
    num_events: int
    """Of a stream, with data."""


class UpstreamRequest(CancelScope):
    """A request at a backend. If it is cancelled, the backend has failed it: it is *abandoned*."""

    # What is seldom read before it is set stands in the class: to read it there is dear.
    may_be_abandoned = True
    """Whether it may be taken away from a backend that is down: it was not too often."""
    is_unanswered_probe = False
    """Whether it is a probe of which no answer has come: no other one is sent meanwhile."""
    record: AnswerTimes | None = None
    """What is known of its answer."""
    has_failed = False
    """Whether the backend failed it."""

    def __init__(self, backend: Backend, request: Request, task: asyncio.Task[None]) -> None:
        self.task = task
        self.backend = backend
        self.request = request
        # Not in the class: if thirty requests have begun before the first answer, to set them makes a dictionary for each.
        self.is_committed = self.is_complete = False
        """Whether its response goes to the client, and it is not taken away from its backend any more; whether its answer came
        whole, with status 200."""
        self.is_stranded = False
        """Whether admission knows that the slot of the request goes with it, since its backend takes no new requests."""
        self.is_probe = False
        """Whether its answer decides about a half-open backend."""
        self.own: OwnRequest | None = None
        """Its record for learned slots, or None if the slots of the backend are not learned."""

    @property
    def model(self) -> str:
        """The model that it asks for."""
        return self.request.model

    def waits_since(self, instant: Micros) -> bool:
        """Return whether it was sent at `instant` or before, and nothing of its answer has come."""
        record = self.record
        return record is not None and record.first_data_at is None and (record.sent_at or instant) <= instant

    @property
    def sent_at(self) -> Micros:
        """When it was sent; 0 if that is not known."""
        return 0 if self.record is None else self.record.sent_at or 0

    @property
    def last_data_at(self) -> Micros:
        """When the last piece of its answer came; 0 if none has."""
        return 0 if self.record is None else self.record.last_data_at

    def note_events(self, num_events: int, now: Micros) -> None:
        """Note that a piece of a stream has come, with `num_events`; usually each holds a token."""
        if self.own is not None:
            self.backend.own_requests.note_pieces(self.own, self.own.pieces + max(1, num_events), now)


class BackendObserver(Protocol):
    """What wants to know how backends are."""

    def on_backend_polled(self, backend: Backend) -> None:
        """Called after each poll of a backend, and when it is down, drained or in use again."""
        ...

    def on_backend_restarted(self, backend: Backend) -> None:
        """Called before `on_backend_polled` when the engine has started anew between two polls."""
        ...
