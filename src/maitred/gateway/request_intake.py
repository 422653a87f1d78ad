"""How much memory request bodies may take, all together.

A body is read before its request asks for a slot, and kept until the request has ended, because it may have to be sent again.
So what waits is paid for in memory, and somebody may upload slowly to a thousand connections. Each piece that is read is taken
from one budget; when that is spent, the body that needs more is refused.

One request on its way through the gateway: what it is, and what is sent on for it.

Reception: from the first byte of a request to a `ProxyRequest` that asks for a slot, or to the answer that refuses it.

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
from typing import Final

from maitred.admission import AdmissionConfig, parse_class
from maitred.admission.config import class_from_name
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros
from maitred.gateway import error_responses
from maitred.gateway.auth import ApiKeys, resolve_tenant
from maitred.gateway.config import GatewayConfig
from maitred.gateway.counters import GatewayCounters
from maitred.gateway.fleet import BackendFleet
from maitred.gateway.request_fields import (
    AUTHORIZATION_HEADER,
    REQUEST_ID_HEADER,
    ROUTES,
    BodyFields,
    HeaderSorter,
    Route,
    RoutingHintReader,
    SortedHeaders,
    engine_priority,
    model_required,
    parse_body_fields,
    set_body_priority,
)
from maitred.kv.block_hashes import BYTES_PER_TOKEN
from maitred.routing import Signals
from maitred.wire import asgi
from maitred.wire.asgi import ApiError, Headers, Receive, Scope, Send


class BodyBudget:
    """Bytes, shared by all that is being read or kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parked_bytes = 0
        """Bytes taken and not given back. More than the limit only if that was lowered meanwhile."""

    def open_lease(self) -> BodyLease:
        return BodyLease(self)


