"""The source `dns`: every address of a name, such as that of a headless service of Kubernetes.

The name is looked up every `interval` seconds, in a thread of its own (`wire.resolver` says why). A look-up that fails changes
nothing: the last list holds, and the name is looked up again a second later.
"""

from __future__ import annotations

import asyncio

from maitred.scheduler.discovery.base import (
    SOURCES,
    BackendSource,
    SourceInfo,
    SourceListener,
    check_scheme,
    check_secs,
    url_of,
)
from maitred.wire.resolver import HostAddresses


@SOURCES.register("dns")
class DnsSource(BackendSource):
    """Lists every address of a name."""

    about = SourceInfo(summary="every address of a name, at one port", looks="every `interval` seconds")

    def __init__(self, name: str, port: int = 8000, interval: float = 10.0, scheme: str = "http") -> None:
        check_secs("interval", interval)
        check_scheme(scheme)
        if not 1 <= port <= 65_535:
            raise ValueError("port must be from 1 to 65535")
        self._name, self._port, self._interval, self._scheme = name, port, interval, scheme

    async def run(self, told: SourceListener) -> None:
        news = asyncio.Event()
        addresses = HostAddresses(self._name, self._interval, self._interval, told.machine.look_up, on_answer=news.set)
        try:
            while True:
                await news.wait()
                news.clear()
                if addresses.problem:
                    told.failed(f"{self._name} cannot be resolved: {addresses.problem}")
                else:
                    told.listed([url_of(address, self._port, self._scheme) for address in sorted(addresses.known)])
        finally:
            addresses.close()
