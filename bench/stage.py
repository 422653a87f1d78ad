"""The processes of a live benchmark: mock engines, `maitred serve` in front of them, clients. None survives its `with`."""

from __future__ import annotations

import contextlib
import json
import re
import resource
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
START_SECS = 30.0
ANSWER_SECS = 120.0
"""A gateway that has more to do than its core can takes its time with these pages, too."""
STOP_SECS = 15.0
_LISTENING = re.compile(r"^maitred: gateway on (http://[^\s,]+)", re.MULTILINE)


class Gateway:
    """`maitred serve` as a user would start it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        self.url = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """All it has written to stderr so far."""
        return self.log.read_text(errors="replace")

    def wait_until_listening(self) -> None:
        for _ in _until(START_SECS):
            found = _LISTENING.search(self.said)
            if found:
                self.url = found[1]
                return
            if self.process.poll() is not None:
                break
        sys.exit(f"the gateway did not start:\n{self.said}")

    def wait_for_capacity(self, slots: int) -> None:
        """Until all backends are known to it, with what they report."""
        for _ in _until(START_SECS):
            if get(f"{self.url}/maitred/state")["capacity"] == slots:
                return
        sys.exit(f"the gateway never had {slots} slots:\n{self.said}")


@contextlib.contextmanager
def gateway(backends: Sequence[str], *flags: str) -> Iterator[Gateway]:
    named = [argument for url in backends for argument in ("--backend", url)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as stderr, _ended([*MAITRED, "serve", "--port", "0", *named, *flags], stderr=stderr) as process:
            running = Gateway(process, log)
            running.wait_until_listening()
            yield running


@contextlib.contextmanager
def engines(step_secs: float, slots: Sequence[tuple[str, int]]) -> Iterator[list[str]]:
    """Mock engines in one process, each with its model and slots. Yields their URLs."""
    named = [argument for model, count in slots for argument in ("--engine", f"{model}:{count}")]
    arguments = [sys.executable, str(HERE / "mock_engine.py"), "--step-secs", str(step_secs), *named]
    with _ended(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())


@contextlib.contextmanager
def clients(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python script of this folder that says on stdout what it saw."""
    script, *rest = arguments
    with _ended([sys.executable, str(HERE / script), *rest], stdout=subprocess.PIPE) as process:
        yield process


@contextlib.contextmanager
def _ended(arguments: list[str], **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(arguments, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECS)
            except subprocess.TimeoutExpired:
                process.kill()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=ANSWER_SECS) as answer:
        return msgspec.json.decode(answer.read())


def get_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=ANSWER_SECS) as answer:
        return str(answer.read(), "utf-8")


def post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=ANSWER_SECS):
        pass


def use_every_descriptor() -> int:
    """Raise this process's limit of open files as far as it may; its children inherit it. Returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _until(seconds: float) -> Iterator[None]:
    """Again and again, with short pauses, for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)
