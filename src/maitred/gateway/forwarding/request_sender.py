"""RequestSender: what a request is given to that may be sent: it needs no slot, or holds one.

attempts            this process sends it to a backend, and forwards the response
picked_attempts     Envoy does, and is told the backend (`gateway.envoy`)
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from maitred.admission import ReleaseReason
from maitred.core.units import Micros
from maitred.gateway.forwarding.proxy_request import ProxyRequest
from maitred.wire.exchange import ResponseWriter


class RequestSender(Protocol):
    """Sends requests to backends."""

    def send(self, proxied: ProxyRequest, writer: ResponseWriter, now: Micros) -> Coroutine[Any, Any, ReleaseReason]:
        """Send a request at `now`, and return how it has ended. Raises ApiError if no backend answers, and MemoryLost if the
        program of the request has to wait for memory elsewhere; nothing has been sent then."""
        ...
