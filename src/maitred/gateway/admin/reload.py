"""Reload: a new configuration while requests are being served, on SIGHUP or POST /admin/reload.

The same sources are read again: the files as they are now, the environment and the flags as they were at the start. All of it
is validated first, and all that can fail is made: certificates are loaded, the admission policy, keys and readers are built. If
anything is wrong, nothing changes. Otherwise every key that may change in service changes at one instant, by steps that cannot
fail, and requests in flight or waiting keep their places. Keys that need a restart keep their value, and are named.

A gateway that has API keys is never opened by an omission. If the sources have no key any more, that is wrong, unless they say
`auth: none`: an editor may have emptied the file, or may be writing it at this moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from maitred.admission import AdmissionConfig
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.gateway.admin.bounded_thread import BoundedThread
from maitred.gateway.admin.port_certificates import PortCertificates, PortFiles
from maitred.gateway.admin.possible_tenants import tenant_warnings
from maitred.gateway.config import GatewayConfig
from maitred.gateway.intake.request_intake import RequestIntake
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.scheduler.interface import Scheduler
from maitred.scheduler.link_config import SchedulerConfig, without_password
from maitred.shadow import ShadowRules
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")
RELOADABLE_KEYS: Final = (
    *(
        "auth",
        "admin_auth",
        "admin_hosts",
        "cors_origins",
        "api_key",
        "tenant_api_keys",
        "upstream_api_key",
        "trust_tenant_header",
    ),
    *("tenant_header_name", "max_body_bytes", "max_parked_body_bytes", "forward_priority"),
    *("tls_cert", "tls_key", "admin_tls_cert", "admin_tls_key", "backends"),
)
"""Keys of the section `gateway` that may change in service. So may all of `admission`."""
FIXED_PROGRAM_KEYS: Final = (
    *("mode", "flavour", "acting_estimator", "buffer_tokens"),
    *("state", "backend_type", "metrics", "metrics_interval_secs", "profile", "profile_dir"),
)
"""Keys of the section `programs` that need a restart; see `Programs.reconfigure`."""
MIN_INTERVAL_SECS: Final = 0.5
"""Seconds between the end of a reload and the next one that was requested meanwhile."""
READ_SECS: Final = 30.0
"""Seconds within which the files must have been read."""
_SECRET_KEYS: Final = ("upstream_api_key",)
"""Keys with values that are kept in clear; other secrets are kept as hashes."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a gateway."""

    gateway: GatewayConfig
    admission: AdmissionConfig = AdmissionConfig()
    routing: RoutingConfig = RoutingConfig()
    programs: ProgramsConfig = ProgramsConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    shadow: ShadowRules | None = None
    """What the shadow goes by; None: there is none."""

    def redacted(self) -> dict[str, Any]:
        """Return the settings as plain values: classes complete, and of a secret its hash, or `***`."""
        gateway, admission = msgspec.to_builtins(self.gateway), msgspec.to_builtins(self.admission)
        gateway |= {key: "***" for key in _SECRET_KEYS if gateway[key] is not None}
        admission["classes"] = {c.label: msgspec.to_builtins(self.admission.class_rules(c)) for c in reversed(PriorityClass)}
        others = {name: msgspec.to_builtins(getattr(self, name)) for name in ("programs", "routing")}
        if self.programs.state is not None:
            others["programs"]["state"] = without_password(self.programs.state)
        return {"gateway": gateway, "admission": admission, **others}


class ReloadResult(msgspec.Struct, frozen=True):
    """The answer to a reload that succeeded."""

    reloaded: bool
    ignored: list[str]
    """Keys that have changed and need a restart."""
    warnings: list[str]
    """Warnings about the configuration in force."""


