"""`maitred serve`: the live gateway."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from maitred import __version__
from maitred.cli import hangup_came
from maitred.cli.flags import command, flag
from maitred.cli.gateway_flags import LINKED, SERVE
from maitred.cli.live_flags import FLAG_NAMES, LiveFlags, live_values
from maitred.cli.made_gateway import make_gateway, this_machine
from maitred.cli.terminal import exit_if_any, raise_file_limit
from maitred.core.errors import ConfigError
from maitred.core.printing import printable

if TYPE_CHECKING:
    from maitred.config import Config, ConfigSources, LoadedConfig
    from maitred.gateway.admin.reload import GatewaySettings
    from maitred.gateway.app import Gateway
    from maitred.gateway.config import GatewayConfig
    from maitred.gateway.observe.logs import LogOutput
    from maitred.wire.machine import Machine

log = logging.getLogger("maitred.gateway")
PORT_KEYS = "gateway.port or gateway.admin_port"
"""The keys of the ports of a gateway."""


@dataclass(frozen=True, kw_only=True)
class ServeFlags(LiveFlags):
    """The flags that stand for no single key."""

    scheduler: Annotated[
        str | None,
        flag(
            LINKED.panel,
            "Ask the scheduler at this address, or that one of several which leads; or the URL of their election.",
            "ADDRESS,...",
        ),
    ] = None


@command(ServeFlags, *SERVE)
def run(flags: ServeFlags) -> None:
    """Serve OpenAI's API in front of engines: classes, queues, routing.

    It starts while backends are down and serves as soon as one is up; see /ready, /metrics and /maitred/state. With an invalid
    configuration it serves without classes, and reports that; see --strict-config. SIGHUP reads the configuration again.
    """
    from maitred.config import ConfigSources
    from maitred.gateway.observe.logs import log_to_stderr

    sources = ConfigSources(
        file=flags.config,
        admission_file=flags.admission_config,
        env=dict(os.environ),
        flags=values_of(flags),
        flag_names={**run.flag_names, **FLAG_NAMES, "scheduler.addresses": "--scheduler"},
    )
    loaded = load_to_serve(sources, strict=bool(flags.strict_config))
    with log_to_stderr(loaded.config.gateway) as output:
        log_warnings(loaded)
        raise_file_limit()
        _serve(sources, loaded, output)


def _on_ready(gateway: Gateway, output: LogOutput, url: str, *admin_url: str) -> None:
    """Say where the gateway serves, and reload for a SIGHUP that came before."""
    _announce(gateway.config, output, url, *admin_url)
    if hangup_came():
        gateway.request_reload()


def _announce(config: GatewayConfig, output: LogOutput, url: str, admin_url: str | None = None) -> None:
    said = [f"gateway on {url}, backends: {', '.join((*config.backends, *config.discover))}"]
    if admin_url is not None:
        said.append(f"the operator's pages on {admin_url}, {admin_need(config)}")
    for line in said:
        if config.log_format == "text":  # Programs that start a gateway wait for the first line.
            output.write(f"maitred: {line}\n".encode())
        else:
            log.info("%s", line)


def admin_need(config: GatewayConfig) -> str:
    """Return in words what a request to `admin_port` needs."""
    return "no key is needed there" if config.admin_auth == "none" else "keys as for clients"


def _serve(sources: ConfigSources, loaded: LoadedConfig, output: LogOutput) -> None:
    """Serve until a signal. Raises ConfigError if that is not possible; then no file has been made or changed."""
    from maitred.files.undo import whole_or_nothing
    from maitred.gateway.app import serve_gateway
    from maitred.wire.server import run_server

    if loaded.config.gateway.data_plane == "envoy":
        from maitred.cli.picker import serve_with_envoy

        serve_with_envoy(loaded, output, lambda: reloaded_settings(sources), partial(_announce, loaded.config.gateway, output))
        return
    number = num_workers(loaded.config.gateway.workers)
    if number > 1:
        from maitred.cli.workers import serve_workers

        on_ready = partial(_announce, loaded.config.gateway, output)
        serve_workers(loaded, output, number, lambda: reloaded_settings(sources), on_ready)
        return
    with whole_or_nothing():
        machine = this_machine()
        gateway = make_gateway(_kind(loaded.config, machine), loaded, output, lambda: reloaded_settings(sources))
        log.info("maitred %s starts: process %d, admission %s", __version__, os.getpid(), gateway.core.config.mode)
        ports = gateway.open_ports()
        machine.service_manager.require_all_taken(PORT_KEYS)
    run_server(serve_gateway(gateway, ports, partial(_on_ready, gateway, output)))


def _kind(config: Config, machine: Machine) -> Callable[..., Gateway]:
    """Return the maker of the gateway, which schedules for itself or asks a scheduler. Raises ConfigError."""
    if not config.scheduler.addresses:
        from maitred.gateway.app import Gateway

        return partial(Gateway, machine=machine)
    if config.gateway.shadow is not None:
        problem = "a gateway that asks a scheduler decides nothing that a shadow could stand beside"
        raise ConfigError(problem, where="gateway.shadow", hint="give it to maitred scheduler (--shadow)")
    from maitred.gateway.cluster.link_setup import link_name, link_secret, make_dialer
    from maitred.gateway.cluster.linked_gateway import LinkedGateway
    from maitred.scheduler.interface import Degrading, RemoteScheduler

    link = config.scheduler
    dialer, secret = make_dialer(link, machine.random), link_secret(link)
    degrading = Degrading(link.degraded, link.degraded_after_secs)
    make_scheduler = partial(RemoteScheduler, dialer=dialer, name=link_name(link), secret=secret, degrading=degrading)
    return partial(LinkedGateway, machine=machine, make_scheduler=make_scheduler)


def num_workers(workers: int | str) -> int:
    """Return how many processes `workers` means: a number, or `auto`."""
    from maitred.gateway.config import MAX_WORKERS

    if isinstance(workers, int):
        return workers
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_WORKERS)


def values_of(flags: ServeFlags) -> dict[str, object]:
    """Return the values of keys that `flags` give. Raises ConfigError for contradictions, and for a key that is no ID:KEY."""
    values = live_values(flags)
    if flags.scheduler:
        values["scheduler.addresses"] = [each.strip() for each in _addresses(flags.scheduler)]
    workers = values.get("gateway.workers")
    if isinstance(workers, str) and workers.isdecimal():  # The flag takes text, because `auto` is one of its values.
        values["gateway.workers"] = int(workers)
    return values


def _addresses(given: str) -> Sequence[str]:
    """Return the addresses of schedulers. A URL of an election may have commas of its own."""
    from maitred.scheduler.link_config import is_election

    return [given] if is_election(given) else given.split(",")


def load_to_serve(sources: ConfigSources, *, strict: bool) -> LoadedConfig:
    """Return the configuration to serve with, or a usable part of it unless `strict`. Raises ConfigError without one.

    A wrong flag is a slip at the keyboard, so it is never set aside. Every mistake that keeps the gateway from starting is
    printed, and then the exit code is 2.
    """
    from maitred.config import LoadedConfig, load_or_fall_back
    from maitred.config.root import known_capacity, overcommit_error
    from maitred.config.shadow_file import shadow_problems

    exit_if_any(_problems(sources) if strict else sources.flag_problems())
    if not strict:
        return load_or_fall_back(sources)
    config = sources.load()
    # SMG asks the question of a capacity that it assumes, and starts with legacy admission: its users rely on that.
    admission = config.admission
    is_assumed = admission.preset.bootstrap_capacity is not None and admission.legacy.max_concurrent_requests <= 0
    overcommit = None if is_assumed else overcommit_error(config, known_capacity(config))
    exit_if_any([*([] if overcommit is None else [overcommit]), *shadow_problems(config)])
    return LoadedConfig(config)


def _problems(sources: ConfigSources) -> Sequence[ConfigError]:
    """Return every mistake; if a file cannot be read as YAML, those of the flags, and that one."""
    try:
        return sources.problems()
    except ConfigError as error:
        return [*sources.flag_problems(), error]


def log_warnings(loaded: LoadedConfig) -> None:
    """Log what is wrong with a configuration, and what may be."""
    from maitred.gateway.access.caller_sources import source_warnings
    from maitred.gateway.admin.possible_tenants import tenant_warnings
    from maitred.routing import Signals
    from maitred.wire.clock import Clock

    if loaded.problem is not None:
        log.error("%s; serving with legacy admission until that is mended", printable(str(loaded.problem)))
    config = loaded.config
    tenants = tenant_warnings(config.gateway, config.admission)
    keys = source_warnings(config.gateway, Clock().wall())
    for warning in (*config.admission.warnings(), *config.routing.warnings(Signals.CACHES), *tenants, *keys):
        log.warning("%s", printable(warning))


def reloaded_settings(sources: ConfigSources) -> GatewaySettings:
    """Return the settings as the files are now. Raises ConfigError."""
    from maitred.config.shadow_file import read_shadow
    from maitred.gateway.admin.reload import GatewaySettings

    config = sources.load()
    return GatewaySettings(
        gateway=config.gateway,
        admission=config.admission,
        routing=config.routing,
        programs=config.programs,
        scheduler=config.scheduler,
        shadow=read_shadow(config),
    )
