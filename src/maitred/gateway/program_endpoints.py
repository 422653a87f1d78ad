"""The paths that show and release programs: ThunderAgent's, with its answers.

    GET  /programs               all that the viewer may see
    POST /programs/release       {"program_id": ...}; the shared key may say {"tenant": ...} as well
    GET  /profiles, /profiles/ID averages of steps, with `programs.profile`
    GET  /programs/metrics       what ThunderAgent has at /metrics, where ours is Prometheus'

They need a key, once keys are configured. A tenant sees and releases its own programs; the shared key, or a request from this
machine while no keys are configured, all of them. Errors have ThunderAgent's form, `{"detail": ...}` and `{"error": ...}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from maitred.gateway.auth import Viewer
from maitred.gateway.endpoints import WRITE_METHODS, Endpoint, EndpointAccess
from maitred.gateway.program_driver import RealTimePrograms
from maitred.gateway.program_views import ProgramViews
from maitred.wire import asgi
from maitred.wire.asgi import Receive, Scope, Send

PROFILE_PATH_PREFIX: Final = "/profiles/"
_MAX_BODY_BYTES: Final = 64 * 1024
"""Largest body of a request to release a program."""


class ProgramEndpoints:
    """The endpoints of one gateway."""

    def __init__(
        self,
        driver: RealTimePrograms,
        views: ProgramViews,
        identify: Callable[[Scope], Viewer],
        *,
        has_profiles: bool,
    ) -> None:
        """`identify` returns the viewer that sends a request, or raises ApiError 401."""
        self._driver = driver
        self._views = views
        self._identify = identify
        self._has_profiles = has_profiles
        self.by_path: Mapping[str, Endpoint] = {
            "/programs": Endpoint(self._programs, EndpointAccess.KEY),
            "/programs/metrics": Endpoint(self._metrics, EndpointAccess.KEY),
            "/programs/release": Endpoint(self._release, EndpointAccess.KEY, WRITE_METHODS),
            "/profiles": Endpoint(self._profiles, EndpointAccess.KEY),
        }
        self.by_prefix: Mapping[str, Endpoint] = {PROFILE_PATH_PREFIX: Endpoint(self._profile, EndpointAccess.KEY)}

    async def _programs(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asgi.send_json(send, 200, self._views.list_programs(self._identify(scope)))

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asgi.send_json(send, 200, self._views.metrics_page())

    async def _release(self, scope: Scope, receive: Receive, send: Send) -> None:
        viewer = self._identify(scope)
        try:
            fields = msgspec.json.decode(await asgi.read_body(scope, receive, _MAX_BODY_BYTES))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            await _send_detail(send, "Invalid JSON")
            return
        except asgi.ClientDisconnected:
            return
        if not isinstance(fields, dict):
            await _send_detail(send, "The body must be a JSON object")
            return
        name, tenant = fields.get("program_id"), fields.get("tenant")
        if not name:
            await _send_detail(send, "Missing program_id")
        elif not isinstance(name, str):
            await _send_detail(send, "program_id must be a string")
        elif tenant is not None and not isinstance(tenant, str):
            await _send_detail(send, "tenant must be a string")
        else:
            await self._release_named(viewer, name, tenant, send)

    async def _release_named(self, viewer: Viewer, name: str, tenant: str | None, send: Send) -> None:
        """Release a program of the tenant that is named; without one, of the viewer's, else of the only one that has it."""
        owners = {program.key.tenant for program in self._views.visible_programs(viewer) if program.key.name == name}
        if tenant is None:
            tenant = viewer.tenant
            if tenant not in owners and len(owners) > 1:
                await _send_detail(send, f"Several tenants have this program; name one as tenant: {', '.join(sorted(owners))}")
                return
            if tenant not in owners and owners:
                (tenant,) = owners
        released = tenant in owners and self._driver.release(tenant, name)
        await asgi.send_json(send, 200, {"program_id": name, "released": released})

    async def _profiles(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._has_profiles:
            await asgi.send_json(send, 200, self._views.list_profiles(self._identify(scope)))
        else:
            await _send_no_profiles(send)

    async def _profile(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._has_profiles:
            await _send_no_profiles(send)
            return
        name = unquote(scope["path"].removeprefix(PROFILE_PATH_PREFIX))
        found = self._views.list_profiles(self._identify(scope)).get(name)
        if found is None:
            await _send_error(send, 404, f"No steps of a program {name!r} are known")
        else:
            await asgi.send_json(send, 200, {"program_id": name, **msgspec.to_builtins(found)})


async def _send_detail(send: Send, detail: str) -> None:
    await asgi.send_json(send, 400, {"detail": detail})


async def _send_no_profiles(send: Send) -> None:
    await _send_error(send, 400, "Profiling is off; turn it on with --profile")


async def _send_error(send: Send, status: int, message: str) -> None:
    answer: dict[str, Any] = {"error": message}
    await asgi.send_json(send, status, answer)
