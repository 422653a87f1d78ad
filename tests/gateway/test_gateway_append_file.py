"""Files that block: a pipe that nothing reads stands for a disk that hangs. Serving goes on, and what is lost is counted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from world import GatewayWorld, run, world

from maitred.core.errors import ConfigError
from maitred.gateway import append_file, background_writer
from maitred.gateway.append_file import AppendFile


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[], bytes]]:
    """Make a pipe `pipe` that is open and not read; the fixture reads what is in it now."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

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
    monkeypatch.setattr(append_file, "MAX_PENDING_BYTES", 50_000)
    monkeypatch.setattr(background_writer, "_CLOSE_SECS", 0.2)
    monkeypatch.setattr(background_writer, "FLUSH_SECS", 0.01)


async def metric(w: GatewayWorld, name: str) -> float:
    page = (await w.request("/metrics", b"", "GET"))[2].decode()
    return next(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


DROPPED_DECISIONS = 'maitred_dropped_lines_total{file="decision_log"}'
DROPPED_ROWS = 'maitred_dropped_lines_total{file="record"}'


def test_a_decision_log_that_blocks_ends_and_stops_nothing(
    tmp_path: Path, pipe: Callable[[], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with world(decision_log=str(tmp_path / "pipe")) as w:
            while not await metric(w, DROPPED_DECISIONS):
                assert (await w.request())[0] == 200
            assert w.state.decision_log_failed
            before = w.state.dropped_lines["decision_log"]
            assert (await w.request())[0] == 200
            assert w.state.dropped_lines["decision_log"] > before

    run(scenario())
    ended = [record.message for record in caplog.records if "no more" in record.message]
    assert ended == [f"decisions are recorded no more: {tmp_path}/pipe takes no more lines for now, and would have a gap"]


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

    run(scenario())
    messages = [record.message for record in caplog.records if "requests are" in record.message]
    assert messages[0] == f"requests are dropped: {tmp_path}/pipe takes no more lines for now"
    assert messages[1].startswith(f"requests are recorded again in {tmp_path}/pipe; ")


def test_a_pipe_that_nothing_reads_is_an_error_at_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"gateway\.record: cannot write .*pipe: nothing reads this pipe"):
        AppendFile(str(tmp_path / "pipe"), where="gateway.record", what="requests", ends_with_gap=False)


def test_what_a_disk_lost_is_counted() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")

    async def scenario() -> None:
        file = AppendFile("/dev/full", where="gateway.record", what="requests", ends_with_gap=False)
        file.start()
        file.write(b"a\n")
        file.write(b"b\n")
        while not file.failed:
            await asyncio.sleep(0.001)
        file.write(b"c\n")
        assert file.num_dropped == 3
        await file.close()

    run(scenario())
