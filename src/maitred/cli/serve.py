"""`maitred serve`: the live gateway."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

import typer

from maitred.cli.flags import command
from maitred.cli.printable import printable
from maitred.cli.serve_flags import NAMES, Flags, said

if TYPE_CHECKING:
    from maitred.config import ConfigSources, LoadedConfig
    from maitred.gateway.reload import GatewaySettings

log = logging.getLogger("maitred.gateway")


@command(Flags)
def run(flags: Flags) -> None:
    """Serve OpenAI's API in front of engines: classes, queues, routing.

    Starts with backends down and serves as soon as one is up; see /ready, /metrics and /maitred/state. With a configuration
    that is wrong it serves without classes, and says so; see --strict-config. SIGHUP reads the configuration again.
    """
    from maitred.config import ConfigSources
    from maitred.gateway.app import Gateway
    from maitred.wire.server import run_server

    sources = ConfigSources(
        file=flags.config, admission_file=flags.admission_config, env=dict(os.environ), flags=said(flags), flag_names=NAMES
    )
    loaded = _loaded(sources, strict=bool(flags.strict_config))
    config, problem = loaded.config.gateway, None if loaded.problem is None else str(loaded.problem)
    _use_every_descriptor()
    gateway = Gateway(
        config, loaded.config.admission, loaded.config.routing, reload=lambda: _settings(sources), fallback=problem
    )

    def ready(url: str) -> None:
        typer.echo(f"maitred: gateway on {url}, backends: {', '.join(config.backends)}", err=True)

    run_server(
        gateway,
        host=config.host,
        port=config.port,
        drain_secs=config.drain_secs,
        on_ready=ready,
        on_hangup=gateway.request_reload,
    )


def _loaded(sources: ConfigSources, *, strict: bool) -> LoadedConfig:
    """What to serve with. Raises ConfigError if there is nothing, or less than everything and that is not wanted."""
    from maitred.config import LoadedConfig, load_or_fall_back
    from maitred.routing import Signals

    loaded = LoadedConfig(sources.load()) if strict else load_or_fall_back(sources)
    if loaded.problem is not None:
        log.error("%s; serving with legacy admission until that is mended", printable(str(loaded.problem)))
    config = loaded.config
    for warning in (*config.admission.warnings(), *config.routing.warnings(Signals.CACHES)):
        log.warning("%s", printable(warning))
    return loaded


def _settings(sources: ConfigSources) -> GatewaySettings:
    """As the files are now. Raises ConfigError."""
    from maitred.gateway.reload import GatewaySettings

    config = sources.load()
    return GatewaySettings(gateway=config.gateway, admission=config.admission, routing=config.routing)


def _use_every_descriptor() -> None:
    """Two connections for each request, and 1024 files by default: take what this process may have without asking anybody."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses what it calls unlimited
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
