"""`/admin/backends`: scripts add backends and take them away, and see which source lists which.

A backend is there as long as one source lists it, and the calls here are one source, `admin`, beside the configuration and
`gateway.discover`. So a reload and discovery never take away what was added here, and a call takes away nothing that they list.

    POST     201 added; 200 it was added before, or another source lists it as well
    DELETE   200 drained, and gone after its last request; also if it is drained already
             404 no such backend; 409 another source lists it, and it must go there

What was added lasts as long as this process.
"""

from __future__ import annotations

from typing import Any

from maitred.core.errors import ConfigError
from maitred.gateway import error_responses
from maitred.gateway.access.page_access import Page, Viewer
from maitred.gateway.admin.page_bodies import named_backend, read_page_body
from maitred.scheduler.interface import ADMIN_SOURCE, Discovery, FleetView, Presence, SourceError, checked_urls
from maitred.wire.exchange import Exchange, send_json

PATH = "/admin/backends"
PAGE = Page.ADMIN
METHODS = ("GET", "POST", "DELETE")


class BackendEndpoints:
    """Answers the requests for that path."""

    def __init__(self, discovery: Discovery, fleet: FleetView) -> None:
        self._discovery, self._fleet = discovery, fleet

    async def answer(self, exchange: Exchange, viewer: Viewer) -> None:
        """Answer one request. Raises ApiError."""
        if exchange.method == "POST":
            await self._add(exchange)
        elif exchange.method == "DELETE":
            await self._remove(exchange)
        else:
            send_json(exchange, 200, {"backends": [self._shown(backend.url) for backend in self._fleet.backends]})

    async def _add(self, exchange: Exchange) -> None:
        try:
            (url,) = checked_urls([named_backend(await read_page_body(exchange))])
            is_new = self._discovery.add(url)
        except (SourceError, ConfigError) as error:
            raise error_responses.no_backend_named(str(error)) from error
        send_json(exchange, 201 if is_new else 200, self._shown(url))

    async def _remove(self, exchange: Exchange) -> None:
        named = named_backend(await read_page_body(exchange))
        try:
            (url,) = checked_urls([named])
        except SourceError:
            url = named
        presence = self._discovery.presence(url)
        sources = self._discovery.sources_of(url)
        if presence is None:
            raise error_responses.unknown_backend(named, [backend.url for backend in self._fleet.backends])
        if ADMIN_SOURCE not in sources and presence is not Presence.LEAVING:
            raise error_responses.listed_elsewhere(url, sources)
        self._discovery.remove(url)
        send_json(exchange, 200, self._shown(url))

    def _shown(self, url: str) -> dict[str, Any]:
        """Return the description of a backend that the endpoints answer with."""
        found = next((backend for backend in self._fleet.backends if backend.url == url), None)
        return {
            "backend": url,
            "presence": self._discovery.presence(url),
            "sources": self._discovery.sources_of(url),
            "in_flight": 0 if found is None else len(found.requests),
        }
