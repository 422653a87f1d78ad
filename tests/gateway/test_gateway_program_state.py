"""Programs are known to the next run of a gateway: after a stop, after a kill, with other backends, and with broken files."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_gateway_programs import body, program, small
from world import Backend, GatedAnswer, GatewayWorld, run, run_on_sockets, world

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.files import background_writer
from maitred.files.background_writer import BackgroundWriter, BatchSource
from maitred.programs import ProgramKey, ProgramPhase
from maitred.scheduler.programs.store import ProgramStore, StateChanges, StoredProgram
from ports import free_ports

SRC = Path(__file__).parents[2] / "src"


def keeping(path: Path, **section: object) -> dict[str, object]:
    return {"backend_capacity_tokens": 10_000, "state": str(path), **section}


def rows(path: Path) -> dict[str, tuple[str, int, int]]:
    """Return backend, tokens and steps of the programs in a file."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name, backend, tokens, step_count FROM programs").fetchall()
    return {name: tuple(fields) for name, *fields in found}


def where(w: GatewayWorld) -> dict[str, tuple[str, int | None, int, int]]:
    assert w.gateway.programs is not None
    core = w.gateway.programs.core
    return {p.key.name: (p.state.value, p.backend, p.tokens, p.num_requests) for p in core.programs}


def test_programs_come_back_where_they_were(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "new" / "programs.sqlite"
        first, second = Backend(small), Backend(small)
        async with world(first, second, programs=keeping(path)) as w:
            for name in ("a", "b", "c", "a", "gone"):
                assert (await w.request(body=body(name, 1000)))[0] == 200
            await w.request(body=body("child", 1000, parent_program_id="a"), x_smg_priority="bulk")
            assert w.gateway.programs is not None
            w.gateway.programs.release("ip:127.0.0.1", "gone")
            before = where(w)
            tools = program(w, "a").tools
        assert rows(path)["a"] == (first.url, 1000, 2)
        assert set(rows(path)) == {"a", "b", "c", "child"}
        async with world(first, second, programs=keeping(path)) as w:
            assert where(w) == before
            assert w.gateway.programs is not None
            assert {p.phase for p in w.gateway.programs.core.programs} == {ProgramPhase.ACTING}
            assert program(w, "a").tools.mean == tools.mean > 0
            assert program(w, "child").parent is program(w, "a")
            assert program(w, "child").priority_class is PriorityClass.BULK
            assert program(w, "a").characters == 5000
            await w.request(body=body("b", 1000))
            assert where(w)["b"] == ("active", 1, 1000, 2)

    run(scenario())


def test_a_program_of_a_backend_that_is_gone_or_down_is_paused_and_goes_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "programs.sqlite"
        first, second = Backend(small), Backend(small)
        async with world(first, second, programs=keeping(path)) as w:
            await w.request(body=body("a", 1000))
            await w.request(body=body("b", 1000))
        async with world(second, programs=keeping(path, flavour="thunderagent", scheduler_interval_secs=3600)) as w:
            assert where(w) == {"a": ("paused", None, 1000, 1), "b": ("active", 0, 1000, 1)}
        second.status = b"503 Service Unavailable"
        async with world(first, second, programs=keeping(path), ready=False) as w:
            await w.wait_until(lambda: w.gateway.programs and w.gateway.programs.restored.is_set())
            await w.wait_until(lambda: w.state.backends[0].healthy)
            for name in ("a", "b"):
                assert (await w.request(body=body(name, 1000)))[0] == 200
                assert where(w)[name][:2] == ("active", 0)

    run(scenario())


def test_ranks_come_back_as_well(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "programs.sqlite"
        engine = Backend(small)
        config = 'vllm:cache_config_info{engine="%d",block_size="1",num_gpu_blocks="1500"} 1\n'
        engine.metrics = "".join(config % rank for rank in (0, 1)).encode()
        section = keeping(path, backend_capacity_tokens=None)
        async with world(engine, programs=section) as w:
            await w.request(body=body("a", 1000))
            await w.request(body=body("b", 1000))
            before = where(w)
        assert {state[1] for state in before.values()} == {0, 1}
        async with world(engine, programs=section) as w:
            assert where(w) == before

    run(scenario())


def test_expired_programs_do_not_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "programs.sqlite"
        backend = Backend(small)
        async with world(backend, programs=keeping(path)) as w:
            await w.request(body=body("old", 1000))
        await asyncio.sleep(0.06)  # longer than `program_ttl_secs`, by the wall clock, while no gateway runs
        async with world(backend, programs=keeping(path, program_ttl_secs=0.05)) as w:
            assert where(w) == {}
        assert rows(path) == {}

    run(scenario())


def test_no_request_goes_before_every_backend_was_polled(tmp_path: Path) -> None:
    """Else a program could be placed as if it were new, while its KV is at a backend that is not known yet."""

    class Slow(Backend):
        gate = asyncio.Event()

        async def _answer(self, received: Any) -> None:
            if received.head.startswith(b"GET /health"):
                await self.gate.wait()
            await super()._answer(received)

    async def scenario() -> None:
        path = tmp_path / "programs.sqlite"
        fast, slow = Backend(small), Slow(small)
        slow.gate = asyncio.Event()
        slow.gate.set()
        async with world(fast, slow, programs=keeping(path)) as w:
            await w.request(body=body("a", 1000))
            await w.request(body=body("b", 1000))
            assert where(w)["b"][1] == 1
        slow.gate.clear()
        async with world(fast, slow, programs=keeping(path), ready=False) as w:
            await w.wait_until(lambda: w.state.backends[0].healthy)
            client = await w.start_request(body("b", 1000))
            await w.wait_for_polls(fast, 3)
            assert (len(fast.received), where(w)) == (1, {})
            slow.gate.set()
            assert (await client.read_response())[0] == 200
            assert (len(fast.received), len(slow.received)) == (1, 2)

    run(scenario())


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        for state in (None, "none"):
            async with world(Backend(small), programs={"state": state}) as w:
                await w.request(body=body("a"))
                assert "maitred_programs_state_failed" not in (await w.request("/metrics", method="GET"))[2].decode()
        assert list(tmp_path.iterdir()) == []

    run(scenario())


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be read as one" * 10, b""])
def test_a_file_that_is_no_database_is_moved_aside(tmp_path: Path, content: bytes, caplog: Any) -> None:
    path = tmp_path / "programs.sqlite"
    path.write_bytes(content)

    async def scenario() -> None:
        async with world(Backend(small), programs=keeping(path)) as w:
            await w.request(body=body("a", 1000))

    run(scenario())
    assert set(rows(path)) == {"a"}
    assert ((tmp_path / "programs.sqlite.unreadable").exists(), "cannot be read" in caplog.text) == (bool(content),) * 2


def test_the_database_of_another_program_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.execute("INSERT INTO theirs VALUES (1)")
    ProgramStore(str(path)).close()
    with closing(sqlite3.connect(tmp_path / "other.sqlite.unreadable")) as connection:
        assert connection.execute("SELECT x FROM theirs").fetchall() == [(1,)]


def test_a_file_that_cannot_be_made_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "programs.sqlite", tmp_path):
        with pytest.raises(ConfigError, match=r"programs\.state: cannot keep programs"):
            ProgramStore(str(path))


def stored(name: str, **fields: Any) -> StoredProgram:
    usual: dict[str, Any] = {
        "tenant": "t", "name": name, "model": "m", "priority_class": PriorityClass.DEFAULT, "parent": "", "backend": "",
        "rank": 0, "tokens": 1, "characters": 5, "inherited_tokens": 0, "step_count": 1, "tool_count": 0, "tool_mean": 0.0,
        "created_at": 1, "last_active": 1,
    }  # fmt: skip
    return StoredProgram(**{**usual, **fields})


def key(name: str) -> ProgramKey:
    return ProgramKey("t", name, "m")


def test_rows_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "programs.sqlite")
    store = ProgramStore(path)
    wrong: list[dict[str, Any]] = [
        {"tokens": -1},
        {"tokens": "many"},
        {"priority_class": 9},
        {"backend": None},
        {"tool_mean": "x"},
    ]
    changes = {key(f"wrong{number}"): stored(f"wrong{number}", **fields) for number, fields in enumerate(wrong)}
    store.write(StateChanges({**changes, key("b"): stored("b", created_at=2), key("a"): stored("a", created_at=3)}))
    store.write(StateChanges({key("b"): stored("b", created_at=2, tokens=7)}))
    store.close()
    with closing(ProgramStore(path)) as again:
        assert again.found == [stored("b", created_at=2, tokens=7), stored("a", created_at=3)]


