"""IntakeRules: what follows from one configuration for every request that is taken in, worked out once.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.gateway.access.auth import ApiKeys, FurtherKeys
from maitred.gateway.access.cors import CrossOrigins
from maitred.gateway.access.inbound_head import OBJECTIVE_HEADER, HeadReader
from maitred.gateway.access.page_access import PageAccess
from maitred.gateway.bodies.agent_headers import SessionReader
from maitred.gateway.bodies.program_fields import OWN_HEADERS, ProgramReader
from maitred.gateway.bodies.request_fields import API_KEY_HEADER, AUTHORIZATION_HEADER, RoutingHintReader
from maitred.gateway.config import GatewayConfig
from maitred.gateway.observe.request_trace import TRACE_HEADERS
from maitred.programs import ProgramsConfig
from maitred.routing import Signals


class IntakeRules:
    """What follows from one configuration. A request keeps the rules that were in force when it arrived."""

    def __init__(
        self,
        config: GatewayConfig,
        programs: ProgramsConfig,
        signals: Signals,
        further_keys: Sequence[FurtherKeys] = (),
        *,
        reads_usage: bool,
        reads_answers: bool = True,
        reads_objectives: bool = False,
    ) -> None:
        """`further_keys` are those outside of the configuration. `reads_usage` says that the usage of every generated answer is
        read, `reads_answers` that answers pass this process: if not, a usage that a client has not asked for could not be
        hidden from it. `reads_objectives`: the objective of a request says its class, and goes no further."""
        self.config = config
        self.cross_origins = CrossOrigins(config.cors_origins) if config.cors_origins else None
        """The origins whose pages may use the gateway; None: no page of another origin."""
        sessions = SessionReader(programs.session_headers)
        self.programs = None if programs.mode == "off" else ProgramReader(sessions, asks_for_usage=reads_answers)
        self.hints = RoutingHintReader(signals, sessions) if signals & (Signals.SESSION | Signals.PROMPT) else None
        self.reads_usage = reads_usage and reads_answers
        self.forwards_priority = config.forward_priority != "off"
        self.changes_forwarded = self.programs is not None or self.reads_usage or self.forwards_priority
        """Whether a backend may get something else than the client has sent."""
        self.keys = ApiKeys(config.api_key, config.tenant_api_keys, further_keys)
        self.needs_key = bool(self.keys)
        self.passed_paths = frozenset(config.passed_paths)
        own = config.upstream_api_key
        self.heads = HeadReader(
            config.tenant_header_name.lower().encode() if config.trust_tenant_header else None,
            withheld=[
                *((AUTHORIZATION_HEADER, API_KEY_HEADER) if self.keys or own else ()),
                # A backend that is itself a gateway would count programs a second time.
                *(OWN_HEADERS if self.programs is not None else []),
                *([OBJECTIVE_HEADER] if reads_objectives else []),
                *(TRACE_HEADERS if config.otel.endpoint is not None else []),  # Those of each attempt stand in their place.
            ],
            added=[(AUTHORIZATION_HEADER, f"Bearer {own}".encode())] if own else [],
            read_paths=self.passed_paths,
        )
        self.access = PageAccess(config, self.keys, self.heads)