class ConfigReloader:
    """Reloads one gateway."""

    def __init__(
        self,
        settings: GatewaySettings,
        read_settings: Callable[[], GatewaySettings] | None,
        *,
        scheduler: Scheduler,
        intake: RequestIntake,
        certificates: PortCertificates,
        look_at_keys: Callable[[], Awaitable[None]],
        results: Counter[str],
        use_shadow: Callable[[ShadowRules], object] | None = None,
    ) -> None:
        """`settings` are in force now. `read_settings` reads the sources again, in a thread, or is None if there are none. The
        scheduler, the intake and the certificates are what a reload may change. `look_at_keys` reads the files again that hold
        keys of clients. `results` counts `ok` and `failed`.
        `use_shadow` gives the shadow other rules, and may raise ConfigError; None: there is no shadow."""
        self._settings = settings
        self._use_shadow = use_shadow
        self._read_settings = read_settings
        self._scheduler, self._intake, self._certificates = scheduler, intake, certificates
        self._look_at_keys, self._results = look_at_keys, results
        self.on_reloaded: Callable[[GatewaySettings], Awaitable[None]] | None = None
        """Called with settings that are in force from now on, and waited for before the reload has ended."""
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        """What reloads as `request_reload` asks for it."""
        self._is_requested = self._is_closed = False
        self._reading = BoundedThread("the files of the configuration", READ_SECS)

    def in_force(self) -> GatewaySettings:
        """Return the settings in force; those of admission are what it has fallen back to, if it has."""
        return msgspec.structs.replace(self._settings, admission=self._scheduler.admission.core.config)

    async def close(self) -> None:
        """End a reload that is under way, and reload no more. A disk that hangs holds up no end: what was being read is dropped
        when it comes."""
        self._is_closed = True
        await end_tasks(self._task)

    @property
    def is_closed(self) -> bool:
        """Whether nothing is reloaded any more."""
        return self._is_closed

    def request_reload(self, on_ended: Callable[[], object] = lambda: None) -> None:
        """Start a reload, without waiting for it. `on_ended` is called when no reload is left to do, however they went.

        While one is running, all further requests together are one more, `MIN_INTERVAL_SECS` after its end: each costs CPU
        time, and the last one finds what all would have found.
        """
        self._is_requested = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._reload_as_requested(on_ended))

    async def _reload_as_requested(self, on_ended: Callable[[], object]) -> None:
        while self._is_requested:
            self._is_requested = False
            with contextlib.suppress(Exception):  # The log has it, and the next request for a reload is to be served.
                await self.reload()
            if self._is_requested:
                await asyncio.sleep(MIN_INTERVAL_SECS)
        self._task = None
        on_ended()

    async def reload(self) -> ReloadResult:
        """Reload now, and log how it went. Raises ConfigError, and changes nothing then."""
        async with self._lock:
            try:
                reloaded = await self._reload()
            except ConfigError as error:
                self._results["failed"] += 1
                log.error("the configuration was not reloaded, nothing has changed: %s", error)
                raise
            except Exception:  # from a plug-in
                self._results["failed"] += 1
                log.exception("the configuration was not reloaded, nothing has changed")
                raise
            self._results["ok"] += 1
        log.info("the configuration was reloaded")
        for warning in reloaded.warnings:
            log.warning("%s", warning)
        if reloaded.ignored:
            log.warning("changed and not in force before a restart: %s", ", ".join(reloaded.ignored))
        return reloaded

    async def _reload(self) -> ReloadResult:
        if self._is_closed:
            raise ConfigError("this gateway is shutting down", hint="the next start reads the files as they are then")
        if self._read_settings is None:
            raise ConfigError(
                "there is no configuration to read again", hint="this gateway was given its settings by a program"
            )
        # In a thread, because reading files would hold up every request. From there on nothing is awaited, so that no request
        # sees one half of the change.
        found, certificates = await self._reading.run(partial(self._read_sources, self._read_settings))
        if self._settings.gateway.has_keys:
            _refuse_to_open(found.gateway)
        gateway = _with_live_keys(self._settings.gateway, found.gateway)
        fixed = {key: getattr(self._settings.programs, key) for key in FIXED_PROGRAM_KEYS}
        settings = GatewaySettings(
            gateway=gateway,
            admission=found.admission,
            routing=self._settings.routing,
            programs=msgspec.structs.replace(found.programs, **fixed),
            scheduler=self._settings.scheduler,
            shadow=found.shadow if found.gateway.shadow == gateway.shadow else self._settings.shadow,
        )
        warnings = [
            *_removed_keys(self._settings.gateway, gateway),
            *found.admission.warnings(),
            *tenant_warnings(gateway, found.admission),
        ]
        reloaded = ReloadResult(True, list(_ignored_keys(settings, found)), warnings)
        self._reconfigure(settings, certificates)
        self._settings = settings
        await self._read_keys()
        if self.on_reloaded is not None:
            await self.on_reloaded(settings)
        return reloaded

    async def follow(self, read_settings: Callable[[], GatewaySettings]) -> None:
        """Use settings that another process has found to be right and put in force, all of them. `read_settings` reads them, in
        a thread."""
        async with self._lock:
            found, certificates = await self._reading.run(partial(self._read_sources, read_settings))
            self._reconfigure(found, certificates)
            self._settings = found
            await self._read_keys()

    async def _read_keys(self) -> None:
        """Use the keys that are in files of their own as they are now: who reloads has perhaps withdrawn one."""
        try:
            async with asyncio.timeout(READ_SECS):
                await self._look_at_keys()
        except TimeoutError:
            log.warning("the files of keys could not be read within %g s, and the keys before it stay", READ_SECS)

    def _read_sources(self, read_settings: Callable[[], GatewaySettings]) -> tuple[GatewaySettings, PortFiles]:
        found = read_settings()
        return found, self._certificates.read(found.gateway, self._settings.gateway)

    def _reconfigure(self, settings: GatewaySettings, certificates: PortFiles) -> None:
        """Use `settings` from now on. Raises ConfigError, and changes nothing then."""
        rules = self._intake.rules_of(settings.gateway, settings.programs)
        if self._use_shadow is not None and settings.shadow is not None:
            self._use_shadow(settings.shadow)
        self._scheduler.reconfigure(settings.gateway, settings.admission, settings.programs)
        # From here on nothing fails.
        self._certificates.use(certificates)
        self._intake.use(rules)


