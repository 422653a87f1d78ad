"""Reception: from the first byte of a request to a `Call` that asks for a slot, or to the answer that refuses it.

All that can be said of a request by itself is said here, before it costs anyone a slot: its body is read whole, within a limit,
and the few fields that decisions depend on are parsed.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable

from maitred.admission import AdmissionConfig
from maitred.gateway import refusals
from maitred.gateway.call import Call
from maitred.gateway.config import GatewayConfig
from maitred.gateway.fleet import Fleet
from maitred.gateway.intake import REQUEST_ID, read_fields, read_headers
from maitred.gateway.metrics import Counts
from maitred.gateway.routes import ROUTES
from maitred.request import PriorityClass, Request
from maitred.units import Micros
from maitred.wire import asgi
from maitred.wire.asgi import ApiError, Receive, Scope, Send

log = logging.getLogger("maitred.gateway")
BYTES_PER_TOKEN = 4
"""Of a request body, when a prompt's length is guessed from it."""


class Reception:
    """`core_config` tells the admission config in force, `now` the time."""

    def __init__(
        self,
        config: GatewayConfig,
        core_config: Callable[[], AdmissionConfig],
        fleet: Fleet,
        counts: Counts,
        now: Callable[[], Micros],
    ) -> None:
        self._config = config
        self._core_config = core_config
        self._fleet = fleet
        self._counts = counts
        self._now = now
        self._ids = itertools.count()
        self._id_prefix = f"maitred-{secrets.token_hex(6)}-".encode()

    async def receive(self, scope: Scope, receive: Receive, send: Send) -> Call | None:
        """None: it was answered already, or there is nobody to answer. A call must be handed to `done` when it has ended."""
        try:
            return self._take_in(scope, await asgi.read_body(scope, receive, self._config.max_body_bytes))
        except ApiError as error:
            refused = error
        except asgi.ClientGone:
            return None
        except Exception:
            log.exception("a request could not be taken in")
            refused = refusals.internal()
        self._counts.refused[refused.code or "invalid_request"] += 1
        await asgi.send_error(send, refused)
        return None

    def done(self, call: Call) -> None:
        """It has ended, and its body is kept no longer."""

    def _take_in(self, scope: Scope, body: bytes) -> Call:
        """Raises ApiError for what can be said to be wrong already."""
        fields = read_fields(body)
        if not self._fleet.serving(fields.model):
            raise refusals.not_served(self._fleet, fields.model)
        inbound = read_headers(scope["headers"])
        priority_class = inbound.priority_class
        if priority_class is None:
            self._counts.unknown_class += 1
            priority_class = PriorityClass.DEFAULT
        number = next(self._ids)
        request_id = inbound.request_id or b"%b%d" % (self._id_prefix, number)
        inbound.forward.append((REQUEST_ID, request_id))
        request = Request(
            id=number,
            arrival=self._now(),
            prompt_tokens=len(body) // BYTES_PER_TOKEN,
            max_output_tokens=fields.max_output_tokens,
            client_id=request_id.decode("latin-1"),
            model=fields.model,
            priority_class=priority_class,
            stream=fields.stream is True,
        )
        query = scope["query_string"]
        path = f"{scope['path']}?{query.decode('latin-1')}" if query else scope["path"]
        return Call(ROUTES[scope["path"]], request, path, inbound.forward, body, request_id)
