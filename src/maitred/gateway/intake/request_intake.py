"""Request intake: from the head of a request to a `ProxyRequest` that may ask for a slot, or to the error that refuses it.

Everything that can be decided about a request by itself is decided here, before it costs a slot. In this order:

    1. the tenant   by its API key, if keys are configured; else 401, and nothing else is read
    2. the body     read whole, within its size limit and the budget of all bodies: a slow upload holds no slot
    3. the fields   only those that decisions depend on are parsed; an invalid body is refused
    4. the class    by its header, else its objective, else `service_tier`, else `default`; never above the cap of the tenant

A request that is refused here is counted by its error code (`intake_refusals`), and admission never sees it. Compiled
(`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

from maitred.admission import Admission
from maitred.admission.terms.config import class_from_name
from maitred.core.decisions import NOTES_ROOM, NoteTaker
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros
from maitred.gateway import error_responses
from maitred.gateway.access.auth import Caller, FurtherKeys, resolve_tenant
from maitred.gateway.access.inbound_head import InboundHead
from maitred.gateway.access.page_access import PageAccess, Viewer
from maitred.gateway.bodies.body_budget import BodyBudget, BodyLease
from maitred.gateway.bodies.large_body import LARGE_BYTES, LargeBody, count_characters
from maitred.gateway.bodies.program_fields import NO_PROGRAM, ProgramOfRequest, ask_for_usage
from maitred.gateway.bodies.prompt_text import LARGE_PROMPT_BYTES
from maitred.gateway.bodies.request_fields import NO_HINTS, REQUEST_ID_HEADER, BodyFields, model_required, parse_body_fields
from maitred.gateway.bodies.request_work import UsualOutputs, count_sequences, output_limit
from maitred.gateway.config import GatewayConfig
from maitred.gateway.forwarding.proxy_request import Explanation, ProxyRequest
from maitred.gateway.intake.engine_priority import engine_priority, set_body_priority
from maitred.gateway.intake.intake_refusals import NO_FIELDS, IntakeRefusals
from maitred.gateway.intake.intake_rules import IntakeRules
from maitred.gateway.intake.large_body_reader import LargeBodyReader
from maitred.gateway.intake.passed_routes import read_passed
from maitred.gateway.observe.request_ids import RequestIds
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.gateway.observe.state import GatewayCounters
from maitred.gateway.routes import Route
from maitred.kv.block_hashes import BYTES_PER_TOKEN
from maitred.programs import ProgramRequest, ProgramsConfig
from maitred.routing import Signals
from maitred.scheduler.interface import ANY_MODEL, FleetView, ServedModel
from maitred.wire.clock import Clock
from maitred.wire.exchange import ApiError, ClientDisconnected, Exchange
from maitred.wire.messages import Headers
from maitred.wire.refusals import internal_error

log = logging.getLogger("maitred.gateway")
_DEFAULT_CLASS: Final = PriorityClass.DEFAULT  # members of enums are slow to look up


class RequestIntake:
    """Takes in every request that is to be forwarded."""

    def __init__(
        self,
        config: GatewayConfig,
        core: Admission,
        fleet: FleetView,
        counters: GatewayCounters,
        clock: Clock,
        budget: BodyBudget,
        observer: RequestObserver,
        ids: RequestIds,
        signals: Signals = Signals.NOTHING,
        programs: ProgramsConfig = ProgramsConfig(),
        *,
        reads_answers: bool = True,
        notes: NoteTaker | None = None,
        eligible: Callable[[Exchange, ServedModel], tuple[int, ...]] | None = None,
        further_keys: Sequence[FurtherKeys] = (),
        objectives: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`core` has the admission config in force. `budget` is that of all bodies. `observer` is told of refused requests.
        `signals` are those that the router reads. `reads_answers` says that answers pass this process.
        `notes` is told which class a request has asked for, if there is a log.
        `eligible` returns which backends alone may have a request (`Request.instances`), and raises ApiError if none may; None:
        any may. `objectives` are the priorities of those that discovery finds."""
        self._core, self._objectives = core, objectives
        self._fleet = fleet
        self._counters, self._further_keys = counters, further_keys
        self._clock = clock
        self._observer = observer
        self._signals, self._reads_answers, self._eligible, self._notes = signals, reads_answers, eligible, notes
        self._budget = budget
        self._large_bodies = LargeBodyReader()
        self.usual_outputs = UsualOutputs()
        self._ids = ids
        self._refusals = IntakeRefusals(core, counters, observer, ids)
        self.rules = self.rules_of(config, programs)
        """Those in force."""

    @property
    def access(self) -> PageAccess:
        """Who sees which page, as it is in force."""
        return self.rules.access

    def rules_of(self, config: GatewayConfig, programs: ProgramsConfig) -> IntakeRules:
        """Return the rules that follow from a configuration, for `use`."""
        reads_usage = self._observer.reads_usage
        return IntakeRules(
            *(config, programs, self._signals, self._further_keys),
            reads_usage=reads_usage,
            reads_answers=self._reads_answers,
            reads_objectives=self._core.config.reads_objectives,
        )

    def use(self, rules: IntakeRules) -> None:
        """Go by `rules` for the requests that arrive from now on. Cannot fail."""
        self.rules = rules
        self._budget.limit = rules.config.max_parked_body_bytes

    async def take_in(self, exchange: Exchange, operator: Viewer | None = None) -> ProxyRequest | None:
        """Return a request that may be forwarded, or None if it was refused, or if its client has disconnected. `operator` is
        its sender if that is known to be the operator, who is not asked for a key again.

        Call `release` on its `body_lease` when the request has ended.
        """
        began_at, rules, fields = self._clock.now(), self.rules, NO_FIELDS
        lease: BodyLease | None = None
        proxied: ProxyRequest | None = None
        tenant: str | None = None
        try:
            inbound = rules.heads.read_head(exchange)
            caller = rules.keys.authenticate(inbound.credentials) if rules.needs_key and operator is None else None
            tenant = resolve_tenant(caller, inbound.tenant, exchange.client) if operator is None else operator.tenant
            lease = BodyLease(self._budget, tenant, exchange.client)
            body = exchange.take_whole_body(rules.config.max_body_bytes)
            arrival = began_at
            if body is None:
                body = await self._read_upload(exchange, lease, rules.config.max_body_bytes)
                arrival = self._clock.now()  # After the body: a slow upload is not time that the request has waited.
            else:
                lease.take_bytes(len(body))
            if inbound.content_coding is not None:
                limit = rules.config.max_body_bytes
                body = await self._large_bodies.decode(exchange, body, inbound.content_coding, limit, lease)
            route = inbound.route
            large = await self._large_bodies.read(exchange, body, route) if len(body) > LARGE_BYTES else None
            if route is not None and route.is_json:
                fields = parse_body_fields(body, route, large)
            else:
                access = None if operator is not None else rules.access
                route, fields = read_passed(exchange, body, access, rules.passed_paths, large)
            request = self._read_request(exchange, rules, inbound, route, fields, tenant, caller, lease, body, arrival, large)
            fields = NO_FIELDS  # They refer to the body, and compiled, the locals of a coroutine live long.
            if large is not None or inbound.content_coding is not None or len(body) > LARGE_PROMPT_BYTES:
                await self._finish_in_steps(exchange, request, body, large)
                large = None
            proxied = request
        except ApiError as error:
            self._refusals.refuse(exchange, error, began_at, tenant, fields)
        except ClientDisconnected:
            self._refusals.note_disconnect(exchange, began_at, tenant)
        except asyncio.CancelledError:  # The server ends.
            self._refusals.refuse(exchange, error_responses.shutting_down(), began_at, tenant, fields)
            raise
        except Exception:
            log.exception("a request could not be taken in")
            self._refusals.refuse(exchange, internal_error("gateway"), began_at, tenant, fields)
        finally:
            if proxied is None and lease is not None:
                lease.release()
        return proxied

    async def _finish_in_steps(self, exchange: Exchange, request: ProxyRequest, body: bytes, large: LargeBody | None) -> None:
        """Do what is left to do of a request with a body that is not small. Raises ClientDisconnected."""
        if large is not None:
            request.body = await self._large_bodies.change(exchange, body, large)
        if request.request.prefix is not None:
            await self._large_bodies.prepare_prompt(exchange, request.request.prefix, large)
        request.ready_at = self._clock.now()

    async def _read_upload(self, exchange: Exchange, lease: BodyLease, max_bytes: int) -> bytes:
        """Return a body that comes after the head. Raises ApiError, ClientDisconnected."""
        self._ids.mark_answer(exchange)  # Its connection may refuse it while its body comes.
        lease.begin_upload(exchange.abort_body)
        body = await exchange.read_body(max_bytes, lease.take_bytes)
        lease.end_upload()
        exchange.added_headers = None
        return body

    def _read_request(
        self,
        exchange: Exchange,
        rules: IntakeRules,
        inbound: InboundHead,
        route: Route,
        fields: BodyFields,
        tenant: str,
        caller: Caller | None,
        lease: BodyLease,
        body: bytes,
        arrival: Micros,
        large: LargeBody | None,
    ) -> ProxyRequest:
        """Return a request that is there whole since `arrival`. `caller` has sent it with a key. Raises ApiError for one that
        cannot be forwarded."""
        served = self._served_model(route, fields)
        model = served.name
        priority_class = self._effective_class(inbound, fields, tenant, caller) if route.needs_slot else _DEFAULT_CLASS
        stream = fields.stream is True
        found, hints = NO_PROGRAM, NO_HINTS
        if route.is_json:
            if rules.programs is not None:
                found = rules.programs.read(exchange.headers, body, route, stream=stream, large=large)
            if rules.hints is not None:
                hints = rules.hints.read_hints(exchange.headers, body, model, large)
        number, request_id = self._ids.next(inbound.request_id)
        limit, sequences = output_limit(fields), count_sequences(fields, route, large)
        request = Request(
            id=number,
            arrival=arrival,
            prompt_tokens=len(body) // BYTES_PER_TOKEN,
            max_output_tokens=limit,
            sequences=sequences if sequences == 1 or self._core.config.counts_sequences else 1,
            client_id=request_id.decode("latin-1"),
            model=model,
            priority_class=priority_class,
            tenant=tenant,
            program=found.program or hints.program,
            parent_program=found.parent or hints.parent_program,
            stream=stream and self._reads_answers,  # One whose events nobody sees would look silent.
            routing_key=hints.routing_key,
            instances=() if self._eligible is None else self._eligible(exchange, served),
            prefix=hints.prefix,
        )
        own: Headers = [(REQUEST_ID_HEADER, request_id)]
        task = exchange.task or cast("asyncio.Task[None]", asyncio.current_task())
        proxied = ProxyRequest(
            *(route, request, served, exchange.method, inbound.target, own, inbound.forwarded, body, request_id, lease, task)
        )
        if self._notes is not None and self._notes.takes_notes and route.needs_slot:
            self._notes.log_note(NOTES_ROOM, self._class_note(inbound, fields, request))
        if inbound.asks_decision:
            proxied.explanation = Explanation(self._asked_class(inbound, fields).label)
        output = limit if limit is not None else self.usual_outputs.mean(model) if route.has_output else 0
        proxied.token_cost = request.prompt_tokens + output * sequences or 1
        if rules.changes_forwarded:
            _change_forwarded(proxied, rules, found, large)
        return proxied

    def _served_model(self, route: Route, fields: BodyFields) -> ServedModel:
        """Return the model that the body names, or the only one that is served. Raises ApiError if there is none or several, or
        if no backend that is up serves it."""
        if route.asks_each:
            model = ANY_MODEL
        elif fields.model is not None:
            model = str(fields.model)
        else:
            model = self._only_model()
        served = self._fleet.find_model(model)
        if served is None or not served.backends:
            raise error_responses.model_unavailable(self._fleet, model)
        return served

    def _only_model(self) -> str:
        served = self._fleet.list_models()
        if not served:
            raise error_responses.nothing_served(self._fleet)
        if len(served) > 1:
            raise model_required()
        return str(served[0]["id"])

    def _asked_class(self, inbound: InboundHead, fields: BodyFields) -> PriorityClass:
        """Return the class that a request asks for; the default class if it asks for none, or for one that there is not."""
        of_objective = self._class_of_objective(inbound)
        if of_objective is not None:
            return of_objective
        # Beside `_effective_class` and not in it, because a call would cost every request, and few clients ask.
        tiers, tier = self._core.config.service_tiers, fields.service_tier
        named = inbound.requested_class
        if not inbound.names_class and isinstance(tier, str) and tier in tiers:
            named = class_from_name(tiers[tier])
        return _DEFAULT_CLASS if named is None else named

    def _class_of_objective(self, inbound: InboundHead) -> PriorityClass | None:
        if inbound.objective is None or inbound.names_class:
            return None
        return self._core.config.class_of_objective(inbound.objective, self._objectives)

    def _class_note(self, inbound: InboundHead, fields: BodyFields, request: Request) -> dict[str, Any]:
        """Return which class a request has asked for, and by which rule it was given its own."""
        asked = self._asked_class(inbound, fields)
        note: dict[str, Any] = {"id": request.id, "asked": asked.label}
        if asked is not request.priority_class:
            note["rule"] = f"the highest that tenant {request.tenant} may have"
        elif inbound.names_class and inbound.requested_class is None:
            note["rule"] = "as there is no class of the name that it gave"
        elif self._class_of_objective(inbound) is not None:
            note["rule"] = f"by its objective {inbound.objective}"
        elif not inbound.names_class:
            note["rule"] = "as it named none" if fields.service_tier is None else "by its service_tier"
        return note

    def _effective_class(self, inbound: InboundHead, fields: BodyFields, tenant: str, caller: Caller | None) -> PriorityClass:
        """Return the lower of the requested class and the cap of the key, or else of the tenant. Counts unknown and lowered
        classes."""
        config, named = self._core.config, inbound.requested_class
        own_class = None if caller is None else caller.priority_class
        if not inbound.names_class:
            tier = fields.service_tier
            if own_class is not None:
                named = own_class
            if isinstance(tier, str) and tier in config.service_tiers:
                named = class_from_name(config.service_tiers[tier])
        if inbound.objective is not None and (of_objective := self._class_of_objective(inbound)) is not None:
            named = of_objective
        cap = config.class_cap(tenant) if own_class is None else own_class
        if named is not None and named <= cap:
            return named
        requested = _DEFAULT_CLASS if named is None else named
        effective = requested if requested <= cap else cap
        if config.mode == "priority":
            label = self._counters.tenant_label(tenant)
            if named is None:
                self._counters.unknown_class[label] += 1
            if effective is not requested:
                self._counters.clamped_classes[label, requested.label, effective.label] += 1
        return effective


