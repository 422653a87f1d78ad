"""The gateway, its server and its client on an event loop that makes up time and network, unchanged."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from maitred.admission import AdmissionConfig
from maitred.admission.terms.config import ClassConfig, ClassesConfig
from maitred.gateway.app import Gateway, serve_gateway
from maitred.gateway.config import GatewayConfig
from maitred.gateway.observe.logs import LogOutput
from maitred.testing.world import Network, VirtualLoop
from maitred.testing.world.place import here
from maitred.wire.client import UpstreamClient
from maitred.wire.clock import Clock
from maitred.wire.exchange import Exchange, send_json
from maitred.wire.machine import ListeningSocket, Machine, SocketWatch
from maitred.wire.origin import Origin
from maitred.wire.server import App, running_server

MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]}
TIMEOUT_SECS, WORK_SECS = 60.0, 90.0


class NoSockets:
    """Sockets that are none of the system's."""

    def watch(self, descriptor: int, on_hangup: object) -> None:
        """Nobody hangs up here."""

    def stop_watching(self, descriptor: int) -> None:
        """Nothing was watched."""

    def num_queued_bytes(self, descriptor: int) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


class MadeUpMachine(Machine):
    """A machine with the time and the network of a `VirtualLoop`."""

    def __init__(self, loop: VirtualLoop, network: Network) -> None:
        super().__init__(Clock(lambda: loop.micros * 1_000, lambda: (1_800_000_000_000_000 + loop.micros) * 1_000, lambda: 0))
        self.random = random.Random(3)
        self._network = network

    def listen(self, host: str, port: int) -> ListeningSocket:
        return self._network.listen(host, port, here())  # type: ignore[return-value]  # the loop takes its own

    def look_up(self, host: str) -> list[str]:
        return self._network.addresses_of(host)

    def watch_sockets(self, loop: asyncio.AbstractEventLoop) -> SocketWatch:
        return NoSockets()

    def descriptor_limit(self) -> int:
        return sys.maxsize

    def lowest_free_descriptor(self) -> int:
        return 3


class SlowEngine(App):
    """Works for `WORK_SECS` on each request."""

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path == "/v1/chat/completions":
            await exchange.read_body(1_000)
            await asyncio.sleep(WORK_SECS)
        send_json(exchange, 200, MODELS)


class Lines(LogOutput):
    """Keeps the lines of the log."""

    def __init__(self) -> None:
        super().__init__("json")
        self.lines: list[bytes] = []

    def start(self) -> None:
        """Nothing is written."""

    def write(self, line: bytes) -> None:
        self.lines.append(line)


async def ask(client: UpstreamClient, origin: Origin, delay: float) -> int:
    await asyncio.sleep(delay)
    headers = [(b"content-type", b"application/json")]
    response = await client.request(origin, "POST", "/v1/chat/completions", headers, b'{"model":"m","messages":[]}')
    async for _ in response:
        pass
    return response.status


def play(folder: Path) -> tuple[list[int], list[dict[str, Any]], bytes]:
    """Run `maitred serve`, less its process, before a slow engine with one slot. Return what two clients get, and the logs."""
    loop, lines = VirtualLoop(seed=7), Lines()
    network = Network(loop)
    network.hosts["engine"] = ["127.0.0.1"]
    machine = MadeUpMachine(loop, network)

    async def main() -> list[int]:
        async with running_server(SlowEngine(), port=9001, machine=machine):
            config = GatewayConfig(
                backends=("http://engine:9001",),
                port=9000,
                slots_per_backend=1,
                access_log=True,
                decision_log=str(folder / "d"),
            )
            classes = ClassesConfig(default=ClassConfig(queue_timeout_secs=TIMEOUT_SECS))
            admission = AdmissionConfig(mode="priority", classes=classes)
            gateway = Gateway(config, admission, log_output=lines, machine=machine)
            ready: asyncio.Future[str] = loop.create_future()
            serving = asyncio.create_task(serve_gateway(gateway, gateway.open_ports(), ready.set_result))
            client, origin = UpstreamClient(machine=machine), Origin.parse(await ready)
            statuses = await asyncio.gather(*(ask(client, origin, delay) for delay in (0.0, 0.5)))
            await client.close()
            loop.send_signal(signal.SIGTERM)
            await serving
            return statuses

    statuses = loop.run_until_complete(main())
    loop.close()
    return statuses, [json.loads(line) for line in lines.lines], (folder / "d").read_bytes()


def test_the_whole_gateway_runs_in_made_up_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: object) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr("threading.Thread.start", no_thread)
    statuses, lines, decisions = play(tmp_path)
    assert statuses == [200, 408]
    (late, served) = [line for line in lines if line["logger"] == "maitred.access"]
    assert late["secs"] == pytest.approx(TIMEOUT_SECS, abs=0.01)
    assert served["secs"] == pytest.approx(WORK_SECS, abs=0.01)
    assert served["time"].startswith("2027-01-15T")
    assert decisions.count(b"queue_timeout") >= 1
    (tmp_path / "d").unlink()
    assert play(tmp_path) == (statuses, lines, decisions)
