"""Files that block: a pipe that nothing reads stands for a disk that hangs. Serving goes on, and what is lost is counted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from world import GatewayWorld, run_on_sockets, world

from maitred import files
from maitred.core.decisions import DecisionLog, encode_gap
from maitred.core.errors import ConfigError
from maitred.files import append_file, background_writer, line_file
from maitred.files.append_file import AppendFile
from maitred.files.line_file import LineFile
from maitred.replay import replay
from maitred.testing.world.invariants import check_replay


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[], bytes]]:
    """Make a pipe `pipe` that is open and not read; the fixture reads what is in it now."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)  # soon full

    def read() -> bytes:
        found = b""
        while True:
            try:
                found += (piece := os.read(reader, 65_536))
            except BlockingIOError:
                return found
            if not piece:
                return found

    yield read
    os.close(reader)


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_file, "MAX_PENDING_BYTES", 20_000)
    monkeypatch.setattr(background_writer, "_CLOSE_SECS", 0.2)
    monkeypatch.setattr(background_writer, "FLUSH_SECS", 0.01)


async def metric(w: GatewayWorld, name: str) -> float:
    page = (await w.request("/metrics", b"", "GET"))[2].decode()
    return next(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


DROPPED_DECISIONS = 'maitred_dropped_lines_total{file="decision_log"}'
DROPPED_ROWS = 'maitred_dropped_lines_total{file="record"}'


def test_a_decision_log_that_blocks_says_what_it_lacks_and_goes_on(tmp_path: Path, pipe: Callable[[], bytes]) -> None:
    async def scenario() -> bytes:
        async with world(decision_log=str(tmp_path / "pipe")) as w:
            while not await metric(w, DROPPED_DECISIONS):
                assert (await w.request())[0] == 200
            assert w.state.decision_log_failed
            log = b""
            while b'"gap"' not in log or w.state.decision_log_failed:
                log += pipe()
                await asyncio.sleep(0.01)
            num_lost = w.state.dropped_lines["decision_log"]
            assert (await w.request())[0] == 200
            assert w.state.dropped_lines["decision_log"] == num_lost
            while not log.endswith(b"\n") or not log.partition(b'"gap"')[2].count(b'"submit"'):
                log += pipe()
                await asyncio.sleep(0.01)
            assert b'\n{"room":"log","gap":%d}\n' % num_lost in log
            return log

    lines = run_on_sockets(scenario()).splitlines()
    assert all(msgspec.json.decode(line)["room"] for line in lines)
    with pytest.raises(ValueError, match="lines are missing here"):
        replay(lines, DecisionLog(lambda line: None))


def test_a_recording_that_blocks_drops_rows_and_goes_on_when_it_can(
    tmp_path: Path, pipe: Callable[[], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with world(record=str(tmp_path / "pipe"), trust_tenant_header=True) as w:
            num_sent, rows = 0, b""

            async def send(tenant: str) -> None:
                nonlocal num_sent
                assert (await w.request(x_smg_tenant_id=tenant))[0] == 200
                num_sent += 1

            while not await metric(w, DROPPED_ROWS):
                await send("a" * 100)
            # The pipe has room again, but rows are dropped until the thread has taken the lines that wait.
            while b"header:later" not in rows:
                await send("later")
                rows += pipe()
                await asyncio.sleep(0.01)
            # Every request is a row or was counted as dropped.
            while rows.count(b"\n") - 1 + w.state.dropped_lines["record"] < num_sent:
                rows += pipe()
                await asyncio.sleep(0.01)
            assert rows.startswith(b"arrival_secs,")
            assert rows.count(b"\n") - 1 + w.state.dropped_lines["record"] == num_sent

    run_on_sockets(scenario())
    messages = [record.message for record in caplog.records if record.message.startswith("requests in")]
    assert messages[0].startswith(f"requests in {tmp_path}/pipe are lost from now on: ")
    assert messages[1].startswith(f"requests in {tmp_path}/pipe are written again; lost: ")


def test_a_pipe_that_nothing_reads_is_an_error_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PEER_SECS", 0.01)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"gateway\.record: cannot write .*pipe: nothing reads this pipe"):
        LineFile(tmp_path / "pipe", where="gateway.record")


class Disk:
    """A disk with room for `room` bytes; a write beyond writes what there is room for, as `write` does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self.num_written = 0
        """Bytes that were written and taken off `room`: only then may a test set it."""
        self.num_failures = 0
        self._write = os.write
        monkeypatch.setattr(line_file.os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if not self.room:
            self.num_failures += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(descriptor, data[: self.room])
        self.room -= written
        self.num_written += written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@contextlib.asynccontextmanager
async def appending(path: Path, **more: Any) -> AsyncIterator[AppendFile]:
    file = AppendFile(LineFile(path, where="gateway.record", header=b"head\n"), "requests", gap_line=encode_gap, **more)
    file.start()
    yield file
    await file.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_full_disk_loses_nothing_while_lines_can_wait(tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with appending(path := tmp_path / "log") as file:
            await until(lambda: disk.num_written == len(b"head\n"))
            disk.room = 8
            for number in range(5):
                file.write(b"line %d\n" % number)
            await until(lambda: disk.num_failures > 3)
            assert file.failed
            assert path.read_bytes() == b"head\nline 0\n"  # whole lines, although there was room for another byte
            disk.room = 1 << 20
            await until(lambda: not file.failed)
            assert file.num_dropped == 0

    run_on_sockets(scenario())
    assert (tmp_path / "log").read_bytes() == b"head\n" + b"".join(b"line %d\n" % number for number in range(5))
    messages = [record.message for record in caplog.records]
    name = f"requests in {tmp_path}/log"
    assert messages == [f"{name} cannot be written: No space left on device", f"{name} can be written again"]


def test_a_disk_that_stays_full_loses_lines_and_says_how_many(tmp_path: Path, disk: Disk) -> None:
    async def scenario() -> int:
        async with appending(tmp_path / "log") as file:
            await until(lambda: disk.num_written == len(b"head\n"))
            disk.room, number = 0, 0
            while file.num_dropped < 100:
                file.write(b"%09d\n" % number)
                number += 1
                if not number % 500:
                    await asyncio.sleep(0.001)
            disk.room = 1 << 30
            await until(lambda: not file.failed)
            file.write(b"later\n")
            return file.num_dropped

    num_lost = run_on_sockets(scenario())
    lines = (tmp_path / "log").read_bytes().splitlines()
    gap = lines.index(b'{"room":"log","gap":%d}' % num_lost)
    assert lines[1:gap] == [b"%09d" % number for number in range(gap - 1)]
    assert lines[gap + 1 :] == [b"later"]


def test_a_file_that_was_moved_goes_on_under_its_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "log"
        async with appending(path) as file:
            file.write(b"first\n")
            await until(lambda: path.read_bytes().endswith(b"first\n"))
            path.rename(tmp_path / "log.1")
            file.reopen()
            await until(path.exists)  # although nothing was written since
            file.write(b"second\n")
        assert path.read_bytes() == b"head\nsecond\n"
        assert (tmp_path / "log.1").read_bytes() == b"head\nfirst\n"

    run_on_sockets(scenario())


def test_a_file_that_cannot_be_opened_anew_goes_on_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        (tmp_path / "folder").mkdir()
        async with appending(path := tmp_path / "folder" / "log") as file:
            await until(lambda: path.stat().st_size > 0)
            (tmp_path / "folder").rename(tmp_path / "moved")
            file.reopen()
            file.write(b"second\n")
            await until(lambda: (tmp_path / "moved" / "log").read_bytes() == b"head\nsecond\n")

    run_on_sockets(scenario())
    assert "go on in the file that is open: cannot write" in caplog.text


def test_copytruncate_leaves_a_file_with_its_header(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with appending(path := tmp_path / "log") as file:
            file.write(b"first\n")
            await until(lambda: path.read_bytes().endswith(b"first\n"))
            os.truncate(path, 0)
            file.write(b"second\n")
        assert path.read_bytes() == b"head\nsecond\n"

    run_on_sockets(scenario())


def test_half_a_line_of_a_killed_process_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"head\nwhole\nhal")
    with contextlib.closing(LineFile(path, where="gateway.record", header=b"head\n")) as file:
        assert path.read_bytes() == b"head\nwhole\nhal"  # A start that fails changes no file.
        file.append(b"next\n")
    assert path.read_bytes() == b"head\nwhole\nnext\n"
    assert "ended in half a line, which is removed: 3 bytes" in caplog.text
    path.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="holds something else"):
        LineFile(path, where="gateway.record", header=b"head\n")
    LineFile(path, where="gateway.decision_log", begins=(b"{",)).close()
    assert path.read_bytes() == b"something else"


def test_half_of_the_first_line_of_a_killed_process_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for kind, whole in (({"header": b"head\n"}, b"head\nnext\n"), ({"begins": (b'{"room"', b'{"input"')}, b"next\n")):
        path.write_bytes(next(iter(kind.values()))[0][:3] if "begins" in kind else b"hea")
        with contextlib.closing(LineFile(path, where="x", **kind)) as file:
            file.append(b"next\n")
        assert path.read_bytes() == whole


def test_standard_error_that_is_a_file_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as standard:  # as `2> FILE`, without O_APPEND
        file = LineFile.of_standard(standard.fileno(), "x")
        file.append(b"first\n")
        os.truncate(path, 0)
        file.append(b"second\n")
        assert path.read_bytes() == b"second\n"
        path.rename(tmp_path / "log.1")
        file.reopen()
        file.append(b"third\n")
        os.write(standard.fileno(), b"traceback\n")
        file.close()
    assert path.read_bytes() == b"third\ntraceback\n"


def test_sighup_opens_every_file_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        record, decisions = tmp_path / "record.csv", tmp_path / "decisions.jsonl"
        async with world(record=str(record), decision_log=str(decisions)) as w:
            assert (await w.request())[0] == 200
            await until(lambda: record.read_bytes().count(b"\n") == 2 and decisions.stat().st_size > 0)
            for path in (record, decisions):
                path.rename(f"{path}.1")
            w.gateway.request_reload()
            assert (await w.request())[0] == 200
            await until(lambda: record.exists() and record.read_bytes().count(b"\n") == 2 and decisions.exists())
        lines = Path(f"{decisions}.1").read_bytes() + decisions.read_bytes()
        assert list(check_replay(lines.splitlines(keepends=True), may_lack_lines=False)) == []

    run_on_sockets(scenario())
