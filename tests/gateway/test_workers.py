"""`maitred serve --workers 3` as processes: what a worker that is killed leaves, and what reaches all of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from world import ANSWER, CHAT, Backend, BackendRequest, ClientConnection, run_on_sockets, whole

from maitred.cli import main
from maitred.gateway.workers.notes import PageAnswer, PageQuestion
from maitred.gateway.workers.worker import AskedPages
from maitred.scheduler.interface import LinkNote

SLOTS = 4
CONFIG = """
gateway:
  slots_per_backend: 4
  health_interval_secs: 0.1
  shutdown_delay_secs: 0
  log_level: debug
admission:
  mode: priority
  default_max_class: system
"""


class Engine:
    """Serves each request for 20 ms after `open` is set, or until its connection is closed, and says how many it has."""

    def __init__(self) -> None:
        self.backend = Backend(self)
        self.open = asyncio.Event()
        self.open.set()
        self.now = self.most = 0
        self._show()

    async def __call__(self, received: BackendRequest) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self._show()
        gone = asyncio.create_task(received.wait_until_disconnected())
        opened = asyncio.create_task(self.open.wait())
        await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({gone}, timeout=0.02)
        opened.cancel()
        self.now -= 1
        self._show()
        if gone.done():
            raise ConnectionError
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        await received.send(whole(ANSWER))

    def _show(self) -> None:
        page = f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {self.now}\nvllm:num_requests_waiting 0\n"
        self.backend.metrics = page.encode()


class Served:
    """The processes of a gateway."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: list[str]) -> None:
        self.process, self.url, self.log = process, url, log

    async def request(self, path: str = CHAT, body: object = None, method: str = "POST") -> tuple[int, bytes]:
        host, port = self.url.removeprefix("http://").split(":")
        client = ClientConnection(*await asyncio.open_connection(host, int(port)))
        try:
            await client.send_request(path, body, method)
            status, _, answer = await client.read_response()
        finally:
            client.disconnect()
        return status, answer

    async def page(self, path: str) -> Any:
        status, body = await self.request(path, b"", "GET")
        assert status == 200, body
        return msgspec.json.decode(body)

    def workers(self) -> list[int]:
        """Return the numbers of the processes of the workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(each) for each in children.split()]

    async def logged(self, words: str) -> None:
        while not any(words in line for line in self.log):
            await asyncio.sleep(0.01)  # the log has no event


@contextlib.asynccontextmanager
async def served(engine: Engine, folder: Path, *flags: str) -> AsyncIterator[Served]:
    await engine.backend.start()
    (folder / "config.yaml").write_text(CONFIG)
    arguments = ("--config", str(folder / "config.yaml"), "--backend", engine.backend.url, "--workers", "3", *flags)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "maitred", "serve", "--port", "0", *arguments), stderr=asyncio.subprocess.PIPE
    )
    log: list[str] = []

    async def read_log() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            log.append(line.decode())

    reading = asyncio.create_task(read_log())
    try:
        while not (urls := re.findall(r"gateway on (http://[0-9.:]+)", "".join(log))):
            assert process.returncode is None, log
            await asyncio.sleep(0.01)
        yield Served(process, urls[0], log)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0, log
        await reading
        await engine.backend.stop()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_a_worker_that_is_killed_under_load_loses_no_slot_and_over_admits_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = Engine()
        async with served(engine, tmp_path) as w:
            statuses: list[int] = []
            stop = asyncio.Event()

            async def client() -> None:
                while not stop.is_set():
                    try:
                        statuses.append((await w.request())[0])
                    except (ConnectionError, asyncio.IncompleteReadError):
                        statuses.append(0)  # the killed worker had it

            clients = [asyncio.create_task(client()) for _ in range(12)]
            while len(statuses) < 30:
                await asyncio.sleep(0.01)
            victim = w.workers()[0]
            os.kill(victim, signal.SIGKILL)
            await w.logged("is started anew")
            before = len(statuses)
            while len(statuses) < before + 60:
                await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*clients)
            assert engine.most <= SLOTS
            assert statuses.count(0) <= 12
            assert set(statuses) <= {0, 200}
            while (state := await w.page("/maitred/state"))["in_flight"]:
                await asyncio.sleep(0.01)
            assert (state["waiting"], state["capacity"], engine.now) == (0, SLOTS, 0)
            engine.open.clear()
            last = [asyncio.create_task(w.request()) for _ in range(12)]
            while engine.now < SLOTS:  # None of them was lost.
                await asyncio.sleep(0.01)
            engine.open.set()
            assert {status for status, _ in await asyncio.gather(*last)} == {200}
            assert engine.most == SLOTS

    run_on_sockets(scenario())


def test_pages_and_reloads_are_of_all_workers(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = Engine()
        async with served(engine, tmp_path, "--decision-log", str(tmp_path / "decisions"), "--access-log") as w:
            for _ in range(12):
                assert (await w.request())[0] == 200
            for _ in range(6):  # Each may come to another worker.
                state = await w.page("/maitred/state")
                assert state["classes"]["default"]["completed"] == 12
                _, metrics = await w.request("/metrics", b"", "GET")
                assert b'maitred_http_responses_total{error_code="",status_code="200"} 12.0' in metrics
            assert (await w.page("/ready"))["ready"] is True
            (tmp_path / "config.yaml").write_text(CONFIG + "  classes:\n    default:\n      queue_size: 7\n")
            w.process.send_signal(signal.SIGHUP)
            await w.logged("the configuration was reloaded")
            assert (await w.page("/maitred/state"))["classes"]["default"]["queue_size"] == 7
            drained, _ = await w.request("/admin/drain", {"backend": engine.backend.url})
            assert drained == 200
            for _ in range(6):
                while (await w.request())[0] != 503:
                    await asyncio.sleep(0.01)
        admitted = [line for line in (tmp_path / "decisions").read_text().splitlines() if '"action":"admit"' in line]
        assert len(admitted) >= 12
        assert sum("/v1/chat/completions" in line for line in w.log) >= 12
        assert all(line.endswith("\n") for line in w.log)

    run_on_sockets(scenario())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--router", "tr"], "agent programs are not shared by several processes"),
        (["--routing-policy", "cache-aware"], "cache-aware goes by what prompts say"),
        (["--record", "FILE"], "traffic is not recorded by several workers"),
        (["--admission", "flow-control"], "flow control is not shared"),
        (["--max-body-bytes", "600000000"], "a share of 1/3 of max_parked_body_bytes"),
    ],
)
def test_what_several_workers_cannot_do_is_refused_in_one_line(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = str(tmp_path / "record.csv")
    given = [record if each == "FILE" else each for each in flags]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["maitred", "serve", "--backend", "http://127.0.0.1:1", "--workers", "3", *given])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert words in lines[-1]
    assert not Path(record).exists()


def test_a_worker_that_cannot_start_ends_the_start_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["maitred", "serve", "--port", "0", "--backend", "http://127.0.0.1:1", "--workers", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code
    assert re.search(
        r"--workers: worker \d could not start: it has ended with status 1", capsys.readouterr().err.splitlines()[-1]
    )


def test_a_page_is_asked_for_again_when_the_link_has_broken() -> None:
    async def scenario() -> None:
        said: list[LinkNote] = []
        pages = AskedPages(said.append)
        asking = asyncio.create_task(pages.ask(PageQuestion("GET", "/metrics", b"", "", "ALL")))
        while not said:
            await asyncio.sleep(0)
        pages.ask_again()
        assert said[0] == said[1]
        answer = PageAnswer(200, [], b"page", "")
        for _ in range(2):  # Both questions are answered.
            pages.on_answer(LinkNote("page", said[0].number, msgspec.msgpack.encode(answer)))
        assert await asking == answer
        pages.ask_again()
        assert len(said) == 2

    run_on_sockets(scenario())
