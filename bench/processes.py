"""The processes of a live benchmark: mock engines, `maitred serve` in front of them, clients. Each ends with its `with`."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent
MAITRED = (sys.executable, "-c", "from maitred.cli import main; main()")
SERVE = ("serve", "--port", "0", "--settle-secs", "0")
"""A gateway on a free port, which no balancer watches when it ends."""
START_SECS = 30.0
ANSWER_SECS = 120.0
"""Timeout of a request for a page: an overloaded gateway answers these slowly as well."""
STOP_SECS = 15.0
_LISTENING = re.compile(r"^maitred: gateway on (https?://[^\s,]+)", re.MULTILINE)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free now, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


class GatewayProcess:
    """A running `maitred serve`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        self.url = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log_text(self) -> str:
        """Everything it has written to stderr so far."""
        return self.log.read_text(errors="replace")

    def wait_until_listening(self) -> None:
        for _ in _retry(START_SECS):
            found = _LISTENING.search(self.log_text)
            if found:
                self.url = found[1]
                return
            if self.process.poll() is not None:
                break
        sys.exit(f"the gateway did not start:\n{self.log_text}")

    def wait_for_capacity(self, slots: int) -> None:
        """Wait until the gateway has `slots` slots: all backends are up and have reported theirs."""
        for _ in _retry(START_SECS):
            if fetch_json(f"{self.url}/maitred/state")["capacity"] == slots:
                return
        sys.exit(f"the gateway never had {slots} slots:\n{self.log_text}")


@contextlib.contextmanager
def run_gateway(backends: Sequence[str], *flags: str) -> Iterator[GatewayProcess]:
    """Run `maitred serve` on a free port, as a user would start it."""
    named = [argument for url in backends for argument in ("--backend", url)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as stderr, _running([*MAITRED, *SERVE, *named, *flags], stderr=stderr) as process:
            running = GatewayProcess(process, log)
            running.wait_until_listening()
            yield running


@contextlib.contextmanager
def run_mock_engines(step_secs: float, slots: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    """Run mock engines in one process, one for each model and number of slots. Yields their URLs."""
    named = [argument for model, count in slots for argument in ("--engine", f"{model}:{count}")]
    arguments = [sys.executable, str(HERE / "mock_engine.py"), "--step-secs", str(step_secs), *named]
    with _running(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())


@contextlib.contextmanager
def run_clients(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script of this folder that writes its results to stdout."""
    script, *rest = arguments
    with _running([sys.executable, str(HERE / script), *rest], stdout=subprocess.PIPE) as process:
        yield process


@contextlib.contextmanager
def _running(arguments: list[str], **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(arguments, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECS)
            except subprocess.TimeoutExpired:
                process.kill()


def fetch_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=ANSWER_SECS) as answer:
        return msgspec.json.decode(answer.read())


def fetch_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=ANSWER_SECS) as answer:
        return str(answer.read(), "utf-8")


def post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=ANSWER_SECS):
        pass


def raise_descriptor_limit() -> int:
    """Raise the limit of open files of this process, and of its children, as far as allowed. Return the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _retry(seconds: float) -> Iterator[None]:
    """Yield for `seconds`, with short pauses."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)
