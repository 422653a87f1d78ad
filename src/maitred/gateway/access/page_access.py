"""Who sees what: one table of the gateway's own pages, by the sender of a request and the port on which it came.

The senders:

    OPERATOR   the shared `api_key`; without any key, a request from this machine that no page in a browser has sent
               (`local_access`); with `admin_auth: none`, such a request to `admin_port` from anywhere
    TENANT     the key of a tenant; without any key, a request whose trusted header names its tenant
    KEYLESS    no key, while there are keys
    GUEST      no key, while there are none, and no operator

The ports: without `admin_port` there is one for all. With it the operator's pages are there, and on the port of the clients
nobody is the operator: what a sender gets there is what a client may have.

    GET /metrics, key of a tenant      either port: the rows of that tenant
    GET /metrics, shared key           with admin_port: there all rows, and 404 on the port of the clients

A key that is not valid is refused (401) wherever the answer depends on the sender, but for the pages of health, which probes
must get whatever they send.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, NamedTuple

from maitred.gateway import error_responses
from maitred.gateway.access.auth import ApiKeys, KeyRights, resolve_tenant
from maitred.gateway.access.inbound_head import HeadReader
from maitred.gateway.access.local_access import LocalAccess, address_problem
from maitred.gateway.config import GatewayConfig
from maitred.wire.exchange import ApiError, Exchange


class PageSender(Enum):
    """What a request says of who has sent it."""

    OPERATOR = "operator"
    TENANT = "tenant"
    KEYLESS = "no key"
    GUEST = "guest"


class Port(StrEnum):
    """A port, by what is on it. (Texts, like pages: other members of enums are slow to look up.)"""

    ONLY = "port"
    """Everything: there is no `admin_port`."""
    CLIENTS = "port beside admin_port"
    ADMIN = "admin_port"


class Shown(Enum):
    """What a request gets of a page."""

    ALL = "all"
    OWN = "its own part"
    SUMMARY = "what names no tenant and no backend"
    NEEDS_KEY = "401"
    FORBIDDEN = "403"
    ABSENT = "404"


class Page(StrEnum):
    """Pages and routes that all are shown alike, by what they are called in the documentation."""

    HEALTH = "`/health`, `/ready`, `/liveness`, `/readiness`"
    METRICS = "`/metrics`"
    STATE = "`/maitred/state`"
    PROGRAMS = "`/programs`, `/programs/release`, `/profiles`"
    MODELS = "`/v1/models`"
    LOADS = "`/get_loads`, `/programs/metrics`"
    ADMIN = "`/admin/*`"
    DASHBOARD = "`/maitred` (the empty page)"
    LIVE = "`/maitred/events`, `/maitred/live`"
    ENGINE = "operator's routes of an engine"


class Row(NamedTuple):
    """What each sender gets."""

    operator: Shown
    tenant: Shown
    keyless: Shown
    guest: Shown

    def of(self, sender: PageSender) -> Shown:
        """Return how much of the page `sender` gets."""
        return self[_SENDERS.index(sender)]


_SENDERS: Final = tuple(PageSender)
_ALL, _OWN, _SUMMARY = Shown.ALL, Shown.OWN, Shown.SUMMARY
_NEEDS_KEY, _FORBIDDEN, _ABSENT = Shown.NEEDS_KEY, Shown.FORBIDDEN, Shown.ABSENT
_NOWHERE: Final = Row(_ABSENT, _ABSENT, _ABSENT, _ABSENT)
_FOR_ANYONE: Final = Row(_SUMMARY, _SUMMARY, _SUMMARY, _SUMMARY)
WITH_OPERATOR: Final = {
    #                  operator  tenant      keyless     guest
    Page.HEALTH: Row(_ALL, _SUMMARY, _SUMMARY, _ALL),
    Page.METRICS: Row(_ALL, _OWN, _SUMMARY, _ALL),
    Page.STATE: Row(_ALL, _OWN, _NEEDS_KEY, _ALL),
    Page.PROGRAMS: Row(_ALL, _OWN, _NEEDS_KEY, _OWN),
    Page.MODELS: Row(_ALL, _ALL, _NEEDS_KEY, _ALL),
    Page.LOADS: Row(_ALL, _FORBIDDEN, _NEEDS_KEY, _ALL),
    Page.ADMIN: Row(_ALL, _FORBIDDEN, _NEEDS_KEY, _FORBIDDEN),
    Page.DASHBOARD: _FOR_ANYONE,
    Page.LIVE: Row(_ALL, _FORBIDDEN, _NEEDS_KEY, _FORBIDDEN),
    Page.ENGINE: Row(_ALL, _ABSENT, _NEEDS_KEY, _ABSENT),
}
"""On the only port, and on `admin_port`."""
FOR_CLIENTS: Final = {
    Page.HEALTH: _FOR_ANYONE,
    Page.METRICS: Row(_ABSENT, _OWN, _ABSENT, _ABSENT),
    Page.STATE: Row(_ABSENT, _OWN, _ABSENT, _ABSENT),
    Page.PROGRAMS: Row(_OWN, _OWN, _NEEDS_KEY, _OWN),
    Page.MODELS: WITH_OPERATOR[Page.MODELS],
    Page.LOADS: _NOWHERE,
    Page.ADMIN: _NOWHERE,
    Page.DASHBOARD: _NOWHERE,
    Page.LIVE: _NOWHERE,
    Page.ENGINE: Row(_ABSENT, _ABSENT, _NEEDS_KEY, _ABSENT),
}
"""On the port of the clients beside an `admin_port`."""
ROWS: Final = {
    Port.ONLY: WITH_OPERATOR,
    Port.CLIENTS: FOR_CLIENTS,
    Port.ADMIN: WITH_OPERATOR | {Page.MODELS: _NOWHERE},
}


class Viewer(NamedTuple):
    """The sender of a request for a page."""

    tenant: str
    shown: Shown
    """What it gets: everything, what belongs to `tenant`, or what names neither tenants nor backends."""

    @property
    def sees_all(self) -> bool:
        """Whether it gets everything."""
        return self.shown is Shown.ALL


_ANYONE: Final = Viewer("", Shown.SUMMARY)


class PageAccess:
    """The table under one configuration."""

    def __init__(self, config: GatewayConfig, keys: ApiKeys, heads: HeadReader) -> None:
        """`heads` reads the trusted header."""
        self.keys = keys
        self._heads = heads
        self._local = LocalAccess((config.host, config.admin_host or config.host, *config.admin_hosts))
        self._needs_no_key = {Port.ADMIN} if config.admin_auth == "none" else set()
        self.port = Port.ONLY if config.admin_port is None else Port.CLIENTS
        """The port that clients come to."""

    def viewer(self, page: Page, exchange: Exchange, port: Port) -> Viewer:
        """Return the viewer of a page. Raises ApiError 401, 403 or 404 for a request that gets none of it."""
        row = ROWS[port][page]
        if row is _NOWHERE:
            raise error_responses.no_route(exchange.path)
        if row is _FOR_ANYONE:
            return _ANYONE
        try:
            sender, tenant, problem = self._identify(exchange, port)
        except ApiError:
            if page is not Page.HEALTH:
                raise
            return _ANYONE
        shown = row.of(sender)
        if shown is _NEEDS_KEY:
            raise error_responses.missing_api_key()
        if shown is _FORBIDDEN:
            raise error_responses.admin_forbidden(problem)
        if shown is _ABSENT:
            raise error_responses.no_route(exchange.path)
        return Viewer(tenant, shown)

    def tenant_of(self, exchange: Exchange, port: Port) -> str:
        """Return the tenant that sends a request for a page, or "" if it is not known."""
        try:
            return self._identify(exchange, port)[1]
        except ApiError:
            return ""

    def _identify(self, exchange: Exchange, port: Port) -> tuple[PageSender, str, str]:
        """Return the sender, its tenant, and why it is not the operator. Raises ApiError 401 for a key that is not valid."""
        inbound = self._heads.read_head(exchange)
        caller = None
        if self.keys and port not in self._needs_no_key:
            if inbound.credentials is None:
                return PageSender.KEYLESS, "", ""
            caller = self.keys.authenticate(inbound.credentials)
        tenant = resolve_tenant(caller, inbound.tenant, exchange.client)
        if caller is not None:
            is_operator = caller.rights is KeyRights.ALL
            return PageSender.OPERATOR if is_operator else PageSender.TENANT, tenant, _NOT_OF_A_TENANT
        if (inbound.tenant or b"").strip():
            return PageSender.TENANT, tenant, _NOT_OF_A_TENANT
        problem = None if port in self._needs_no_key else address_problem(exchange.client)
        if problem is None:
            if inbound.page_problem is None:
                inbound.page_problem = self._local.page_problem(exchange.headers) or ""
            problem = inbound.page_problem
        return PageSender.GUEST if problem else PageSender.OPERATOR, tenant, problem


_NOT_OF_A_TENANT: Final = "this needs the gateway's own api_key; the key of a tenant is not enough"
