"""PickerScheduler: a scheduler that is an endpoint picker as well, for Envoy (`maitred scheduler --ext-proc`).

The picker is linked to this scheduler as a gateway is, and shares its counters. It is ready while this scheduler leads, so with
several schedulers Envoy asks the one that does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.cluster.scheduler_gateway import SchedulerGateway
from maitred.gateway.envoy.endpoint_picker import EndpointPicker, PickerParts
from maitred.gateway.envoy.grpc_services import GrpcServer
from maitred.scheduler.interface import LinkAddress, OwnHost, RemoteScheduler, SchedulerParts
from maitred.wire.server_context import ServerContext
from maitred.wire.tls import ReloadedContext


class ExtProcPort(NamedTuple):
    """Where Envoy finds the picker."""

    host: str
    port: int
    tls: ReloadedContext | None = None
    """The context of the certificate that Envoy sees, or None for plain connections."""


class PickerScheduler(SchedulerGateway):
    """A scheduler with a picker."""

    def __init__(self, *args: Any, ext_proc: ExtProcPort, **named: Any) -> None:
        """As `SchedulerGateway`."""
        super().__init__(*args, **named)
        self._ext_proc = ext_proc
        self.certificates.add_link(ext_proc.tls)
        self.picker: EndpointPicker | None = None
        self.grpc: GrpcServer | None = None
        self._context: ServerContext | None = None

    async def start(self, server: ServerContext) -> None:
        await super().start(server)
        self._context = server
        self.picker = picker = EndpointPicker(self._picker_parts())
        self.grpc = GrpcServer(picker.process, self.is_ready, self.config.max_body_bytes)
        self.grpc.listen(self._ext_proc.host, self._ext_proc.port, self.machine)
        await picker.start()
        await self.grpc.start(None if self._ext_proc.tls is None else self._ext_proc.tls.first)

    @property
    def ext_proc_address(self) -> LinkAddress:
        """Where Envoy finds the picker, with a number in place of port 0."""
        return LinkAddress(self._ext_proc.host, self._ext_proc.port if self.grpc is None else self.grpc.port)

    async def stop(self) -> None:
        if self.grpc is not None:
            await self.grpc.stop(self.config.drain_secs)
        if self.picker is not None:
            await self.picker.close()
        await super().stop()

    def is_ready(self) -> bool:
        """Return whether Envoy may send requests here: this scheduler leads, is not about to end, and a backend is up."""
        host, picker, context = self.host, self.picker, self._context
        if host is None or picker is None or context is None or context.is_draining:
            return False
        return host.leadership.mode != "standby" and picker.has_backends

    def _advertised(self) -> str:
        if self.link_address is None:
            return str(self.ext_proc_address)
        return super()._advertised()

    def _use_secret(self, secret: bytes) -> None:
        super()._use_secret(secret)
        if self.picker is not None:
            self.picker.use_secret(secret)

    async def _on_reloaded(self, settings: GatewaySettings) -> None:
        if self.picker is not None:
            self.picker.reconfigure(settings)

    def _picker_parts(self) -> PickerParts:
        settings, host = self.settings(), self.host
        assert host is not None
        # What is written while a program waits would be the response, for Envoy.
        programs = msgspec.structs.replace(settings.programs, wait_keepalive_secs=0.0)
        parts = SchedulerParts(
            config=settings.gateway,
            admission=settings.admission,
            routing=settings.routing,
            programs=programs,
            client=self._client,
            clock=self.machine.clock,
        )
        name = f"{self._link_port.name}-envoy"
        remote = RemoteScheduler(parts, dialer=OwnHost(host), name=name, secret=self._link_port.secret)
        return PickerParts(
            settings=settings,
            scheduler=remote,
            client=self._client,
            counters=self.counters,
            metrics=self.request_metrics,
            access_log=self._outputs.access_log,
            recorder=self._outputs.recorder,
            tracer=self._observer.tracer,
            further_keys=self._key_watch.sources,
            machine=self.machine,
        )