def test_a_file_belongs_to_one_gateway_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "programs.sqlite")
    taken = pytest.raises(ConfigError, match=r"another gateway keeps its programs in .*programs\.sqlite \(give each gateway")
    with closing(ProgramStore(path)), taken:
        ProgramStore(path)
    ProgramStore(path).close()


def test_a_disk_that_fails_is_logged_once_and_written_when_it_works_again(tmp_path: Path, caplog: Any) -> None:
    async def scenario() -> None:
        path = tmp_path / "programs.sqlite"
        async with world(Backend(small), programs=keeping(path)) as w:
            parts = w.gateway.scheduler.program_parts
            assert parts is not None
            assert parts.keeper is not None
            keeper = parts.keeper
            write, attempts = keeper._store.write, []

            def fail(changes: Any) -> None:
                attempts.append(changes)
                raise sqlite3.OperationalError("database or disk is full")

            keeper._store.write = fail  # type: ignore[method-assign]
            await w.request(body=body("a", 1000))
            await w.wait_until(lambda: len(attempts) >= 2)
            assert keeper.failed
            assert "maitred_programs_state_failed 1.0" in (await w.request("/metrics", method="GET"))[2].decode()
            assert (await w.request(body=body("b", 1000)))[0] == 200
            keeper._store.write = write  # type: ignore[method-assign]
            await w.wait_until(lambda: not keeper.failed)
        assert set(rows(path)) == {"a", "b"}

    with caplog.at_level(logging.WARNING, "maitred.gateway"):
        run(scenario())
    assert [r.message for r in caplog.records if "state of programs" in r.message] == [
        "the state of programs cannot be written: database or disk is full",
        "the state of programs can be written again",
    ]


