"""Refusals of requests before they are taken in: the answer, and what metrics and the access log say of them.

What is known of such a request depends on how far it has come: nothing without a valid key, the tenant with one, the model when
the body was read. Its id is in the answer in any case.
"""

from __future__ import annotations

from typing import Final

from maitred.admission import Admission
from maitred.core.units import Micros
from maitred.gateway.bodies.request_fields import BodyFields
from maitred.gateway.observe.request_ids import RequestIds
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.gateway.observe.request_record import CLIENT_GONE
from maitred.gateway.observe.state import GatewayCounters
from maitred.wire.exchange import ApiError, Exchange, send_bytes, send_error

NO_FIELDS: Final = BodyFields()
"""Those of a body that was not read."""


class IntakeRefusals:
    """Refuses requests."""

    def __init__(
        self,
        core: Admission,
        counters: GatewayCounters,
        observer: RequestObserver,
        ids: RequestIds,
    ) -> None:
        """`core` has the admission config in force. `observer` is told of each request that is refused."""
        self._core, self._counters, self._observer, self._ids = core, counters, observer, ids

    def refuse(self, exchange: Exchange, error: ApiError, began_at: Micros, tenant: str | None, fields: BodyFields) -> None:
        """Answer with an error, and count it. `tenant` is None if it is not known."""
        request_id = self._ids.mark_answer(exchange)
        if error.status == 401 and not self._core.config.preset.describes_unauthorized:
            send_bytes(exchange, 401, b"", b"text/plain", error.headers)  # SMG sends the status alone.
        else:
            send_error(exchange, error, exchange.path)
        self._count(error, tenant)
        self._observer.refuse(exchange, error.status, error.code or "", began_at, request_id, tenant or "", fields.model or "")

    def note_disconnect(self, exchange: Exchange, began_at: Micros, tenant: str | None) -> None:
        """Count a request of which the body has not come: its client has left, or its connection has refused the rest."""
        status, code, refusal = CLIENT_GONE, "", exchange.refusal
        if refusal is not None:
            status, code = refusal.status, refusal.code or ""
            self._count(refusal, tenant)
        self._observer.refuse(exchange, status, code, began_at, self._ids.mark_answer(exchange), tenant or "")

    def _count(self, error: ApiError, tenant: str | None) -> None:
        code = error.code or "invalid_request"
        self._counters.refused_before_admission[code] += 1
        if tenant is not None:
            self._counters.count_refusal(tenant, code)
