"""A worker as a process, as the parent starts it: `python -m maitred.gateway.workers.process FOLDER NUMBER WORKERS FD...`.

The descriptors are those of the sockets that listen, inherited from the parent, which keeps them open: clients that connect
while a worker is started anew wait in its queue. The log goes to standard error, which the parent reads.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

from maitred.core.errors import MaitredError
from maitred.core.printing import printable
from maitred.gateway.app import serve_gateway
from maitred.gateway.observe.logs import log_to_stderr
from maitred.gateway.workers.settings import WorkerFolder, share_of
from maitred.gateway.workers.worker import WorkerGateway
from maitred.scheduler.interface import Dialer, KnownAddresses, LinkAddress, RemoteScheduler
from maitred.wire.machine import Machine
from maitred.wire.server import OpenPort, run_server

log = logging.getLogger("maitred.gateway")


def main(arguments: list[str]) -> int:
    """Serve until a signal, or until the parent is gone. Return the status to end with."""
    folder, number, workers = WorkerFolder(Path(arguments[0])), int(arguments[1]), int(arguments[2])
    settings = share_of(folder.settings(), workers)
    with log_to_stderr(settings.gateway) as output:
        try:
            make_scheduler = partial(
                RemoteScheduler,
                dialer=Dialer(KnownAddresses(LinkAddress(folder.socket, None))),
                name=worker_name(number),
                secret=folder.secret(),
                on_parent_lost=partial(_end, folder),
            )
            gateway = WorkerGateway(
                settings.gateway,
                settings.admission,
                settings.routing,
                settings.programs,
                log_output=output,
                make_scheduler=make_scheduler,
                read_settings=lambda: share_of(folder.settings(), workers),
            )
            machine = Machine()
            sockets = [machine.adopt_listener(int(descriptor)) for descriptor in arguments[3:]]
            ports = [OpenPort(each, listener) for each, listener in zip(sockets, gateway.listeners(), strict=True)]
            run_server(serve_gateway(gateway, ports, lambda *urls: gateway.say_ready()))
        except MaitredError as error:
            log.error("%s", printable(str(error)))
            return 1
    return 0


def worker_name(number: int) -> str:
    """Return the name of a worker on the link and in the log."""
    return f"worker {number}"


def _end(folder: WorkerFolder, reason: str) -> None:
    """End as for SIGTERM: nobody schedules any more, and nobody would start this process anew. The parent cannot remove its
    folder any more."""
    log.error("the process that schedules is gone (%s): this worker ends", reason)
    shutil.rmtree(folder.path, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