def test_a_disk_that_hangs_holds_up_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_writer, "_CLOSE_SECS", 0.1)
    hang, hangs = threading.Event(), threading.Event()

    async def scenario() -> None:
        async with world(Backend(small), programs=keeping(tmp_path / "p.sqlite", backend_capacity_tokens=10**6)) as w:
            parts = w.gateway.scheduler.program_parts
            assert parts is not None
            assert parts.keeper is not None

            def write(_changes: object) -> None:
                hangs.set()
                hang.wait()

            parts.keeper._store.write = write  # type: ignore[method-assign]
            for number in range(50):
                assert (await w.request(body=body(f"p{number}", 100)))[0] == 200
            await w.wait_until(hangs.is_set)
            for number in range(50):
                assert (await w.request(body=body(f"p{number}", 100)))[0] == 200

    run_on_sockets(scenario())
    hang.set()


def test_the_thread_has_one_batch_at_a_time() -> None:
    class Source(BatchSource[list[int]]):
        def __init__(self) -> None:
            self.pending: list[int] = []
            self.written: list[list[int]] = []

        def take_batch(self) -> list[int] | None:
            batch, self.pending = self.pending[:2], self.pending[2:]
            return batch or None

        def write_batch(self, batch: list[int]) -> None:
            self.written.append(batch)

        def give_back(self, batch: list[int]) -> None:
            raise AssertionError

    async def scenario() -> None:
        source = Source()
        writer = BackgroundWriter(source, "numbers")
        source.pending = [1]
        writer.start()
        source.pending = [2, 3, 4]
        await writer.close()
        assert source.written == [[1], [2, 3], [4]]
        await BackgroundWriter(source, "never started").close()

    run(scenario())


async def serve(port: int, state: Path, *backends: Backend) -> asyncio.subprocess.Process:
    """Start `maitred serve` as a process, and return it when it is ready."""
    urls = ",".join(backend.url for backend in backends)
    arguments = ("serve", "--backends", urls, "--router", "tr", "--port", str(port), "--state", str(state))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "maitred", *arguments, "--backend-capacity-tokens", "100000"),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SRC), "MAITRED_GATEWAY__HEALTH_INTERVAL_SECS": "0.05"},
    )
    assert process.stderr is not None
    while b"gateway on" not in (line := await process.stderr.readline()):
        assert line, "the gateway has ended"
    return process


