"""A new configuration while requests are being served, on SIGHUP or POST /admin/reload.

The same sources are read again: the files as they are now, the environment and the flags as they were at the start. All of it
is validated first. If anything is wrong, nothing changes at all; else what may change in service changes at one instant, and
requests that are in flight or waiting keep their places. What needs a restart is named, and stays as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from maitred.admission import AdmissionConfig
from maitred.errors import ConfigError
from maitred.gateway.config import GatewayConfig
from maitred.request import PriorityClass
from maitred.routing import RoutingConfig

log = logging.getLogger("maitred.gateway")
LIVE: Final = (
    *("api_key", "tenant_api_keys", "upstream_api_key", "trust_tenant_header", "tenant_header_name"),
    *("max_body_bytes", "max_parked_body_bytes", "forward_priority"),
)
"""Keys of the section `gateway` that may change in service. So may all of `admission`."""
_SECRETS: Final = ("upstream_api_key",)
"""Keys whose values are kept as they are. The others' are hashes."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway goes by."""

    gateway: GatewayConfig
    admission: AdmissionConfig = AdmissionConfig()
    routing: RoutingConfig = RoutingConfig()

    def shown(self) -> dict[str, Any]:
        """As plain values: classes complete, and of every secret a hash, or that there is one."""
        gateway, admission = msgspec.to_builtins(self.gateway), msgspec.to_builtins(self.admission)
        gateway |= {key: "***" for key in _SECRETS if gateway[key] is not None}
        admission["classes"] = {c.label: msgspec.to_builtins(self.admission.rules(c)) for c in reversed(PriorityClass)}
        return {"gateway": gateway, "admission": admission, "routing": msgspec.to_builtins(self.routing)}


class Reloaded(msgspec.Struct, frozen=True):
    """The answer to a reload that succeeded."""

    reloaded: bool
    ignored: list[str]
    """Keys that have changed and need a restart."""
    warnings: list[str]


class Reloading:
    """`settings` is what was taken over last. `read` says what should be; `adopt` takes it over, or raises ConfigError and has
    changed nothing. `results` counts `ok` and `failed`."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings] | None,
        adopt: Callable[[Settings], object],
        results: Counter[str],
    ) -> None:
        self.settings = settings
        self._read = read
        self._adopt = adopt
        self._results = results
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    def reload_soon(self) -> None:
        """The same without waiting for it."""

        async def reload() -> None:
            with contextlib.suppress(ConfigError):
                await self.reload()

        task = asyncio.get_running_loop().create_task(reload())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def reload(self) -> Reloaded:
        """Raises ConfigError, and then nothing has changed. Logs either way."""
        async with self._turn:
            try:
                reloaded = await self._reload()
            except ConfigError as error:
                self._results["failed"] += 1
                log.error("the configuration was not reloaded, nothing has changed: %s", error)
                raise
            self._results["ok"] += 1
        log.info("the configuration was reloaded")
        for warning in reloaded.warnings:
            log.warning("%s", warning)
        if reloaded.ignored:
            log.warning("changed and not in force before a restart: %s", ", ".join(reloaded.ignored))
        return reloaded

    async def _reload(self) -> Reloaded:
        if self._read is None:
            raise ConfigError(
                "there is no configuration to read again", hint="this gateway was given its settings by a program"
            )
        said = await asyncio.to_thread(self._read)
        live = {key: getattr(said.gateway, key) for key in LIVE}
        gateway = msgspec.structs.replace(self.settings.gateway, **live)
        settings = Settings(gateway=gateway, admission=said.admission, routing=self.settings.routing)
        self._adopt(settings)
        self.settings = settings
        return Reloaded(True, list(_ignored(settings, said)), list(said.admission.warnings()))


def _ignored(in_force: Settings, said: Settings) -> Iterator[str]:
    for section in ("gateway", "routing"):
        old, new = getattr(in_force, section), getattr(said, section)
        yield from (f"{section}.{key}" for key in new.__struct_fields__ if getattr(old, key) != getattr(new, key))
