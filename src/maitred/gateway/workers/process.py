"""A worker as a process, as the parent starts it: `python -m maitred.gateway.workers.process FOLDER NUMBER WORKERS FD,FD...`.

The descriptors are those of the sockets that listen, of each port one for each worker, inherited from the parent, which keeps
them open: clients that connect while a worker is started anew are accepted by the others (`stand_in`). The log goes to standard
error, which the parent reads.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from maitred.core.errors import MaitredError
from maitred.core.printing import printable
from maitred.gateway.app import serve_gateway
from maitred.gateway.observe.logs import log_to_stderr
from maitred.gateway.workers.settings import WorkerFolder, share_of
from maitred.gateway.workers.stand_in import StandIn
from maitred.gateway.workers.worker import WorkerGateway
from maitred.scheduler.interface import Dialer, KnownAddresses, LinkAddress, RemoteScheduler
from maitred.wire.machine import Machine
from maitred.wire.server import Listener, OpenPort, run_server
from maitred.wire.server_context import ServerContext

log = logging.getLogger("maitred.gateway")


def main(arguments: list[str], make_gateway: Callable[..., WorkerGateway] | None = None) -> int:
    """Serve until a signal, or until the parent is gone. Return the status to end with. `make_gateway` is called as
    `WorkerGateway` is, with what the link to the parent is made of (`ParentAccess`) as `parent`; None: the parent schedules."""
    folder, number, workers = WorkerFolder(Path(arguments[0])), int(arguments[1]), int(arguments[2])
    settings = share_of(folder.settings(), workers)
    with log_to_stderr(settings.gateway, origin=worker_name(number)) as output:
        try:
            parent = ParentAccess(folder, worker_name(number))
            gateway = (make_gateway or _scheduled_by_parent)(
                settings.gateway,
                settings.admission,
                settings.routing,
                settings.programs,
                link=settings.scheduler,
                log_output=output,
                parent=parent,
                read_settings=lambda: share_of(folder.settings(), workers),
            )
            sockets = [[*map(int, each.split(","))] for each in arguments[3:]]
            ports = _adopt(sockets, gateway.listeners())
            own = ports.pop(worker_name((number - 1) % len(ports) + 1))  # Or that of all, where there is one.
            gateway.stand_in, gateway.on_started = StandIn(ports), parent.on_started
            run_server(serve_gateway(gateway, own, lambda *urls: gateway.say_ready()))
        except MaitredError as error:
            log.error("%s", printable(str(error)))
            return 1
    return 0


class ParentAccess:
    """What a worker needs for a link to its parent."""

    def __init__(self, folder: WorkerFolder, name: str) -> None:
        """`name` is that of the worker."""
        self.name, self.secret = name, folder.secret()
        self.end: Callable[[], object] = partial(os.kill, os.getpid(), signal.SIGTERM)
        """Ends this process."""
        self._folder = folder

    def dialer(self) -> Dialer:
        """Build the dialer to the parent."""
        return Dialer(KnownAddresses(LinkAddress(self._folder.socket, None)))

    def on_lost(self, reason: str) -> None:
        """End, because the parent is gone: nobody schedules any more, and nobody would start this process anew. The parent
        cannot remove its folder any more."""
        log.error("the process that schedules is gone (%s): this worker ends", reason)
        shutil.rmtree(self._folder.path, ignore_errors=True)
        self.end()

    def on_started(self, server: ServerContext) -> None:
        """Note what serves here. When the parent is gone, whoever starts it anew needs its ports at once."""
        self.end = server.leave_ports


def _scheduled_by_parent(*args: Any, parent: ParentAccess, **named: Any) -> WorkerGateway:
    make_scheduler = partial(
        RemoteScheduler, dialer=parent.dialer(), name=parent.name, secret=parent.secret, on_parent_lost=parent.on_lost
    )
    return WorkerGateway(*args, make_scheduler=make_scheduler, **named)


def _adopt(descriptors: Sequence[Sequence[int]], listeners: Sequence[Listener]) -> dict[str, list[OpenPort]]:
    """Return the ports of each worker, by its name. `descriptors` are those of the sockets of each port."""
    machine, ports = Machine(), defaultdict[str, list[OpenPort]](list)
    for sockets, listener in zip(descriptors, listeners, strict=True):
        for index, descriptor in enumerate(sockets):
            ports[worker_name(index + 1)].append(OpenPort(machine.adopt_listener(descriptor), listener))
    return ports


def worker_name(number: int) -> str:
    """Return the name of a worker on the link and in the log."""
    return f"worker {number}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
