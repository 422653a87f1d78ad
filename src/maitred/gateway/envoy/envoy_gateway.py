"""EnvoyGateway: `maitred serve --data-plane envoy`. A picker that asks nobody, and an Envoy in front of it as a child.

Clients see one gateway on one port. The pages of the operator are on a port of their own, since for them all that comes through
Envoy would come from this machine; of health, Envoy asks there.

At the end the picker is ready no more, so Envoy takes nothing new; it is ended when its requests have ended, or at the end of
`drain_secs`. An Envoy that ends by itself is started anew, and the requests that it had are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Final

from maitred.core.errors import ConfigError, describe_os_error
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.envoy.bootstrap import EnvoyPlan
from maitred.gateway.envoy.envoy_process import EnvoyProcess
from maitred.gateway.envoy.picker_scheduler import PickerScheduler
from maitred.scheduler.interface import Backend, LinkAddress, SoleScheduler
from maitred.wire.server import OpenPort
from maitred.wire.server_context import ServerContext

log = logging.getLogger("maitred.gateway")
_RESTART_SECS: Final = 1.0
_START_SECS: Final = 30.0
_LOOK_SECS: Final = 0.05


class EnvoyGateway(PickerScheduler):
    """A picker with an Envoy of its own."""

    def __init__(self, *args: Any, pages: tuple[str, int], **named: Any) -> None:
        """As `PickerScheduler`, without an election."""
        # Nobody else asks this picker, and the Envoy of a process before this one has ended with it.
        super().__init__(*args, pages=pages, election=SoleScheduler(is_first=True), **named)
        self._pages_address = LinkAddress(*pages)
        self._envoy: EnvoyProcess | None = None
        self._keeping: asyncio.Task[None] | None = None

    def open_ports(self) -> Sequence[OpenPort]:
        self._check_port()
        return super().open_ports()

    async def start(self, server: ServerContext) -> None:
        """Start to pick, and return when Envoy listens. Raises ConfigError if it cannot."""
        await super().start(server)
        self._envoy = envoy = EnvoyProcess(self._plan(), self._threads())
        self._show_certificate()
        await envoy.start()
        await self._until_listening(envoy)
        fleet = self.scheduler.fleet
        fleet.on_added.append(self._tell_backends)
        fleet.on_removed.append(self._tell_backends)
        self._tell_backends()
        self._keeping = asyncio.get_running_loop().create_task(self._keep(envoy))

    @property
    def envoy_pid(self) -> int | None:
        """The process of Envoy, or None before the start."""
        return None if self._envoy is None else self._envoy.pid

    async def stop(self) -> None:
        if self.grpc is not None:
            await self.grpc.stop(self.config.drain_secs)
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        if self._envoy is not None:
            await self._envoy.stop()
        await super().stop()

    def _tell_backends(self, _changed: Backend | None = None) -> None:
        """Have Envoy know the backends that there are."""
        if self._envoy is not None:
            self._envoy.set_backends([backend.url for backend in self.scheduler.fleet.backends])

    async def _on_reloaded(self, settings: GatewaySettings) -> None:
        await super()._on_reloaded(settings)
        self._show_certificate()

    def _show_certificate(self) -> None:
        """Have Envoy show clients the certificate in force, if there is one."""
        if self._envoy is not None and self.certificates.port is not None:
            files = self.certificates.port.files
            self._envoy.set_certificate(files.chain, files.key)

    def _plan(self) -> EnvoyPlan:
        config, picker = self.config, self.ext_proc_address
        return EnvoyPlan(
            backends=[backend.url for backend in self.scheduler.fleet.backends],
            pickers=[picker],
            listen=LinkAddress(config.host, config.port),
            max_body_bytes=config.max_body_bytes,
            pages=self._pages_address,
        )

    def _threads(self) -> int | None:
        """Return the number of Envoy's threads, or None for one for each processor."""
        workers = self.config.workers
        return workers if isinstance(workers, int) and workers > 1 else None

    def _check_port(self) -> None:
        """Raise ConfigError if Envoy could not listen: it would say so in many words."""
        config = self.config
        if not self.config.port:
            raise ConfigError("Envoy takes no free port by itself", where="--port", hint="the number of a port, such as 8080")
        try:
            self.machine.listen(config.host, config.port).close()
        except (OSError, OverflowError) as error:
            problem = describe_os_error(error) if isinstance(error, OSError) else str(error)
            raise ConfigError(f"cannot listen on {config.host}:{config.port}: {problem}", where="--port") from error

    async def _until_listening(self, envoy: EnvoyProcess) -> None:
        ended = asyncio.ensure_future(envoy.wait())
        try:
            async with asyncio.timeout(_START_SECS):
                while not ended.done():
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(_reachable(self.config.host), self.config.port)
                        writer.close()
                        return
                    await asyncio.sleep(_LOOK_SECS)
        except TimeoutError:
            problem = f"it does not listen after {_START_SECS:g} s"
        else:
            problem = f"it has ended with status {ended.result()}"
        finally:
            ended.cancel()
        await envoy.stop()
        raise ConfigError(f"Envoy did not start: {problem}", where="--data-plane", hint="its words are above")

    async def _keep(self, envoy: EnvoyProcess) -> None:
        """Start Envoy anew whenever it has ended."""
        while True:
            status = await envoy.wait()
            log.error("Envoy has ended with status %d: its requests are lost, and it is started anew", status)
            await asyncio.sleep(_RESTART_SECS)
            await envoy.start()


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
