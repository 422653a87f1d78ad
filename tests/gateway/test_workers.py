"""`maitred serve --workers 3` as processes: what a worker that is killed leaves, and what reaches all of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from world import ANSWER, CHAT, MACHINE, Backend, BackendRequest, ClientConnection, run, run_on_sockets, whole

from maitred.cli import main
from maitred.core.request import Request
from maitred.gateway import GatewayConfig
from maitred.gateway.access.page_access import Shown
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.observe.loop_lag import LoopLag
from maitred.gateway.observe.record_file import RecordFile
from maitred.gateway.observe.recording import RecordingRow
from maitred.gateway.observe.request_metrics import RequestMetrics
from maitred.gateway.observe.state import GatewayCounters
from maitred.gateway.workers import parent as parent_module
from maitred.gateway.workers import supervisor
from maitred.gateway.workers.notes import NoteKind, PageAnswer, PageQuestion
from maitred.gateway.workers.parent import ParentGateway
from maitred.gateway.workers.recorded import RecordOfWorkers, RecordRelay
from maitred.gateway.workers.settings import WorkerFolder
from maitred.gateway.workers.shares import LastShares, Totals
from maitred.gateway.workers.stand_in import StandIn
from maitred.gateway.workers.supervisor import Supervisor
from maitred.gateway.workers.worker import AskedPages
from maitred.scheduler.interface import Dialer, GatewayId, KnownAddresses, LinkAddress, LinkNote
from maitred.scheduler.sharing.link_client import LinkClient
from maitred.wire.exchange import Exchange
from maitred.wire.machine import Machine
from maitred.wire.server import App, Listener, OpenPort, running_server
from maitred.wire.server_context import ServerContext
from maitred.workload import open_trace
from maitred.workload.formats.maitred import Measured

SLOTS = 4
CONFIG = """
gateway:
  slots_per_backend: 4
  health_interval_secs: 0.1
  settle_secs: 0
  log_level: debug
admission:
  mode: priority
  default_max_class: system
  classes:
    interactive: {reserved_per_slot: 0}
    system: {reserved_per_slot: 0}
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

    async def request(
        self, path: str = CHAT, body: object = None, method: str = "POST", ports: list[int] | None = None
    ) -> tuple[int, bytes]:
        """`ports` gets the port of the client."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        if ports is not None:
            ports.append(writer.get_extra_info("sockname")[1])
        client = ClientConnection(reader, writer)
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


def peer_ports(process: int) -> set[int]:
    """Return the ports of the peers that a process has connections with."""
    inodes = set[str]()
    for each in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(each.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].rpartition(":")[2], 16) for row in rows if row[9] in inodes}


@contextlib.asynccontextmanager
async def served(engine: Engine, folder: Path, *flags: str, status: int = 0) -> AsyncIterator[Served]:
    """Run a gateway before an engine, which ends with `status`."""
    await engine.backend.start()
    (folder / "config.yaml").write_text(CONFIG)
    arguments = ("--config", str(folder / "config.yaml"), "--backend", engine.backend.url, "--workers", "3", *flags)
    try:
        async with started(folder, *arguments, status=status) as here:
            yield here
    finally:
        await engine.backend.stop()


@contextlib.asynccontextmanager
async def started(folder: Path, *flags: str, status: int = 0, env: Mapping[str, str] | None = None) -> AsyncIterator[Served]:
    """Run a gateway, which ends with `status`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "maitred", "serve", "--port", "0", *flags),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder), **(env or {})},
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
        assert await process.wait() == status, log
        await reading


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_a_worker_that_ends_under_load_loses_no_slot_over_admits_none_and_leaves_its_clients_to_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = Engine()
        async with served(engine, tmp_path) as w:
            statuses: list[int] = []
            broken_off: set[int] = set()
            stop = asyncio.Event()

            async def client() -> None:
                while not stop.is_set():
                    ports: list[int] = []
                    try:
                        statuses.append((await w.request(ports=ports))[0])
                    except (ConnectionError, asyncio.IncompleteReadError):
                        broken_off.update(ports)

            clients = [asyncio.create_task(client()) for _ in range(12)]
            while len(statuses) < 30:
                await asyncio.sleep(0.01)
            victim = w.workers()[0]
            os.kill(victim, signal.SIGSTOP)
            had = peer_ports(victim)
            os.kill(victim, signal.SIGKILL)
            await w.logged("is started anew")
            before = len(statuses)
            while len(statuses) < before + 60:
                await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*clients)
            assert engine.most <= SLOTS
            assert set(statuses) == {200}
            assert broken_off <= had  # No request is lost that the killed worker did not have.
            while (state := await w.page("/maitred/state"))["in_flight"]:
                await asyncio.sleep(0.01)
            assert (state["waiting"], state["capacity"], engine.now) == (0, SLOTS, 0)
            engine.open.clear()
            last = [asyncio.create_task(w.request()) for _ in range(12)]
            while engine.now < SLOTS:  # None of them was lost.
                await asyncio.sleep(0.01)
            os.kill(w.workers()[0], signal.SIGTERM)
            await w.logged("shutting down: requests in flight")
            async with asyncio.timeout(25):  # Less than its drain: the others accept what the system gives to its socket.
                assert {(await w.request("/liveness", b"", "GET"))[0] for _ in range(20)} == {200}
            engine.open.set()
            assert {status for status, _ in await asyncio.gather(*last)} == {200}
            assert engine.most == SLOTS

    run_on_sockets(scenario())


