"""The gateway that `maitred serve` makes of its configuration, whether it serves by itself or schedules for others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from maitred.config import LoadedConfig
    from maitred.gateway.admin.reload import GatewaySettings
    from maitred.gateway.app import Gateway
    from maitred.gateway.observe.logs import LogOutput
    from maitred.wire.machine import Machine

GatewayT = TypeVar("GatewayT", bound="Gateway")


def make_gateway(
    make: Callable[..., GatewayT], loaded: LoadedConfig, output: LogOutput, reload: Callable[[], GatewaySettings]
) -> GatewayT:
    """Return the gateway that `make` makes, which is called as `Gateway` is. `reload` reads the sources of the configuration
    again. Raises ConfigError."""
    from maitred.config.shadow_file import shadow_at_start

    config = loaded.config
    return make(
        config.gateway,
        config.admission,
        config.routing,
        config.programs,
        link=config.scheduler,
        shadow=shadow_at_start(config),
        reload=reload,
        fallback=None if loaded.problem is None else str(loaded.problem),
        default_state=default_state(os.environ, config.gateway.port),
        log_output=output,
    )


def this_machine() -> Machine:
    """Return the machine of this process, with what the service manager has passed to it. Raises ConfigError."""
    from maitred.wire.machine import Machine
    from maitred.wire.service_manager import ServiceManager

    return Machine(service_manager=ServiceManager.of_process(os.environ, os.getpid()))


def default_state(env: Mapping[str, str], port: int) -> str | None:
    """Return the file that keeps the programs of the gateway at this port, or None for one that gets another port each time."""
    if not port:
        return None
    folder = env.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return str(Path(folder) / "maitred" / f"programs-{port}.sqlite")
