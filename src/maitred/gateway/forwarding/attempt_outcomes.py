"""What an attempt has come to, told to everything that counts: metrics, the circuit of its backend (`scheduler.ejection`), the
polls.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from typing import Final

from maitred.admission import ReleaseReason
from maitred.core.units import Micros
from maitred.gateway.forwarding.retries import RetryPolicy
from maitred.gateway.observe.request_record import ENDED_EARLY, ERROR_IN_ANSWER, RequestRecord
from maitred.gateway.observe.state import GatewayCounters
from maitred.scheduler.interface import (
    AnsweredError,
    BackendAbandoned,
    FleetView,
    NotFoundThere,
    UpstreamRequest,
    UsageRefused,
    is_blameless,
)
from maitred.wire.errors import ConnectError, UpstreamError, Withheld

_DRAINED: Final = ReleaseReason.DRAINED  # members of enums are slow to look up
_FAILED: Final = ReleaseReason.FAILED


class AttemptOutcomes:
    """Told once of the answer of each attempt, and once of its end."""

    def __init__(self, fleet: FleetView, counters: GatewayCounters, retries: RetryPolicy) -> None:
        self._fleet, self._counters, self._retries = fleet, counters, retries

    def on_answer(self, sent: UpstreamRequest, *, is_whole: bool) -> None:
        """Count an answer that has begun as no failure of its backend. That of a stream may still break off, so it is a success
        at its end."""
        circuit = sent.backend.circuit
        circuit.num_answers += 1
        if circuit.needs_attention:
            if is_whole:
                self._fleet.ejection.on_success(sent)
            else:
                self._fleet.ejection.on_answer_begins(sent)

    def on_complete(self, sent: UpstreamRequest, record: RequestRecord, now: Micros) -> ReleaseReason:
        """Note that a response was sent whole at `now`. Return FAILED if it says itself that it has failed, or is a stream
        without the end that its API has, else DRAINED."""
        record.on_complete(now)
        if record.error is not None:
            return self._on_error_in_answer(sent, record)
        if not record.is_complete:
            # Counted, and not held against the backend: an engine of another make may end all of its streams so.
            self._counters.upstream_failures[ENDED_EARLY] += 1
            return _FAILED
        if sent.backend.circuit.needs_attention and record.is_stream:
            self._fleet.ejection.on_success(sent)
        return _DRAINED

    def _on_error_in_answer(self, sent: UpstreamRequest, record: RequestRecord) -> ReleaseReason:
        """Count an answer that was passed on whole and says that it has failed, if its status is 200."""
        if not record.has_failed:
            return _DRAINED
        self._counters.upstream_failures[ERROR_IN_ANSWER] += 1
        if record.error is not None and not record.error.is_fault_of_client and sent.is_committed:
            self._fleet.ejection.on_failure(sent, record.error.message)
        return _FAILED

    def on_abandoned(self, sent: UpstreamRequest) -> BackendAbandoned:
        """Return the failure of a request that was taken away from its backend, counted."""
        backend = sent.backend
        abandoned = BackendAbandoned(f"{backend.url} is down: {backend.problem or 'it says nothing'}")
        self.on_failure(sent, abandoned)
        return abandoned

    def on_failure(self, sent: UpstreamRequest, error: UpstreamError) -> None:
        """Count a failure."""
        ejection = self._fleet.ejection
        if not isinstance(error, NotFoundThere | UsageRefused | Withheld):
            self._counters.upstream_failures[error.reason] += 1
        if isinstance(error, ConnectError):
            self._fleet.note_unreachable(sent, error)
        elif not is_blameless(error):
            ejection.on_failure(sent, str(error))
        if isinstance(error, AnsweredError):
            if error.is_busy:
                ejection.on_busy(sent)
            if rest := self._retries.rest(error.retry_after):
                ejection.rest(sent.backend, rest)
