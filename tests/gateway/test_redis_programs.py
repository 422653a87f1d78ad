"""The programs of a fleet in Redis: the next leader knows those that are idle, and the one before writes no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_world import Cluster, cluster
from test_redis_elections import redis_server, sentinel_and_cluster
from world import Backend, run_on_sockets, world

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.cluster.scheduler_gateway import SchedulerGateway
from maitred.gateway.config import GatewayConfig
from maitred.programs import ProgramKey, ProgramsConfig
from maitred.scheduler.interface import Dialer, ElectedAddresses, open_election
from maitred.scheduler.programs import state
from maitred.scheduler.programs.redis_store import RedisProgramStore, StateError, TakenOver
from maitred.scheduler.programs.state import ProgramStateKeeper
from maitred.scheduler.programs.store import StateChanges, StoredProgram
from maitred.wire.machine import Machine

ROW = StoredProgram("t", "p", "m", PriorityClass.DEFAULT, "", "http://a:1", 0, 10, 40, 0, 1, 0, 0.0, 5, 6)
KEY = ProgramKey("t", "p", "m")


def keeper(scheduler: SchedulerGateway) -> ProgramStateKeeper:
    parts = scheduler.scheduler.program_parts
    assert parts is not None
    assert parts.keeper is not None
    return parts.keeper


def names(scheduler: SchedulerGateway) -> set[str]:
    assert scheduler.scheduler.programs is not None
    return {program.key.name for program in scheduler.scheduler.programs.core.programs}


async def ask(c: Cluster, program: str) -> int:
    return (await (await c.start_request(body={"model": "m", "messages": [], "program_id": program})).read_response())[0]


def test_the_next_leader_knows_idle_programs_and_the_last_one_writes_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            port = await stack.enter_async_context(redis_server(tmp_path, "--requirepass", "a-word"))
            url = f"redis://:a-word@127.0.0.1:{port}"
            c = await stack.enter_async_context(cluster(None, 0, election=url, lease_secs=1.0))
            c.programs = ProgramsConfig(mode="default", state=f"{url}#fleet")
            first, second = await c.add_scheduler(), await c.add_scheduler()
            election = open_election(url, c.link, Machine().random)
            stack.push_async_callback(election.close)
            await c.add_gateway(Dialer(ElectedAddresses(election)))
            await c.linked()
            assert await ask(c, "a") == await ask(c, "b") == 200
            assert names(second) == set()
            assert (keeper(first).leads(), keeper(second).leads()) == (True, False)
            store = RedisProgramStore(f"{url}#fleet")  # It has begun before the second one does.
            await c.until(lambda: not keeper(first)._pending and keeper(first)._writer.is_idle)
            store._keeper = keeper(first)._store._keeper  # type: ignore[union-attr]
            await c.kill(first)
            await c.until(lambda: second.host and second.host.leadership.mode == "leading")
            await c.until(lambda: names(second) == {"a", "b"})
            assert keeper(second).leads()
            with pytest.raises(TakenOver, match=r"another scheduler keeps the programs in redis://127.0.0.1:\d+"):
                await asyncio.to_thread(store.write, StateChanges({KEY: ROW}))
            store.close()
            await c.linked()
            assert await ask(c, "c") == 200
            await c.until(lambda: names(second) == {"a", "b", "c"})

    run_on_sockets(scenario())


def test_a_store_that_was_emptied_is_written_anew_and_one_that_is_down_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with redis_server(tmp_path) as port:
            store = RedisProgramStore(f"redis://127.0.0.1:{port}")
            await asyncio.to_thread(store.begin)
            await asyncio.to_thread(store.write, StateChanges({KEY: ROW}, ["http://b:1"]))
            other = RedisProgramStore(f"redis://127.0.0.1:{port}")
            await asyncio.to_thread(other.begin)
            assert (other.found, other.drained) == ([ROW], ["http://b:1"])
            await asyncio.to_thread(other.write, StateChanges({KEY: None}, []))
            assert not other.has_lost_all
        with pytest.raises(StateError, match=rf"the store at redis://127.0.0.1:{port} cannot be asked"):
            await asyncio.to_thread(other.write, StateChanges({KEY: ROW}))
        async with redis_server(tmp_path, port=port):
            await asyncio.to_thread(other.write, StateChanges({KEY: ROW}))
            assert other.has_lost_all
        store.close()
        other.close()

    run_on_sockets(scenario())


def test_programs_behind_sentinel_with_a_password_and_in_a_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sentinel_and_cluster(tmp_path) as urls:
            for url in urls:
                first, second = (RedisProgramStore(f"{url}#fleet") for _ in range(2))
                await asyncio.to_thread(first.begin)
                await asyncio.to_thread(first.write, StateChanges({KEY: ROW}, ["http://b:1"]))
                await asyncio.to_thread(second.begin)
                assert (second.found, second.drained) == ([ROW], ["http://b:1"])
                with pytest.raises(TakenOver):
                    await asyncio.to_thread(first.write, StateChanges({KEY: None}))
                first.close()
                second.close()
            wrong = RedisProgramStore(urls[0].replace("a-word", "another"))
            with pytest.raises(StateError, match=r"/here (refuses the password|cannot be asked)") as refused:
                await asyncio.to_thread(wrong.begin)
            assert "another" not in str(refused.value)
            wrong.close()

    run_on_sockets(scenario())


def test_one_that_led_before_a_store_was_emptied_changes_nothing_of_the_next_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with redis_server(tmp_path) as port:
            first, second = (RedisProgramStore(f"redis://127.0.0.1:{port}") for _ in range(2))
            for _ in range(3):
                await asyncio.to_thread(first.begin)
            await asyncio.to_thread(first.write, StateChanges({KEY: ROW}))
        async with redis_server(tmp_path, port=port):
            first.may_claim = False
            with pytest.raises(TakenOver):  # It leads no more, and the next one has not begun yet.
                await asyncio.to_thread(first.write, StateChanges({KEY: ROW}))
            await asyncio.to_thread(second.begin)
            assert (second.found, second.drained) == ([], None)
            first.may_claim = True
            with pytest.raises(TakenOver):
                await asyncio.to_thread(first.write, StateChanges({KEY: ROW}, ["http://b:1"]))
            await asyncio.to_thread(second.write, StateChanges({}, []))
            await asyncio.to_thread(second.begin)
            assert (second.found, second.drained) == ([], [])
        first.close()
        second.close()

    run_on_sockets(scenario())


class OtherLeaders(RedisProgramStore):
    """A store in which leaders between the terms of ours have written which backends are drained."""

    def __init__(self) -> None:
        super().__init__("redis://127.0.0.1:1")
        self.stored: list[str] | None = None
        self.written: list[StateChanges] = []

    def begin(self) -> None:
        self.drained = self.stored

    def write(self, changes: StateChanges) -> None:
        self.written.append(changes)


def test_a_leader_that_leads_again_drains_what_the_store_says_and_what_an_operator_has_changed_meanwhile() -> None:
    async def scenario() -> None:
        store = OtherLeaders()
        async with world(Backend(), Backend(), programs={"mode": "default", "state": "none"}) as w:
            scheduler = w.gateway.scheduler
            assert scheduler.program_parts is not None
            kept = ProgramStateKeeper(store, scheduler.program_parts.driver, scheduler.program_parts.memories, scheduler.fleet)
            one, two = scheduler.fleet.backends

            async def lead(*drained: str, operate: Callable[[], object] = lambda: None, knows: bool = True) -> list[str]:
                store.stored = [*drained] if knows else None
                kept.begin_term()
                operate()
                assert kept._reading is not None
                await kept._reading
                return [backend.url for backend in (one, two) if backend.is_draining]

            assert await lead(one.url) == [one.url]
            assert await lead() == []  # The one that led meanwhile has resumed it.
            assert await lead(two.url, operate=lambda: scheduler.fleet.drain(one)) == [one.url, two.url]
            batch = kept.take_batch()
            assert batch is not None
            assert batch.drained == sorted([one.url, two.url])
            assert await lead(two.url, operate=lambda: scheduler.fleet.undrain(two)) == []
            scheduler.fleet.drain(one)
            assert await lead(knows=False) == [one.url]
            batch = kept.take_batch()
            assert batch is not None
            assert batch.drained == [one.url]
            for leads in (False, True):  # An empty store is of the one that leads.
                kept.leads = lambda leads=leads: leads  # type: ignore[misc]
                kept.take_batch()
                assert store.may_claim is leads

    run_on_sockets(scenario())


def test_a_gateway_alone_keeps_its_programs_in_redis_and_serves_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_PATIENCE", 0)

    async def scenario() -> None:
        async with redis_server(tmp_path) as port:
            programs = {"mode": "default", "state": f"redis://127.0.0.1:{port}"}
            async with world(programs=programs) as w:
                assert (await w.request(body={"model": "m", "messages": [], "program_id": "a"}))[0] == 200
            async with world(programs=programs) as w:
                parts = w.gateway.scheduler.program_parts
                assert parts is not None
                while not parts.driver.restored.is_set():
                    await asyncio.sleep(0.001)
                assert [program.key.name for program in parts.driver.core.programs] == ["a"]
        async with world(programs=programs) as w:
            assert (await w.request(body={"model": "m", "messages": [], "program_id": "a"}))[0] == 200

    run_on_sockets(scenario())
    assert "programs are not kept: the store at redis://127.0.0.1:" in caplog.text
    assert "programs of the scheduler before are not known" in caplog.text


def test_a_url_of_nothing_is_refused_and_a_password_is_never_shown() -> None:
    with pytest.raises(ConfigError, match="is no URL of Redis"):
        RedisProgramStore("redis://127.0.0.1:nine")
    programs = ProgramsConfig(state="redis://:a-word@10.0.0.9:6379")
    settings = GatewaySettings(gateway=GatewayConfig(backends=("http://a:1",)), programs=programs)
    assert settings.redacted()["programs"]["state"] == "redis://10.0.0.9:6379"