def _with_live_keys(in_force: GatewayConfig, found: GatewayConfig) -> GatewayConfig:
    """Return the configuration in force with what `found` may change in service. A port is there, and speaks TLS, from the
    start on or not at all."""
    live = {key: getattr(found, key) for key in RELOADABLE_KEYS}
    if (found.tls_cert is None) != (in_force.tls_cert is None):
        del live["tls_cert"], live["tls_key"]
    if (found.admin_port is None) != (in_force.admin_port is None):
        del live["admin_auth"], live["admin_tls_cert"], live["admin_tls_key"]
    elif (found.admin_tls_files is None) != (in_force.admin_tls_files is None) or in_force.admin_tls == "none":
        del live["admin_tls_cert"], live["admin_tls_key"]
    return msgspec.structs.replace(in_force, **live)


def _refuse_to_open(gateway: GatewayConfig) -> None:
    """Raise ConfigError if a gateway that has had keys would be open to all, and the file does not say so in words.

    A file that was emptied, or cut short while it was written, is valid: all its keys have defaults.
    """
    if not gateway.has_keys and gateway.auth != "none":
        raise ConfigError(
            "no API key is left, and every client could use this gateway",
            where="gateway.api_key",
            hint="give a key, or write `auth: none` in the section gateway",
        )


def _removed_keys(before: GatewayConfig, now: GatewayConfig) -> Iterator[str]:
    """Yield a warning for each key that opened the gateway before and has no successor, and for a port that needs none now."""
    if now.admin_auth == "none" and before.admin_auth is None:
        yield "gateway.admin_auth is none: whoever reaches admin_port is the operator now, without a key"
    if now.auth == "none":
        if before.has_keys:
            yield "gateway.auth is none: every client may use this gateway now, without a key"
        return
    if before.api_key is not None and now.api_key is None:
        yield "gateway.api_key is gone: nothing opens /admin/* now"
    for tenant in before.tenant_api_keys.keys() - now.tenant_api_keys.keys():
        yield f"gateway.tenant_api_keys.{tenant} is gone: the tenant has no key now"


def _ignored_keys(in_force: GatewaySettings, found: GatewaySettings) -> Iterator[str]:
    for section in ("gateway", "programs", "routing", "scheduler"):
        old, new = getattr(in_force, section), getattr(found, section)
        yield from (f"{section}.{key}" for key in new.__struct_fields__ if getattr(old, key) != getattr(new, key))
