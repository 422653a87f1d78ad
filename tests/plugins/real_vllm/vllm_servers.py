"""`vllm serve` and `maitred serve` as processes, and a client for both."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

MODEL = os.environ.get("MAITRED_VLLM_MODEL", "")
NAME = "tiny"
START_SECS = 240
"""A start takes 20 to 40 s on two free cores."""
WAIT_SECS = 60


class Server:
    """A process that answers HTTP on a port of its own. Its output is in a file."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._output = folder / f"{name}.log"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command, "--port", str(port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={key: value for key, value in os.environ.items() if not key.startswith("MAITRED_")} | env,
                start_new_session=True,
            )

    def wait_until_ready(self, path: str) -> None:
        """Return when `path` is answered with 200. Raises AssertionError with the output of a process that ends before."""
        end = time.monotonic() + START_SECS
        while time.monotonic() < end:
            assert self._process.poll() is None, self.output()
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(self.url.rsplit(":", 1)[1]))) as connection:
                connection.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
                if b" 200 " in connection.recv(100):
                    return
            time.sleep(0.2)
        raise AssertionError(f"not ready after {START_SECS} s:\n{self.output()}")

    def output(self) -> str:
        return self._output.read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """End the process and its children, which are in a process group of their own."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(WAIT_SECS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def vllm_server(folder: Path, maitred: Mapping[str, Any], *arguments: str) -> Server:
    """Start vLLM with the tiny model and our scheduler class."""
    command = [
        *("vllm.entrypoints.cli.main", "serve", MODEL, "--host", "127.0.0.1", "--served-model-name", NAME),
        *("--enforce-eager", "--kv-cache-memory-bytes", str(1 << 25), "--block-size", "32"),
        *("--uvicorn-log-level", "warning", "--scheduler-cls", "maitred.plugins.vllm.Scheduler"),
        *("--additional-config", json.dumps({"maitred": dict(maitred)}), *arguments),
    ]
    return Server("vllm", command, folder, {"VLLM_LOGGING_LEVEL": "WARNING"})


def gateway_server(folder: Path, backend: Server) -> Server:
    """Start a gateway in front of vLLM: with classes, which it passes on to vLLM, and with agent programs."""
    config = folder / "gateway.yaml"
    config.write_text(
        json.dumps(
            {
                "gateway": {"backends": [backend.url], "slots_per_backend": 64, "forward_priority": "vllm"},
                "admission": {"mode": "priority", "default_max_class": "system"},
                "programs": {"mode": "default", "metrics": True, "metrics_interval_secs": 0.2},
            }
        )
    )
    return Server("gateway", ["maitred", "serve", "--config", str(config)], folder, {})


class Client:
    """A client of vLLM, perhaps through a gateway. The metrics are always vLLM's own."""

    def __init__(self, vllm: Server, gateway: Server) -> None:
        self._vllm, self._gateway = vllm, gateway
        self._session = aiohttp.ClientSession()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def complete(self, prompt: Sequence[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
        """Return the answer to a prompt of token ids. The field `headers` is one."""
        headers = fields.pop("headers", {})
        body = self._body(prompt=list(prompt), max_tokens=max_tokens, **fields)
        async with self._session.post(f"{self._gateway.url}/v1/completions", json=body, headers=headers) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    async def stream_chat(self, text: str, max_tokens: int) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream. Whoever stops reading closes the connection."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        body = self._body(messages=[{"role": "user", "content": text}], max_tokens=max_tokens, **options)
        async with self._session.post(f"{self._gateway.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line.removeprefix(b"data: "))
                elif line.startswith(b"data: "):
                    yield {"done": True}

    async def gateway_json(self, path: str) -> Any:
        async with self._session.get(f"{self._gateway.url}{path}") as response:
            return await response.json()

    async def metric(self, *names: str) -> float:
        """Return the sum of all of vLLM's series with these names, as of one instant."""
        page = await self.vllm_metrics()
        values = re.findall(rf"^vllm:(?:{'|'.join(names)}){{.*}} (\S+)$", page, re.MULTILINE)
        return sum(map(float, values))

    async def requests_seen(self) -> int:
        """Return how many requests vLLM has had so far, without those that were aborted."""
        return round(await self.metric("num_requests_running", "num_requests_waiting", "request_success_total"))

    async def wait_for_requests(self, number: int) -> None:
        """Return when vLLM has seen so many requests."""
        end = time.monotonic() + WAIT_SECS
        while (seen := await self.requests_seen()) < number:
            assert time.monotonic() < end, f"vLLM has seen {seen} requests after {WAIT_SECS} s, and not {number}"
            await asyncio.sleep(0.01)

    async def vllm_metrics(self) -> str:
        async with self._session.get(f"{self._vllm.url}/metrics") as response:
            return await response.text()

    async def wait_until(self, name: str, reached: Callable[[float], bool]) -> None:
        """Return when a metric of vLLM is as wanted. Raises AssertionError after a minute."""
        end = time.monotonic() + WAIT_SECS
        while not reached(value := await self.metric(name)):
            assert time.monotonic() < end, f"{name} is {value} after {WAIT_SECS} s"
            await asyncio.sleep(0.01)

    def _body(self, **fields: Any) -> dict[str, Any]:
        return {"model": NAME, "temperature": 0, "ignore_eos": True, **fields}
