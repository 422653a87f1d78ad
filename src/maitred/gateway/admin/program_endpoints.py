"""The paths that show and release programs: ThunderAgent's, with its answers.

    GET  /programs               all that the viewer may see
    POST /programs/release       {"program_id": ...}; the shared key may say {"tenant": ...} as well
    GET  /profiles, /profiles/ID averages of steps, with `programs.profile`
    GET  /programs/metrics       what ThunderAgent has at /metrics, where ours is Prometheus'

Who sees what of them is in `access.page_access`: a tenant sees and releases its own programs, the operator all of them. Errors
have ThunderAgent's form, `{"detail": ...}` and `{"error": ...}`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from maitred.gateway.access.page_access import Page, Viewer
from maitred.gateway.admin.endpoints import READ_METHODS, WRITE_METHODS, Endpoint, PageHandler
from maitred.gateway.admin.page_bodies import read_page_body
from maitred.gateway.observe.program_views import ProgramViews
from maitred.gateway.observe.shared_page import SharedPages, write_json, write_json_object
from maitred.scheduler.interface import RealTimePrograms
from maitred.wire.exchange import Exchange, send_bytes, send_json

PROFILE_PATH_PREFIX: Final = "/profiles/"
_BY_PATH: Final = {
    "/programs": (Page.PROGRAMS, READ_METHODS),
    "/programs/metrics": (Page.LOADS, READ_METHODS),
    "/programs/release": (Page.PROGRAMS, WRITE_METHODS),
    "/profiles": (Page.PROGRAMS, READ_METHODS),
}
_BY_PREFIX: Final = {PROFILE_PATH_PREFIX: (Page.PROGRAMS, READ_METHODS)}


class ProgramPaths(NamedTuple):
    """The endpoints of programs, by path and by the beginning of the path."""

    by_path: Mapping[str, Endpoint]
    by_prefix: Mapping[str, Endpoint]


def program_paths(handlers: Mapping[str, PageHandler]) -> ProgramPaths:
    """Return the paths of programs, each with its handler."""
    return ProgramPaths(
        {path: Endpoint(handlers[path], *row) for path, row in _BY_PATH.items()},
        {prefix: Endpoint(handlers[prefix], *row) for prefix, row in _BY_PREFIX.items()},
    )


def paths_answered_by(handler: PageHandler) -> ProgramPaths:
    """Return the paths of programs, all with one handler."""
    return program_paths(dict.fromkeys((*_BY_PATH, *_BY_PREFIX), handler))


class ProgramEndpoints:
    """The endpoints of one gateway."""

    def __init__(
        self,
        driver: RealTimePrograms,
        views: ProgramViews,
        pages: SharedPages,
        *,
        has_profiles: bool,
    ) -> None:
        self._driver = driver
        self._views = views
        self._pages = pages
        self._has_profiles = has_profiles
        self.paths = program_paths(
            {
                "/programs": self._programs,
                "/programs/metrics": self._metrics,
                "/programs/release": self._release,
                "/profiles": self._profiles,
                PROFILE_PATH_PREFIX: self._profile,
            }
        )

    async def _programs(self, exchange: Exchange, viewer: Viewer) -> None:
        key = ("programs", _shown_to(viewer))
        await self._send_page(exchange, key, lambda: write_json_object(self._views.list_programs(viewer)))

    async def _metrics(self, exchange: Exchange, viewer: Viewer) -> None:
        await self._send_page(exchange, "programs' metrics", lambda: write_json(self._views.metrics_page()))

    async def _send_page(self, exchange: Exchange, key: Hashable, make: Callable[[], Iterable[bytes]]) -> None:
        send_bytes(exchange, 200, await self._pages.page(key, make), b"application/json")

    async def _release(self, exchange: Exchange, viewer: Viewer) -> None:
        try:
            fields = msgspec.json.decode(await read_page_body(exchange))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _send_detail(exchange, "Invalid JSON")
            return
        if not isinstance(fields, dict):
            _send_detail(exchange, "The body must be a JSON object")
            return
        name, tenant = fields.get("program_id"), fields.get("tenant")
        if not name:
            _send_detail(exchange, "Missing program_id")
        elif not isinstance(name, str):
            _send_detail(exchange, "program_id must be a string")
        elif tenant is not None and not isinstance(tenant, str):
            _send_detail(exchange, "tenant must be a string")
        else:
            await self._release_named(viewer, name, tenant, exchange)

    async def _release_named(self, viewer: Viewer, name: str, tenant: str | None, exchange: Exchange) -> None:
        """Release a program of the tenant that is named; without one, of the viewer's, else of the only one that has it."""
        owner = viewer.tenant if tenant is None else tenant
        released = (viewer.sees_all or owner == viewer.tenant) and self._driver.release(owner, name)
        if not released and tenant is None and viewer.sees_all:
            page = await self._pages.page(("owners", name), lambda: write_json(self._views.owners_of(name)))
            owners = msgspec.json.decode(page, type=list[str])
            if len(owners) > 1:
                _send_detail(exchange, f"Several tenants have this program; name one as tenant: {', '.join(owners)}")
                return
            released = bool(owners) and self._driver.release(owners[0], name)
        send_json(exchange, 200, {"program_id": name, "released": released})

    async def _profiles(self, exchange: Exchange, viewer: Viewer) -> None:
        if self._has_profiles:
            key = ("profiles", _shown_to(viewer))
            await self._send_page(exchange, key, lambda: write_json_object(self._views.list_profiles(viewer)))
        else:
            _send_no_profiles(exchange)

    async def _profile(self, exchange: Exchange, viewer: Viewer) -> None:
        if not self._has_profiles:
            _send_no_profiles(exchange)
            return
        name = unquote(exchange.path.removeprefix(PROFILE_PATH_PREFIX))
        key = ("profile", name, _shown_to(viewer))
        found = await self._pages.page(key, lambda: write_json(self._views.find_profile(viewer, name)))
        if found == b"null":
            _send_error(exchange, 404, f"No steps of a program {name!r} are known")
        else:
            send_bytes(exchange, 200, found, b"application/json")


def _shown_to(viewer: Viewer) -> str | None:
    """Return the viewer's part of the key of a page: its tenant, or None if it sees all."""
    return None if viewer.sees_all else viewer.tenant


def _send_detail(exchange: Exchange, detail: str) -> None:
    send_json(exchange, 400, {"detail": detail})


def _send_no_profiles(exchange: Exchange) -> None:
    _send_error(exchange, 400, "Profiling is off; turn it on with --profile")


def _send_error(exchange: Exchange, status: int, message: str) -> None:
    answer: dict[str, Any] = {"error": message}
    send_json(exchange, status, answer)
