"""Paths that lead to something other than a file: each is one error, and nothing waits for ever."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from maitred import files
from maitred.config import ConfigSources
from maitred.core.errors import ConfigError
from maitred.files import InputFiles, open_input, open_output, read_file, read_input


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PEER_SECS", 0.05)
    monkeypatch.setattr(files, "STREAM_SECS", 0.2)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "it is a pipe, where a file is needed"),
    "a directory": (Path.mkdir, "Is a directory"),
    "a socket": (make_socket, "it is a socket, where a file is needed"),
    "/dev/zero": (lambda path: path.symlink_to("/dev/zero"), "it is a device, where a file is needed"),
    "a loop of links": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "a huge file": (make_huge, "it has more than 64 MiB"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_read_whole_is_a_regular_one(tmp_path: Path, kind: str) -> None:
    make, problem = KINDS[kind]
    make(tmp_path / "x")
    with pytest.raises(OSError, match=problem):
        read_file(tmp_path / "x")


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("a pipe", "nothing writes to this pipe"),
        ("a directory", "is a directory"),
        ("a socket", "it is a socket"),
        ("/dev/zero", "it has more than 1 MiB"),
        ("a huge file", "it has more than 1 MiB"),
    ],
)
def test_a_configuration_that_is_no_file_is_one_error(tmp_path: Path, kind: str, problem: str) -> None:
    KINDS[kind][0](tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match=rf"x\.yaml: cannot be read: {problem}"):
        ConfigSources(file=tmp_path / "x.yaml").load()


def test_a_device_without_content_is_an_empty_configuration() -> None:
    assert ConfigSources(file=Path("/dev/null")).load() == ConfigSources().load()


def test_a_stream_is_read_once_and_kept(tmp_path: Path) -> None:
    """As in `--config <(...)`: the sources are read several times before a gateway starts, and again by a reload."""
    end, feed = os.pipe()
    os.write(feed, b"gateway: {port: 9000}\n")
    os.close(feed)
    sources = ConfigSources(file=Path(f"/dev/fd/{end}"))
    assert not sources.problems()
    assert [sources.load().gateway.port for _ in range(2)] == [9000, 9000]
    os.close(end)
    assert sources.load().gateway.port == 9000


def test_a_stream_that_does_not_end_is_an_error(tmp_path: Path) -> None:
    end, feed = os.pipe()
    os.write(feed, b"gateway: {}\n")
    with pytest.raises(OSError, match=r"its end did not come within 0\.2 s"):
        read_input(Path(f"/dev/fd/{end}"))
    os.close(end)
    os.close(feed)


def test_a_file_that_has_become_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path, read = tmp_path / "x.yaml", InputFiles()
    path.write_text("a: 1")
    assert read.read(path) == b"a: 1"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="it is a pipe, where a file is needed"):
        read.read(path)
    path.unlink()
    path.write_text("a: 2")
    assert read.read(path) == b"a: 2"


def test_a_pipe_that_something_writes_is_an_input(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    feeder = threading.Thread(target=path.write_bytes, args=(b"x" * 100_000,))
    feeder.start()
    with open_input(path) as file:
        assert file.read() == b"x" * 100_000
    feeder.join()
    with pytest.raises(OSError, match="nothing writes to this pipe"):
        open_input(path)


def test_a_device_that_never_ends_is_no_input() -> None:
    with pytest.raises(OSError, match="it is a device, where a file is needed"):
        open_input(Path("/dev/zero"))
    with open_input(Path("/dev/null")) as file:
        assert file.read() == b""


def test_a_pipe_that_nothing_reads_is_no_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nothing reads this pipe"):
        open_output(tmp_path / "pipe", os.O_WRONLY)
    make_socket(tmp_path / "socket")
    with pytest.raises(OSError, match="it is a socket"):
        open_output(tmp_path / "socket", os.O_WRONLY)