def test_pages_and_reloads_are_of_all_workers(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = Engine()
        files = ["--decision-log", str(tmp_path / "decisions"), "--record", str(tmp_path / "record.csv")]
        async with served(engine, tmp_path, *files, "--access-log") as w:
            for _ in range(12):
                assert (await w.request())[0] == 200
            for _ in range(6):  # Each may come to another worker.
                state = await w.page("/maitred/state")
                assert state["classes"]["default"]["completed"] == 12
                _, metrics = await w.request("/metrics", b"", "GET")
                assert b'maitred_http_responses_total{error_code="",status_code="200"} 12.0' in metrics
            for _ in range(3):
                live = await w.page("/maitred/live")
                assert live["state"]["classes"]["default"]["completed"] == 12
                assert live["backends"][engine.backend.url]["healthy"] is True
                assert b"<title>" in (await w.request("/maitred", b"", "GET"))[1]
            assert (await w.page("/ready"))["ready"] is True
            (tmp_path / "config.yaml").write_text(CONFIG + "    default:\n      queue_size: 7\n")
            w.process.send_signal(signal.SIGHUP)
            await w.logged("the configuration was reloaded")
            assert (await w.page("/maitred/state"))["classes"]["default"]["queue_size"] == 7
            (tmp_path / "config.yaml").write_text(CONFIG.replace("gateway:", "gateway:\n  max_body_bytes: 600000000"))
            w.process.send_signal(signal.SIGHUP)
            await w.logged("a share of 1/3 of max_parked_body_bytes")
            drained, _ = await w.request("/admin/drain", {"backend": engine.backend.url})
            assert drained == 200
            for _ in range(6):
                while (await w.request())[0] != 503:
                    await asyncio.sleep(0.01)
        admitted = [line for line in (tmp_path / "decisions").read_text().splitlines() if '"action":"admit"' in line]
        assert len(admitted) >= 12
        assert (tmp_path / "decisions").read_text().count('"note":{"asked":"default"') >= 12
        assert sum("/v1/chat/completions" in line for line in w.log) >= 12
        assert all(line.endswith("\n") for line in w.log)
        with open_trace(str(tmp_path / "record.csv")) as trace:
            recorded = list(trace)
        assert len(recorded) >= 12
        assert {job.request.client_id for job in recorded if job.output_tokens is not None}
        arrivals = [job.request.arrival for job in recorded]
        assert arrivals == sorted(arrivals)

    run_on_sockets(scenario())


def test_a_limit_that_cannot_be_shared_out_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record = tmp_path / "record.csv"
    flags = ["--max-body-bytes", "600000000", "--record", str(record)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["maitred", "serve", "--backend", "http://127.0.0.1:1", "--workers", "3", *flags])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert "a share of 1/3 of max_parked_body_bytes" in lines[-1]
    assert not record.exists()


@pytest.mark.parametrize(
    ("executable", "words"),
    [("/bin/false", "it has ended with status 1"), ("/nowhere/python", "it cannot be made: no such file or directory")],
)
def test_a_worker_that_cannot_start_ends_the_start_in_one_line(
    executable: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["maitred", "serve", "--port", "0", "--backend", "http://127.0.0.1:1", "--workers", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        patch.setattr(sys, "executable", executable)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code
    assert re.search(r"--workers: worker \d could not start: " + words, capsys.readouterr().err.splitlines()[-1])


def test_a_worker_that_hangs_at_the_start_ends_the_start_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    arguments = ["maitred", "serve", "--port", "0", "--backend", "http://127.0.0.1:1", "--workers", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        patch.setattr(sys, "executable", str(hanging))
        patch.setattr(supervisor, "START_SECS", 0.2)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code
    assert "--workers: worker 1 could not start: it does not serve after 0.2 s" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_workers_let_their_requests_end_and_their_port_go_when_their_parent_is_killed(tmp_path: Path) -> None:
    """Whatever starts it anew finds the port free, though a balancer would have had a while to look (`settle_secs`)."""

    async def scenario() -> None:
        engine = Engine()
        async with served(engine, tmp_path, "--shutdown-delay-secs", "600", status=-signal.SIGKILL) as w:
            engine.open.clear()
            request, workers = asyncio.create_task(w.request()), w.workers()
            while not engine.now:
                await asyncio.sleep(0.01)
            w.process.kill()
            async with asyncio.timeout(30):
                while not _is_free(w.url):
                    await asyncio.sleep(0.01)
            assert not request.done()
            engine.open.set()
            assert (await request)[0] == 200
            while any(map(_runs, workers)):
                await asyncio.sleep(0.01)
            assert [*tmp_path.glob("maitred-*")] == []  # the folder of the parent, which could not remove it

    run_on_sockets(scenario())


def _is_free(url: str) -> bool:
    """Return whether another process may listen where `url` is served."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError:
        return False
    return True


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_that_is_made_while_all_are_told_to_end_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        pid = 1

        def __init__(self) -> None:
            self.stderr = asyncio.StreamReader()
            self.signals: list[int] = []

        def send_signal(self, number: int) -> None:
            self.signals.append(number)
            self.stderr.feed_eof()

        async def wait(self) -> int:
            return 0

    class Parent(SimpleNamespace):
        machine = Machine()

        async def open(self, path: str, secret: bytes) -> None:
            pass

        async def close(self) -> None:
            pass

    async def scenario() -> None:
        process = Process()

        async def make(*arguments: str, **named: object) -> Process:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)  # in which the signal is taken
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", make)
        config = SimpleNamespace(drain_secs=60.0, settle_secs=0.0)
        parent = Parent(
            drain_switch=SimpleNamespace(),
            host=None,
            config=config,
            log_output=None,
            announce_end=lambda: None,
            request_reload=lambda: None,
            note_death=lambda name: None,
        )
        folder = WorkerFolder(tmp_path)
        folder.make_secret()
        async with asyncio.timeout(30):
            await Supervisor(cast(ParentGateway, parent), folder, [], 1).run(lambda: None)
        assert process.signals == [signal.SIGTERM]

    run_on_sockets(scenario())


class Told:
    """A worker that has only a link, and answers what the parent asks."""

    def __init__(self, path: str, secret: bytes, name: str) -> None:
        machine = Machine()
        self.notes: list[LinkNote] = []
        self.link = LinkClient(
            Dialer(KnownAddresses(LinkAddress(path, None))), name, secret, machine.clock, machine.random, self._on_event
        )
        self._counts = Totals(GatewayCounters(0), RequestMetrics(0), LoopLag(machine.clock).lags).share()
        self.link.start()

    def _on_event(self, event: object) -> None:
        if isinstance(event, LinkNote):
            self.notes.append(event)
            if event.kind == NoteKind.COUNTS:
                self.link.report(LinkNote(NoteKind.COUNTS, event.number, msgspec.msgpack.encode(self._counts)))

    async def heard(self, kind: NoteKind, number: int = 1) -> None:
        while sum(note.kind == kind for note in self.notes) < number:
            await asyncio.sleep(0.001)


def test_pages_share_what_workers_are_asked_and_a_reload_ends_when_they_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        config = GatewayConfig(backends=("http://127.0.0.1:1",))
        parent = ParentGateway(config, reload=lambda: GatewaySettings(gateway=config), write_settings=lambda settings: None)
        path, secret = str(tmp_path / "link"), b"secret"
        await parent.open(path, secret)
        worker = Told(path, secret, "worker 1")
        await worker.heard(NoteKind.RULES)
        question = msgspec.msgpack.encode(PageQuestion("GET", "/maitred/state", b"", "", Shown.ALL))
        for number in range(1, 31):
            worker.link.report(LinkNote(NoteKind.PAGE, number, question))
        async with asyncio.timeout(30):
            await worker.heard(NoteKind.PAGE, 30)
        answers = [msgspec.msgpack.decode(note.payload, type=PageAnswer) for note in worker.notes if note.kind == NoteKind.PAGE]
        assert {answer.status for answer in answers} == {200}
        assert sum(note.kind == NoteKind.COUNTS for note in worker.notes) <= 2
        assert not any(note.kind == NoteKind.RELOAD for note in worker.notes)
        reloading = asyncio.create_task(parent._reloader.reload())
        async with asyncio.timeout(30):
            await worker.heard(NoteKind.RELOAD)
            assert not reloading.done()
            worker.link.report(LinkNote(NoteKind.RELOAD, 1, b""))
            await reloading
            monkeypatch.setattr(parent_module, "_MOST_PAGE_BYTES", 100)
            worker.link.report(LinkNote(NoteKind.PAGE, 31, question))
            await worker.heard(NoteKind.PAGE, 31)
            note = next(note for note in worker.notes if note.kind == NoteKind.PAGE and note.number == 31)
            answer = msgspec.msgpack.decode(note.payload, type=PageAnswer)
            assert (answer.status, answer.code) == (500, "page_too_large")
            assert b"a gateway of several processes shows 100 at most" in answer.body
            late = Told(path, secret, "worker 2")
            await late.heard(NoteKind.RELOAD)
        await worker.link.close()
        await late.link.close()
        await parent.close()

    run_on_sockets(scenario())


def test_workers_are_told_which_of_them_serve(tmp_path: Path) -> None:
    def named(worker: Told) -> list[list[str]]:
        return [msgspec.msgpack.decode(note.payload) for note in worker.notes if note.kind == NoteKind.SERVING]

    async def scenario() -> None:
        parent = ParentGateway(GatewayConfig(backends=("http://127.0.0.1:1",)), write_settings=lambda settings: None)
        path, secret = str(tmp_path / "link"), b"secret"
        await parent.open(path, secret)
        first, second = Told(path, secret, "worker 1"), Told(path, secret, "worker 2")
        for worker in (first, second):
            await worker.heard(NoteKind.RULES)
            worker.link.report(LinkNote(NoteKind.READY, 0, b""))
        async with asyncio.timeout(30):
            await first.heard(NoteKind.SERVING, 2)
        assert ["worker 1", "worker 2"] in named(first)
        second.link.report(LinkNote(NoteKind.CLOSED, 0, b""))
        async with asyncio.timeout(30):
            await first.heard(NoteKind.SERVING, 3)
        assert named(first)[-1] == ["worker 1"]
        second.link.report(LinkNote(NoteKind.READY, 0, b""))
        await second.link.close()
        async with asyncio.timeout(30):
            await first.heard(NoteKind.SERVING, 5)
        assert named(first)[-2:] == [["worker 1", "worker 2"], ["worker 1"]]
        await first.link.close()
        await parent.close()

    run_on_sockets(scenario())


def test_a_worker_accepts_for_others_while_they_do_not_serve() -> None:
    async def scenario() -> None:
        machine = Machine()
        other = machine.listen("127.0.0.1", 0)
        port = other.getsockname()[1]
        stand_in: list[StandIn] = []

        class Pages(App):
            async def start(self, server: ServerContext) -> None:
                stand_in.append(StandIn({"worker 2": [OpenPort(other, Listener("127.0.0.1", 0, self))]}))
                stand_in[0].start(server)

            async def __call__(self, exchange: Exchange) -> None:
                exchange.start_response(200, [], b"here", False)

        async def ask() -> int:
            client = ClientConnection(*await asyncio.open_connection("127.0.0.1", port))
            await client.send_request("/", None, "GET")
            status = (await client.read_response())[0]
            client.writer.close()
            return status

        async with running_server(Pages()):
            waiting = asyncio.create_task(ask())
            stand_in[0].follow(["worker 1", "worker 2"])
            await asyncio.sleep(0)
            assert not waiting.done()
            stand_in[0].follow(["worker 1"])
            assert await waiting == 200
            stand_in[0].follow(["worker 1", "worker 2"])
            stand_in[0].follow(["worker 1"])
            assert await ask() == 200
        with pytest.raises(ConnectionRefusedError):  # Nobody has the socket any more, or clients would wait in its queue.
            await ask()

    run_on_sockets(scenario())


def test_a_process_of_which_the_link_breaks_is_counted_once() -> None:
    nothing = Totals(GatewayCounters(0), RequestMetrics(0), LoopLag(Machine().clock).lags).share()
    counters = GatewayCounters(0)
    shares = LastShares(Totals(counters, RequestMetrics(0), LoopLag(Machine().clock).lags))

    def tell(name: str, boot: str, retries: int) -> None:
        shares.note((name, boot), msgspec.structs.replace(nothing, retries=retries))

    tell("worker 1", "a", 5)
    tell("worker 2", "b", 3)
    shares.add_up()
    assert counters.retries == 8
    assert len(shares.gauges([("worker 2", "b")])) == 1  # The link of the other one has broken.
    tell("worker 1", "a", 6)
    shares.add_up()
    assert counters.retries == 9
    for number in range(20):  # processes of which each is in place of the one before
        tell("worker 1", f"a{number}", 1)
        assert counters.retries == 9 + number + 1
    shares.add_up()
    assert counters.retries == 29
    assert len(shares.gauges([("worker 1", "a19"), ("worker 1", "a"), ("worker 2", "b")])) == 2


def test_what_workers_read_is_restored(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path)
    folder.make_secret()
    secret = folder.secret()
    (tmp_path / "secret").unlink()
    folder.restore()
    assert folder.secret() == secret
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_scheduler_that_is_gone_is_told_of_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        said: list[str] = []
        machine = MACHINE.get() or Machine()
        link = LinkClient(
            Dialer(KnownAddresses(LinkAddress(str(tmp_path / "link"), None))),
            "worker 1",
            b"secret",
            machine.clock,
            machine.random,
            lambda event: None,
        )
        link.lost_for_good = said.append
        link.start()
        await asyncio.sleep(0.35)
        await link.close()
        assert len(said) == 1

    run(scenario())


def test_a_page_is_asked_for_again_when_the_link_has_broken() -> None:
    async def scenario() -> None:
        said: list[LinkNote] = []
        pages = AskedPages(said.append)
        asking = asyncio.create_task(pages.ask(PageQuestion("GET", "/metrics", b"", "", Shown.ALL)))
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


def test_a_row_that_is_lost_with_a_link_is_recorded_once_and_in_its_place(tmp_path: Path) -> None:
    def recorded(arrival: int, ended_at: int) -> RecordingRow:
        measured = Measured("usage", None, "", None, None, ended_at - arrival, "")
        request = Request(id=arrival, arrival=arrival, prompt_tokens=arrival)
        return RecordingRow(request, ended_at, arrival, 1, "completed", measured)

    async def scenario() -> None:
        file = RecordFile(str(tmp_path / "r.csv"), Machine().clock)
        file.start()
        relays = {("a", "1"): RecordRelay(), ("b", "1"): RecordRelay()}
        parent = RecordOfWorkers(file, lambda note, worker: relays[worker].on_taken(note.number))
        says = {worker: partial(says_to, parent, worker, [*relays]) for worker in relays}
        a, b = relays.values()
        a.take(recorded(2, 4), oldest=5)  # There is no link yet.
        b.send = says["b", "1"]
        b.take(recorded(3, 5), oldest=1)
        a.send = says["a", "1"]
        a.send_again()
        a.send_again()
        a.take(recorded(6, 7), oldest=8)
        b.take(recorded(1, 9), oldest=10)
        await file.close()

    def says_to(parent: RecordOfWorkers, worker: GatewayId, present: list[GatewayId], note: LinkNote) -> None:
        parent.on_note(worker, note.number, note.payload, present, now=9)

    asyncio.run(scenario())
    with open_trace(str(tmp_path / "r.csv")) as trace:
        assert [job.request.prompt_tokens for job in trace] == [1, 2, 3, 6]