def _change_forwarded(proxied: ProxyRequest, rules: IntakeRules, found: ProgramOfRequest, large: LargeBody | None) -> None:
    """Change what the backend gets where it must differ from what the client has sent."""
    route = proxied.route
    if rules.programs is not None and route.is_json:
        _set_program(proxied, found, large)
    elif route.generates and rules.reads_usage:
        _ask_for_usage(proxied, large)
    if rules.forwards_priority and route.needs_slot and route.is_json:
        number = engine_priority(proxied.request.priority_class, rules.config.forward_priority)
        proxied.body = set_body_priority(proxied.body, number, large)


def _set_program(proxied: ProxyRequest, found: ProgramOfRequest, large: LargeBody | None) -> None:
    """Note which program a request belongs to."""
    request, received = proxied.request, proxied.body
    proxied.body, proxied.hides_usage = found.body, found.hides_usage
    if not proxied.route.generates:  # What only reads a prompt leaves nothing in KV memory that a later request needs.
        return
    proxied.ends_program = found.is_last
    proxied.program = ProgramRequest(
        id=request.id,
        client_id=request.client_id,
        model=request.model,
        tenant=request.tenant,
        program=found.program,
        parent=found.parent,
        priority_class=request.priority_class,
        characters=count_characters(received) if large is None else large.characters,
    )


def _ask_for_usage(proxied: ProxyRequest, large: LargeBody | None) -> None:
    """Ask for the usage of a stream that tells it on demand only."""
    if proxied.request.stream and proxied.route.reports_usage_on_demand:
        asking = ask_for_usage(proxied.body, large)
        proxied.hides_usage = asking is not None
        proxied.body = asking or proxied.body
