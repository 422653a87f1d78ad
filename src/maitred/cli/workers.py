"""`maitred serve --workers N`: the process that schedules, and its workers."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from maitred import __version__
from maitred.cli import hangup_came
from maitred.cli.made_gateway import make_gateway, this_machine
from maitred.core.errors import ConfigError
from maitred.files.scratch import ProcessFolder

if TYPE_CHECKING:
    from maitred.config import LoadedConfig
    from maitred.gateway.admin.reload import GatewaySettings
    from maitred.gateway.observe.logs import LogOutput
    from maitred.gateway.workers.parent import ParentGateway

log = logging.getLogger("maitred.gateway")


def serve_workers(
    loaded: LoadedConfig,
    output: LogOutput,
    number: int,
    reload: Callable[[], GatewaySettings],
    on_ready: Callable[..., object],
) -> None:
    """Serve with so many processes until a signal. `reload` reads the sources of the configuration again, and `on_ready` is
    called with the URL of each port when all workers serve. Raises ConfigError if that is not possible, also for what several
    processes cannot do yet; then no file has been made or changed."""
    from maitred.files.undo import whole_or_nothing
    from maitred.gateway.workers.settings import WorkerFolder, check_body_shares
    from maitred.gateway.workers.supervisor import Supervisor, open_shared
    from maitred.wire.server import run_server

    config = loaded.config
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("several workers need Unix sockets, which this system has not", where="--workers", hint="--workers 1")
    check_body_shares(config.gateway, number)

    def reload_shared() -> GatewaySettings:
        settings = reload()
        check_body_shares(settings.gateway, number)
        return settings

    with contextlib.closing(ProcessFolder("maitred-workers-")) as made:
        folder = WorkerFolder(made.path)
        with whole_or_nothing():
            machine = this_machine()
            kind, module = _kind(loaded)
            make = partial(kind, write_settings=folder.write_settings, machine=machine)
            parent = make_gateway(make, loaded, output, reload_shared)
            mode = parent.core.config.mode
            log.info("maitred %s starts: process %d, %d workers, admission %s", __version__, os.getpid(), number, mode)
            ports = open_shared(parent.listeners(), number, machine)
            machine.service_manager.require_all_taken("gateway.port or gateway.admin_port")
        folder.make_secret()
        folder.write_settings(parent.settings())

        def announce(*urls: str) -> None:
            on_ready(*urls)
            if hangup_came():  # before this command handled it
                parent.request_reload()

        run_server(Supervisor(parent, folder, ports, number, module).run(announce))


def _kind(loaded: LoadedConfig) -> tuple[Callable[..., ParentGateway], str]:
    """Return the maker of the parent, and the module that workers run. Both depend on which process schedules."""
    if loaded.config.scheduler.addresses:
        from maitred.gateway.cluster.linked_workers import WORKER_PROCESS, LinkedParent

        return LinkedParent, WORKER_PROCESS
    from maitred.gateway.workers.parent import ParentGateway
    from maitred.gateway.workers.supervisor import WORKER_PROCESS as SCHEDULED_PROCESS

    return ParentGateway, SCHEDULED_PROCESS