class BodyLease:
    """What one body holds of the budget."""

    __slots__ = ("_budget", "_held_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    def take_bytes(self, size: int) -> None:
        """So many bytes more were read. Raises ApiError 503 if there is no room for them."""
        if self._budget.parked_bytes + size > self._budget.limit:
            raise error_responses.body_budget_exhausted()
        self._budget.parked_bytes += size
        self._held_bytes += size

    def release(self) -> None:
        """All of it. Idempotent."""
        self._budget.parked_bytes -= self._held_bytes
        self._held_bytes = 0


MAX_COUNTED_OUTPUT_TOKENS: Final = 10_000_000
"""Of an answer, when its cost is guessed: more than any model gives, whatever its client allows."""


class ProxyRequest:
    """Made by the reception, carried through admission and relay, and handed back to the reception when it has ended."""

    __slots__ = ("body", "body_lease", "headers", "path", "request", "request_id", "response_started", "route")

    def __init__(
        self, route: Route, request: Request, path: str, headers: Headers, body: bytes, request_id: bytes, lease: BodyLease
    ) -> None:
        self.route = route
        self.request = request
        self.path = path
        """With its query string."""
        self.headers = headers
        """For the backend, complete."""
        self.body = body
        """For the backend."""
        self.request_id = request_id
        self.body_lease = lease
        """What its body holds of the budget."""
        self.response_started = False
        """Whether the head of an answer has gone out."""

    @property
    def token_cost(self) -> int:
        """Tokens of its prompt and of its answer, as far as they can be known."""
        answer = min(max(0, self.request.max_output_tokens or 0), MAX_COUNTED_OUTPUT_TOKENS)
        return max(1, self.request.prompt_tokens + answer)


log = logging.getLogger("maitred.gateway")


class IntakeRules:
    """What follows from one configuration. A request goes by those that were in force when it came."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.keys = ApiKeys(config.api_key, config.tenant_api_keys)
        own = config.upstream_api_key
        self.authorization: Headers = [(AUTHORIZATION_HEADER, f"Bearer {own}".encode())] if own else []
        """For the backend."""
        self.headers = HeaderSorter(
            config.tenant_header_name.lower().encode() if config.trust_tenant_header else None,
            withheld=[AUTHORIZATION_HEADER] if self.keys or own else [],
        )


class RequestIntake:
    """`core_config` tells the admission config in force, `now` the time; `reads` is what the router looks at."""

    def __init__(
        self,
        config: GatewayConfig,
        core_config: Callable[[], AdmissionConfig],
        fleet: BackendFleet,
        counts: GatewayCounters,
        now: Callable[[], Micros],
        reads: Signals = Signals.NOTHING,
    ) -> None:
        self._core_config = core_config
        self._fleet = fleet
        self._counters = counts
        self._now = now
        self._hint_reader = RoutingHintReader(reads)
        self._budget = BodyBudget(config.max_parked_body_bytes)
        self._ids = itertools.count()
        self._id_prefix = f"maitred-{secrets.token_hex(6)}-".encode()
        self.apply_config(config)

    @property
    def keys(self) -> ApiKeys:
        """Those in force."""
        return self._rules.keys

    @property
    def parked_bytes(self) -> int:
        """Of all bodies that are being read or kept."""
        return self._budget.parked_bytes

    def apply_config(self, config: GatewayConfig) -> None:
        """From now on by this configuration; what has come already goes on by its own."""
        self._rules = IntakeRules(config)
        self._budget.limit = config.max_parked_body_bytes

    async def take_in(self, scope: Scope, receive: Receive, send: Send) -> ProxyRequest | None:
        """None: it was answered already, or there is nobody to answer. A call must be handed to `done` when it has ended."""
        lease = self._budget.open_lease()
        call: ProxyRequest | None = None
        try:
            call = await self._parse_request(scope, receive, lease)
            return call
        except ApiError as error:
            refused = error
        except asgi.ClientDisconnected:
            return None
        except Exception:
            log.exception("a request could not be taken in")
            refused = error_responses.internal_error()
        finally:
            if call is None:
                lease.release()
        await self._send_refusal(send, refused)
        return None

    def release_body(self, call: ProxyRequest) -> None:
        """It has ended, and its body is kept no longer. Idempotent."""
        call.body_lease.release()

    async def _send_refusal(self, send: Send, error: ApiError) -> None:
        self._counters.refused_before_admission[error.code or "invalid_request"] += 1
        if error.status == 401 and self._core_config().flavour == "smg":
            await asgi.send_bytes(send, 401, b"", b"text/plain", error.headers)  # SMG says no more than the status
        else:
            await asgi.send_error(send, error)

    async def _parse_request(self, scope: Scope, receive: Receive, lease: BodyLease) -> ProxyRequest:
        """Raises ApiError for what can be said to be wrong already, and ClientDisconnected."""
        route, rules = ROUTES[scope["path"]], self._rules
        inbound = rules.headers.sort_headers(scope["headers"])
        tenant = resolve_tenant(rules.keys.authenticate(inbound.authorization), inbound.tenant, scope)
        body = await asgi.read_body(scope, receive, rules.config.max_body_bytes, lease.take_bytes)
        fields = parse_body_fields(body, route)
        model = self._model_of(fields)
        if not self._fleet.backends_serving(model):
            raise error_responses.model_unavailable(self._fleet, model)
        priority_class = self._effective_class(inbound, fields, tenant) if route.needs_slot else PriorityClass.DEFAULT
        belonging = self._hint_reader.read_hints(scope["headers"], body, model)
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
        forward = [*inbound.forwarded, *rules.authorization, (REQUEST_ID_HEADER, request_id)]
        if route.needs_slot and rules.config.forward_priority != "off":
            body = set_body_priority(body, engine_priority(priority_class, rules.config.forward_priority))
        return ProxyRequest(route, request, _target(scope), forward, body, request_id, lease)

    def _model_of(self, fields: BodyFields) -> str:
        """The one it names; the only one that is served, if it need not name one. Raises ApiError."""
        if fields.model is not None:
            return str(fields.model)
        served = self._fleet.list_models()
        if not served:
            raise error_responses.upstream_failed(None)
        if len(served) > 1:
            raise model_required()
        return str(served[0]["id"])

    def _effective_class(self, inbound: SortedHeaders, fields: BodyFields, tenant: str) -> PriorityClass:
        """The class that it gets: what it asks for, and no more than its tenant may have. Counted where classes count."""
        config = self._core_config()
        asked = self._requested_class(inbound.requested_class, fields.service_tier, config)
        known = PriorityClass.DEFAULT if asked is None else asked
        effective = min(known, config.class_cap(tenant))
        if config.mode == "priority":
            label = self._counters.tenant_label(tenant)
            if asked is None:
                self._counters.unknown_class[label] += 1
            if effective < known:
                self._counters.clamped_classes[label, known.label, effective.label] += 1
        return effective

    @staticmethod
    def _requested_class(named: str | None, tier: object, config: AdmissionConfig) -> PriorityClass | None:
        """None: the header names a class that there is not."""
        if named is None and isinstance(tier, str) and tier in config.service_tiers:
            return class_from_name(config.service_tiers[tier])
        return parse_class(named)


def _target(scope: Scope) -> str:
    query = scope["query_string"]
    path: str = scope["path"]
    return f"{path}?{query.decode('latin-1')}" if query else path
