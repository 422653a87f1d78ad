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
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.gateway.config import GatewayConfig
from maitred.routing import RoutingConfig

log = logging.getLogger("maitred.gateway")
RELOADABLE_KEYS: Final = (
    *("api_key", "tenant_api_keys", "upstream_api_key", "trust_tenant_header", "tenant_header_name"),
    *("max_body_bytes", "max_parked_body_bytes", "forward_priority"),
)
"""Keys of the section `gateway` that may change in service. So may all of `admission`."""
_SECRET_KEYS: Final = ("upstream_api_key",)
"""Keys whose values are kept as they are. The others' are hashes."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway goes by."""

    gateway: GatewayConfig
    admission: AdmissionConfig = AdmissionConfig()
    routing: RoutingConfig = RoutingConfig()

    def redacted(self) -> dict[str, Any]:
        """As plain values: classes complete, and of every secret a hash, or that there is one."""
        gateway, admission = msgspec.to_builtins(self.gateway), msgspec.to_builtins(self.admission)
        gateway |= {key: "***" for key in _SECRET_KEYS if gateway[key] is not None}
        admission["classes"] = {c.label: msgspec.to_builtins(self.admission.class_rules(c)) for c in reversed(PriorityClass)}
        return {"gateway": gateway, "admission": admission, "routing": msgspec.to_builtins(self.routing)}


class ReloadResult(msgspec.Struct, frozen=True):
    """The answer to a reload that succeeded."""

    reloaded: bool
    ignored: list[str]
    """Keys that have changed and need a restart."""
    warnings: list[str]


class ConfigReloader:
    """`settings` is what was taken over last. `read` says what should be; `adopt` takes it over, or raises ConfigError and has
    changed nothing. `results` counts `ok` and `failed`."""

    def __init__(
        self,
        settings: GatewaySettings,
        read_settings: Callable[[], GatewaySettings] | None,
        apply_settings: Callable[[GatewaySettings], object],
        results: Counter[str],
    ) -> None:
        self.settings = settings
        self._read_settings = read_settings
        self._apply_settings = apply_settings
        self._results = results
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    def request_reload(self) -> None:
        """The same without waiting for it."""

        async def reload() -> None:
            with contextlib.suppress(ConfigError):
                await self.reload()

        task = asyncio.get_running_loop().create_task(reload())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def reload(self) -> ReloadResult:
        """Raises ConfigError, and then nothing has changed. Logs either way."""
        async with self._lock:
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

    async def _reload(self) -> ReloadResult:
        if self._read_settings is None:
            raise ConfigError(
                "there is no configuration to read again", hint="this gateway was given its settings by a program"
            )
        said = await asyncio.to_thread(self._read_settings)
        live = {key: getattr(said.gateway, key) for key in RELOADABLE_KEYS}
        gateway = msgspec.structs.replace(self.settings.gateway, **live)
        settings = GatewaySettings(gateway=gateway, admission=said.admission, routing=self.settings.routing)
        self._apply_settings(settings)
        self.settings = settings
        return ReloadResult(True, list(_ignored_keys(settings, said)), list(said.admission.warnings()))


def _ignored_keys(in_force: GatewaySettings, said: GatewaySettings) -> Iterator[str]:
    for section in ("gateway", "routing"):
        old, new = getattr(in_force, section), getattr(said, section)
        yield from (f"{section}.{key}" for key in new.__struct_fields__ if getattr(old, key) != getattr(new, key))
