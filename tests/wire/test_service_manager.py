"""systemd's protocols: a gateway serves on sockets that it was passed, and says when it is ready, reloads and stops."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from maitred.core.errors import ConfigError
from maitred.wire.machine import Machine
from maitred.wire.service_manager import ServiceManager

STARTER = (
    "import os, sys; from maitred.cli import main; "
    "os.dup2(int(sys.argv.pop(1)), 3); os.environ['LISTEN_PID'] = str(os.getpid()); main()"
)
"""What systemd does before it starts a service with a socket."""
PASSED = {"LISTEN_PID": "77", "LISTEN_FDS": "1"}


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd is told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(20)
        yield made


def test_a_gateway_serves_on_a_passed_socket_and_tells_its_state(listening: socket.socket, manager: socket.socket) -> None:
    port = listening.getsockname()[1]
    flags = ["serve", "--port", str(port), "--backend", "http://127.0.0.1:9", "--log-level", "error"]
    command = [sys.executable, "-c", STARTER, str(listening.fileno()), *flags]
    env = {**os.environ, "LISTEN_FDS": "1", "NOTIFY_SOCKET": str(manager.getsockname())}
    with subprocess.Popen(command, pass_fds=[listening.fileno()], env=env, stderr=subprocess.DEVNULL) as running:
        try:
            assert manager.recv(100) == b"READY=1"
            with urlopen(f"http://127.0.0.1:{port}/health") as answer:
                assert answer.status == 200
            running.send_signal(signal.SIGHUP)
            state, _, instant = manager.recv(100).partition(b"\nMONOTONIC_USEC=")
            assert (state, manager.recv(100)) == (b"RELOADING=1", b"READY=1")
            assert int(instant) > 0
            running.send_signal(signal.SIGINT)  # as SIGTERM, without the time that balancers need
            assert manager.recv(100) == b"STOPPING=1"
            assert running.wait(timeout=20) == 0
        finally:
            running.kill()
    # Clients of the next process wait in the queue of the socket, which is still open.
    socket.create_connection(("127.0.0.1", port)).close()


def test_the_variables_of_the_manager_are_not_handed_on(manager: socket.socket) -> None:
    env = {"NOTIFY_SOCKET": str(manager.getsockname()), "LISTEN_PID": "76", "LISTEN_FDS": "4", "LISTEN_FDNAMES": "a", "X": "1"}
    found = ServiceManager.of_process(env, 77)
    assert env == {"X": "1"}
    assert found.ports == []  # They were passed to process 76.
    found.tell_stopping()
    assert manager.recv(100) == b"STOPPING=1"


def test_a_passed_socket_is_used_for_its_port_and_must_be_used(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    twin = listening.dup()
    passed = ServiceManager(sockets={port: twin})
    machine = Machine(service_manager=passed)
    with pytest.raises(ConfigError, match=rf"LISTEN_FDS: .* port {port}, and nothing is served on that port .*gateway\.port"):
        passed.require_all_taken("gateway.port")
    (used,) = machine.listen_often("127.0.0.1", port, 4)
    with used, socket.create_connection(used.getsockname()), listening.accept()[0]:
        passed.require_all_taken("gateway.port")
        assert used.getsockname()[1] == port
        with pytest.raises(OSError, match="in use"):  # It is used once.
            machine.listen("127.0.0.1", port)


@pytest.mark.parametrize("number", ["many", "-1"])
def test_a_number_of_sockets_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(ConfigError, match="is no number of sockets"):
        ServiceManager.of_process({**PASSED, "LISTEN_FDS": number}, 77)


def test_a_manager_that_is_gone_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager(str(tmp_path / "gone")).tell_ready()
    assert "was not told READY=1: no such file" in caplog.text


def test_an_abstract_name_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0maitred-test-notify-" + str(os.getpid()))
        ServiceManager(f"@maitred-test-notify-{os.getpid()}").tell_ready()
        assert heard.recv(100) == b"READY=1"


@pytest.mark.parametrize("kind", ["datagram", "client", "file"])
def test_what_is_no_listening_socket_is_refused(kind: str, tmp_path: Path) -> None:
    script = (
        "import os, socket, sys\n"
        "from maitred.core.errors import ConfigError\n"
        "from maitred.wire.service_manager import ServiceManager\n"
        "made = {'datagram': lambda: socket.socket(type=socket.SOCK_DGRAM), 'client': socket.socket,"
        " 'file': lambda: open(os.devnull)}[sys.argv[1]]()\n"
        "os.dup2(made.fileno(), 3)\n"
        "try:\n"
        "    ServiceManager.of_process({'LISTEN_PID': '1', 'LISTEN_FDS': '1'}, 1)\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script, kind], capture_output=True, text=True, check=True).stdout
    assert "LISTEN_FDS: descriptor 3 is no" in said
