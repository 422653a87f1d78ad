"""The real Envoy in front of an endpoint picker that is configured as SMG would be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from maitred.gateway.cluster.scheduler_gateway import LinkPort
from maitred.gateway.envoy.bootstrap import EnvoyPlan
from maitred.gateway.envoy.envoy_process import EnvoyProcess
from maitred.gateway.envoy.picker_scheduler import ExtProcPort, PickerScheduler
from maitred.scheduler.interface import LinkAddress
from maitred.scheduler.sharing.elections.election import SoleScheduler
from maitred.wire import server
from maitred.wire.machine import Machine
from ports import free_ports

from .client import Wanted, ask
from .gateway import _LOG, POLL_SECS, START_SECS, ClusterGateway, Gateway, _application
from .metrics import Metrics

_HERE = "127.0.0.1"
SETTLE_SECS = 1.0


class _PickerGateway(ClusterGateway):
    """A gateway whose pages are elsewhere, with all of its metrics."""

    picker: PickerScheduler

    async def metrics(self) -> Metrics:
        # The picker hears of the end of a response after the client has it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECS):
                while self.picker.picker is not None and self.picker.picker.num_streams:
                    await asyncio.sleep(POLL_SECS)
        return Metrics((await self.get("/metrics")).body.decode())


@contextlib.asynccontextmanager
async def behind_envoy(arguments: Sequence[str], key: str | None) -> AsyncIterator[Gateway]:
    """Run a picker as an application in this event loop, and Envoy as a process (`Launcher`)."""
    log: list[str] = []
    _LOG.set(log)
    alone = _application(arguments, log, Machine())
    picker = _picker(alone)
    async with server.running_server(picker, drain_secs=0) as pages:
        (port,) = free_ports(1)
        assert picker.grpc is not None
        plan = EnvoyPlan(
            backends=alone.config.backends,
            pickers=[LinkAddress(_HERE, picker.grpc.port)],
            listen=LinkAddress(_HERE, port),
        )
        envoy = EnvoyProcess(plan, concurrency=1)
        await envoy.start()
        try:
            url = f"http://{_HERE}:{port}"
            await _until_asked(url)
            gateway = _PickerGateway([url], pages, log, key)
            gateway.picker = picker
            yield gateway
        finally:
            await envoy.stop()


def _picker(alone: Any) -> PickerScheduler:
    settings = alone.settings()
    sections = (settings.gateway, settings.admission, settings.routing, settings.programs)
    return PickerScheduler(
        *sections,
        port=LinkPort(None, None, None, b"a secret of a conformance run", "picker"),
        election=SoleScheduler(is_first=True),
        pages=(_HERE, 0),
        ext_proc=ExtProcPort(_HERE, 0),
        fallback=alone.scheduler.fallback,
        machine=Machine(),
    )


async def _until_asked(url: str) -> None:
    """Wait until Envoy asks the picker: what is at no path of a gateway is 404 then, and 503 before."""
    async with asyncio.timeout(START_SECS):
        while True:
            with contextlib.suppress(OSError):
                if (await ask(url, Wanted("PUT", "/v1/chat/completions", []))).status == 405:
                    return
            await asyncio.sleep(POLL_SECS)
