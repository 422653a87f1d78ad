"""Reception: from the first byte of a request to a `Call` that asks for a slot, or to the answer that refuses it.

All that can be said of a request by itself is said here, before it costs anyone a slot. In this order:

    1. who it is from     an API key, if any are needed; else 401, and nothing else is looked at
    2. its body           read whole, within its limit and the budget for all bodies: a slow upload holds no slot
    3. what it asks for   only the fields that decisions depend on are parsed; an invalid body is refused
    4. its class          by the header, else by `service_tier`, else `default`; never above the cap of its tenant

What is refused here is counted by its code, and never seen by admission.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable

from maitred.admission import AdmissionConfig, parse_class
from maitred.admission.config import class_named
from maitred.gateway import refusals
from maitred.gateway.affinity import AffinityReader
from maitred.gateway.auth import Keys
from maitred.gateway.budget import BodyBudget, Lease
from maitred.gateway.call import Call
from maitred.gateway.config import GatewayConfig
from maitred.gateway.counts import Counts
from maitred.gateway.fleet import Fleet
from maitred.gateway.forwarding import engine_priority, with_priority
from maitred.gateway.intake import AUTHORIZATION, REQUEST_ID, Fields, HeaderReader, Inbound, must_name_a_model, read_fields
from maitred.gateway.routes import ROUTES
from maitred.gateway.tenants import tenant_of
from maitred.kv.keys import BYTES_PER_TOKEN
from maitred.request import PriorityClass, Request
from maitred.routing import Reads
from maitred.units import Micros
from maitred.wire import asgi
from maitred.wire.asgi import ApiError, Headers, Receive, Scope, Send

log = logging.getLogger("maitred.gateway")


class Rules:
    """What follows from one configuration. A request goes by those that were in force when it came."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.keys = Keys(config.api_key, config.tenant_api_keys)
        own = config.upstream_api_key
        self.authorization: Headers = [(AUTHORIZATION, f"Bearer {own}".encode())] if own else []
        """For the backend."""
        self.headers = HeaderReader(
            config.tenant_header_name.lower().encode() if config.trust_tenant_header else None,
            kept_back=[AUTHORIZATION] if self.keys or own else [],
        )


class Reception:
    """`core_config` tells the admission config in force, `now` the time; `reads` is what the router looks at."""

    def __init__(
        self,
        config: GatewayConfig,
        core_config: Callable[[], AdmissionConfig],
        fleet: Fleet,
        counts: Counts,
        now: Callable[[], Micros],
        reads: Reads = Reads.NOTHING,
    ) -> None:
        self._core_config = core_config
        self._fleet = fleet
        self._counts = counts
        self._now = now
        self._affinity = AffinityReader(reads)
        self._budget = BodyBudget(config.max_parked_body_bytes)
        self._ids = itertools.count()
        self._id_prefix = f"maitred-{secrets.token_hex(6)}-".encode()
        self.configure(config)

    @property
    def keys(self) -> Keys:
        """Those in force."""
        return self._rules.keys

    @property
    def parked_bytes(self) -> int:
        """Of all bodies that are being read or kept."""
        return self._budget.parked

    def configure(self, config: GatewayConfig) -> None:
        """From now on by this configuration; what has come already goes on by its own."""
        self._rules = Rules(config)
        self._budget.limit = config.max_parked_body_bytes

    async def receive(self, scope: Scope, receive: Receive, send: Send) -> Call | None:
        """None: it was answered already, or there is nobody to answer. A call must be handed to `done` when it has ended."""
        lease = self._budget.lease()
        call: Call | None = None
        try:
            call = await self._take_in(scope, receive, lease)
            return call
        except ApiError as error:
            refused = error
        except asgi.ClientGone:
            return None
        except Exception:
            log.exception("a request could not be taken in")
            refused = refusals.internal()
        finally:
            if call is None:
                lease.give_back()
        await self._refuse(send, refused)
        return None

    def done(self, call: Call) -> None:
        """It has ended, and its body is kept no longer. Idempotent."""
        call.lease.give_back()

    async def _refuse(self, send: Send, error: ApiError) -> None:
        self._counts.refused[error.code or "invalid_request"] += 1
        if error.status == 401 and self._core_config().flavour == "smg":
            await asgi.send_bytes(send, 401, b"", b"text/plain", error.headers)  # SMG says no more than the status
        else:
            await asgi.send_error(send, error)

    async def _take_in(self, scope: Scope, receive: Receive, lease: Lease) -> Call:
        """Raises ApiError for what can be said to be wrong already, and ClientGone."""
        route, rules = ROUTES[scope["path"]], self._rules
        inbound = rules.headers.read(scope["headers"])
        tenant = tenant_of(rules.keys.caller(inbound.authorization), inbound.tenant, scope)
        body = await asgi.read_body(scope, receive, rules.config.max_body_bytes, lease.take)
        fields = read_fields(body, route)
        model = self._model(fields)
        if not self._fleet.serving(model):
            raise refusals.not_served(self._fleet, model)
        priority_class = self._class(inbound, fields, tenant) if route.needs_slot else PriorityClass.DEFAULT
        belonging = self._affinity.read(scope["headers"], body, model)
        number = next(self._ids)
        request_id = inbound.request_id or b"%b%d" % (self._id_prefix, number)
        request = Request(
            id=number,
            arrival=self._now(),
            prompt_tokens=len(body) // BYTES_PER_TOKEN,
            max_output_tokens=fields.output_limit,
            client_id=request_id.decode("latin-1"),
            model=model,
            priority_class=priority_class,
            tenant=tenant,
            program=belonging.program,
            stream=fields.stream is True,
            routing_key=belonging.routing_key,
            prefix=belonging.prefix,
        )
        forward = [*inbound.forward, *rules.authorization, (REQUEST_ID, request_id)]
        if route.needs_slot and rules.config.forward_priority != "off":
            body = with_priority(body, engine_priority(priority_class, rules.config.forward_priority))
        return Call(route, request, _target(scope), forward, body, request_id, lease)

    def _model(self, fields: Fields) -> str:
        """The one it names; the only one that is served, if it need not name one. Raises ApiError."""
        if fields.model is not None:
            return str(fields.model)
        served = self._fleet.listed()
        if not served:
            raise refusals.unanswered(None)
        if len(served) > 1:
            raise must_name_a_model()
        return str(served[0]["id"])

    def _class(self, inbound: Inbound, fields: Fields, tenant: str) -> PriorityClass:
        """The class that it gets: what it asks for, and no more than its tenant may have. Counted where classes count."""
        config = self._core_config()
        asked = self._asked(inbound.asked, fields.service_tier, config)
        known = PriorityClass.DEFAULT if asked is None else asked
        effective = min(known, config.cap(tenant))
        if config.mode == "priority":
            label = self._counts.tenant_label(tenant)
            if asked is None:
                self._counts.unknown_class[label] += 1
            if effective < known:
                self._counts.clamps[label, known.label, effective.label] += 1
        return effective

    @staticmethod
    def _asked(named: str | None, tier: object, config: AdmissionConfig) -> PriorityClass | None:
        """None: the header names a class that there is not."""
        if named is None and isinstance(tier, str) and tier in config.service_tiers:
            return class_named(config.service_tiers[tier])
        return parse_class(named)


def _target(scope: Scope) -> str:
    query = scope["query_string"]
    path: str = scope["path"]
    return f"{path}?{query.decode('latin-1')}" if query else path
