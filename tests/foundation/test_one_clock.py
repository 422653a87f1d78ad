"""What runs on a made-up event loop asks only that loop and its machine: for the time, for threads, for sockets, for chance."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import maitred

PACKAGE = Path(maitred.__file__).parent
SEAMS = {
    *("wire/clock.py", "wire/machine.py"),
    "wire/service_manager.py",  # a part of the machine, which a made-up one does not have
    "files/daemon_threads.py",  # how the system runs what the event loop is asked to run in a thread
    "files/__init__.py",  # waits in the system, before anything is served or in such a thread
}
"""The modules through which all others ask."""
CLIENTS = ("emulator/clients/", "emulator/demo.py")
"""Programs that measure a server from outside."""
FORBIDDEN = {
    "asyncio": {"to_thread"},  # It runs in the threads of the loop, which the process waits for at its end.
    "datetime": {"now", "today", "utcnow"},
    "os": {"urandom"},
    "queue": {"Queue", "SimpleQueue"},
    "random": {"SystemRandom"},
    "socket": {"create_server", "create_connection", "getaddrinfo", "socket"},
    "threading": {"Thread", "Timer"},
    "time": {
        *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
        *("process_time", "process_time_ns", "thread_time", "thread_time_ns", "sleep"),
    },
}
"""What no other module of these rooms may name, by module or class."""


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the types that are named: who names a type asks nothing."""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            annotation = getattr(node, name, None)
            if annotation is not None:
                yield annotation


def forbidden_names(source: str) -> Iterator[str]:
    """Yield what `source` names of `FORBIDDEN`, with the line."""
    tree = ast.parse(source)
    types = {id(node) for annotation in annotations(tree) for node in ast.walk(annotation)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in types:
            if node.attr in FORBIDDEN.get(node.value.id, ()):
                yield f"{node.lineno}: {node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            yield from (
                f"{node.lineno}: {node.module}.{n.name}" for n in node.names if n.name in FORBIDDEN.get(node.module or "", ())
            )


@pytest.mark.parametrize(
    ("room", "at_least"), [("gateway", 60), ("scheduler", 30), ("wire", 20), ("files", 5), ("emulator", 8)]
)
def test_only_the_seams_ask_the_system(room: str, at_least: int) -> None:
    files = {str(path.relative_to(PACKAGE)): path for path in sorted((PACKAGE / room).rglob("*.py"))}
    asked = {name: path for name, path in files.items() if name not in SEAMS and not name.startswith(CLIENTS)}
    assert len(asked) >= at_least
    assert [f"{name}:{each}" for name, path in asked.items() for each in forbidden_names(path.read_text())] == []


def test_a_clock_that_is_asked_past_the_seam_is_noticed() -> None:
    source = "import time\nfrom time import monotonic_ns\nfrom datetime import datetime\nt = time.time_ns()\nd = datetime.now()"
    assert list(forbidden_names(source)) == ["2: time.monotonic_ns", "4: time.time_ns", "5: datetime.now"]


def test_a_type_is_named_by_whoever_likes() -> None:
    assert list(forbidden_names("def f(s: socket.socket) -> socket.socket | None:\n    t: threading.Thread")) == []
    assert list(forbidden_names("def f(s: socket.socket):\n    return socket.socket()")) == ["2: socket.socket"]