class Client:
    """Sends requests to a gateway, again after each that fails, as a client of an agent does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.num_failed = 0

    async def ask(self, path: str, data: bytes = b"", method: str = "POST") -> Any:
        while True:
            try:
                return await self._ask_once(path, data, method)
            except (ConnectionError, asyncio.IncompleteReadError):
                self.num_failed += 1
                await asyncio.sleep(0.02)  # as a client does before it tries again

    async def _ask_once(self, path: str, data: bytes, method: str) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            answer = msgspec.json.decode(await reader.readexactly(length))
        finally:
            writer.close()
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(answer)
        return answer


def drains(path: Path) -> list[str]:
    """Return the drained backends in a file."""
    with closing(sqlite3.connect(path)) as connection:
        return [url for (url,) in connection.execute("SELECT backend FROM drained")]


def test_a_drained_backend_is_drained_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "programs.sqlite"

    async def scenario() -> None:
        first, second = Backend(small), Backend(small)
        async with world(first, second, programs=keeping(path)) as w:
            assert (await w.request(body=body("a", 1000)))[0] == 200
            assert where(w)["a"][:2] == ("active", 0)
            await w.request("/admin/drain", {"backend": second.url})
            await w.wait_until(lambda: drains(path) == [second.url])  # written down at once, since a kill gives no warning
        async with world(first, second, programs=keeping(path)) as w:
            assert [backend.draining for backend in w.state.backends] == [False, True]
            for name in ("a", "b", "c"):
                assert (await w.request(body=body(name, 1000)))[0] == 200
            assert {backend for _, backend, *_ in where(w).values()} == {0}
            await w.request("/admin/undrain", {"backend": second.url})
            await w.request("/admin/drain", {"backend": first.url})
        async with world(first, second, programs=keeping(path)) as w:
            assert [backend.draining for backend in w.state.backends] == [True, False]
            assert where(w)["a"][:2] == ("paused", None)  # it does not come back where nothing may be sent
            assert (await w.request(body=body("a", 1000)))[0] == 200

    run(scenario())


def test_a_drained_backend_that_is_not_configured_any_more_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "programs.sqlite"
    with closing(ProgramStore(str(path))) as store:
        store.write(StateChanges({}, ["http://gone:1"]))

    async def scenario() -> None:
        async with world(Backend(small), programs=keeping(path)) as w:
            await w.wait_until(lambda: not drains(path))
            assert not w.state.backends[0].draining

    run(scenario())


def test_a_drain_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    path = tmp_path / "programs.sqlite"

    async def scenario() -> None:
        async with world(Backend(small), programs=keeping(path)) as w:
            parts = w.gateway.scheduler.program_parts
            assert parts is not None
            assert parts.keeper is not None
            keeper, write = parts.keeper, parts.keeper._store.write

            def fail(changes: Any) -> None:
                raise sqlite3.OperationalError("database or disk is full")

            keeper._store.write = fail  # type: ignore[method-assign]
            await w.request("/admin/drain", {"backend": w.backends[0].url})
            await w.wait_until(lambda: keeper.failed)
            keeper._store.write = write  # type: ignore[method-assign]
            await w.wait_until(lambda: drains(path) == [w.backends[0].url])

    run(scenario())


@pytest.mark.parametrize("kill_after", [0.0, 0.4])
def test_a_gateway_that_is_killed_loses_no_program(tmp_path: Path, kill_after: float) -> None:
    """Kill -9 in the middle of requests; the next process knows the programs, and their clients' next requests go on."""

    async def scenario() -> None:
        state, (port,) = tmp_path / "programs.sqlite", free_ports(1)
        first, second = Backend(small), Backend(small)
        for backend in (first, second):
            await backend.start()
        process = await serve(port, state, first, second)
        client = Client(port)
        try:
            for name in ("a", "b", "c", "d", "a", "b"):
                await client.ask("/v1/chat/completions", body(name, 1000))
            before = await client.ask("/programs", method="GET")
            while rows(state).get("b", ("", 0, 0))[2] < 2:  # The last change that the writer collects.
                await asyncio.sleep(0.01)
            gated = first.respond = second.respond = GatedAnswer()
            under_way = [asyncio.create_task(client.ask("/v1/chat/completions", body(name, 1000))) for name in "abcdef"]
            while len(first.received) + len(second.received) < 12:
                await asyncio.sleep(0.01)
            await asyncio.sleep(kill_after)  # at some instant between two batches of the writer
            process.send_signal(signal.SIGKILL)
            await process.wait()
            gated.open.set()
            with closing(sqlite3.connect(state)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert set(rows(state)) >= {"a", "b", "c", "d"}

            process = await serve(port, state, first, second)
            await asyncio.gather(*under_way)
            assert client.num_failed >= 6
            after = await client.ask("/programs", method="GET")
            assert set(after) == set("abcdef")
            for name, known in before.items():
                assert after[name]["backend"] == known["backend"]
                assert after[name]["step_count"] > known["step_count"]
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            for backend in (first, second):
                await backend.stop()

    run_on_sockets(scenario())
