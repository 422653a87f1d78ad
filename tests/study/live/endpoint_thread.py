"""An endpoint in a thread of its own, for commands that run an event loop themselves."""

import asyncio
import contextlib
import threading

import uvloop

from maitred.emulator import EngineConfig
from maitred.emulator.engine import EngineApp
from maitred.instance import InstanceConfig, LinearLatency
from maitred.wire.server import running_server

QUICK = LinearLatency((2_000.0, 0.0, 10.0))
"""A step takes 2 ms, and 10 µs more for each sequence that decodes."""


@contextlib.contextmanager
def serving(make_app):
    """Yield the URL of a server with the app that `make_app` makes."""
    started, stop = threading.Event(), None
    url, loop = "", None

    async def serve():
        nonlocal url, stop, loop
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        async with running_server(make_app(), drain_secs=0.1) as url:
            started.set()
            await stop.wait()

    thread = threading.Thread(target=uvloop.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(5)


def engine(**instance):
    """Return the maker of an emulated engine."""
    settings = {"latency": QUICK, **instance}
    return lambda: EngineApp(EngineConfig(), InstanceConfig(**settings))
