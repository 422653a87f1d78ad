"""Elections whose store holds what it should not, or fails in ways that nobody foresaw."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import virtual_time
from maitred.core.errors import ConfigError
from maitred.core.units import SECOND, Micros
from maitred.scheduler.interface import Dialer, LinkAddress
from maitred.scheduler.link.gateway_books import UNKNOWN_GATEWAY, GatewayId
from maitred.scheduler.link_config import SchedulerConfig
from maitred.scheduler.redis_clients import for_event_loops, open_redis
from maitred.scheduler.sharing.dialer import FinderError
from maitred.scheduler.sharing.elections.election import ElectedAddresses, ElectionCandidate, ElectionError, SoleScheduler, Term
from maitred.scheduler.sharing.elections.elector import Elector
from maitred.scheduler.sharing.elections.file_election import FileElection
from maitred.scheduler.sharing.elections.redis_election import RedisElection

US = ElectionCandidate("us", "10.0.0.5:7070")
GATEWAY = ("gateway", "boot")


class Store:
    """A client of redis-py that answers as it is told."""

    def __init__(self, *, campaign: object = None, leader: bytes | None = None) -> None:
        self._campaign, self._leader = campaign, leader

    async def eval(self, *said: object) -> object:
        return self._campaign

    async def get(self, key: str) -> bytes | None:
        return self._leader


def redis_election(store: Store) -> RedisElection:
    return RedisElection(store, "redis://store", "fleet", 2 * SECOND, lambda: "boot")


def test_a_record_of_something_else_is_told_with_its_key() -> None:
    with pytest.raises(ElectionError, match=r"\{fleet\}:leader in the store at redis://store names no scheduler"):
        asyncio.run(redis_election(Store(leader=b"garbage")).leader())


@pytest.mark.parametrize("gateways", [b"", b"garbage"])
def test_gateways_that_cannot_be_read_are_waited_for_as_unknown_ones(gateways: bytes) -> None:
    term = asyncio.run(redis_election(Store(campaign=[7, gateways, 7, 0, 0])).campaign(US, 0))
    assert term == Term(7, [UNKNOWN_GATEWAY])


def test_a_leader_without_an_address_cannot_be_reached() -> None:
    class Elsewhere(SoleScheduler):
        async def leader(self) -> ElectionCandidate | None:
            return ElectionCandidate("them", "nowhere")

    with pytest.raises(ElectionError, match="no address of a scheduler"):
        asyncio.run(ElectedAddresses(Elsewhere()).addresses())


@pytest.mark.parametrize("listen", ["0.0.0.0:7070", "[::]:7070"])
def test_a_scheduler_that_is_found_by_an_election_says_where_it_is(listen: str) -> None:
    with pytest.raises(ValueError, match="advertise is needed"):
        SchedulerConfig(listen=listen, election="redis://store")
    SchedulerConfig(listen=listen, election="redis://store", advertise="10.0.0.5:7070")
    SchedulerConfig(listen=listen)


def test_a_gateway_is_not_named_until_it_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        election = FileElection(tmp_path / "election")
        await election.campaign(US, 0)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", _fail)
            with pytest.raises(ElectionError, match="no space left"):
                await election.renew([GATEWAY])
        await election.renew([GATEWAY])
        await election.close()
        term = await FileElection(tmp_path / "election").campaign(US, 0)
        assert term == Term(2, [GATEWAY])

    asyncio.run(scenario())


def _fail(*said: object) -> None:
    raise OSError(28, "No space left on device")


class Scheduler:
    """A scheduler that takes part."""

    highest_epoch = 0
    named_gateways: Collection[GatewayId] = ()
    epoch: int | None = None

    def lead(self, epoch: int, until: Micros, gateways: Collection[GatewayId], alone_from: Micros = 0) -> None:
        self.epoch = epoch

    def renew(self, until: Micros, gateways: Collection[GatewayId]) -> None: ...

    def step_down(self, reason: str) -> None:
        self.epoch = None


def test_a_store_whose_client_fails_is_asked_again_and_the_log_has_it_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SoleScheduler):
        tries = 0

        async def campaign(self, candidate: ElectionCandidate, floor: int) -> Term | None:
            self.tries += 1
            if self.tries <= 2:
                raise RuntimeError("a defect")
            return await super().campaign(candidate, floor)

    async def scenario() -> tuple[Any, ...]:
        scheduler = Scheduler()
        machine = virtual_time.MACHINE.get()
        assert machine is not None
        elector = Elector(Broken(), US, scheduler, machine.clock)
        await elector.start()
        seen = [elector.problem, scheduler.epoch]
        await asyncio.sleep(3)
        seen += [elector.problem, scheduler.epoch]
        await elector.close()
        return tuple(seen)

    assert virtual_time.run(scenario()) == ("the election could not be asked", None, None, 1)
    assert [each.exc_info is not None for each in caplog.records] == [True, False]  # the error, and what this scheduler does


def test_a_scheduler_ends_though_the_client_of_its_store_swallows_a_cancellation() -> None:
    class Swallowing(SoleScheduler):
        lease = 2 * SECOND
        swallowed = 0

        async def renew(self, gateways: Collection[GatewayId]) -> bool:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:  # as `asyncio.wait_for` does before Python 3.12
                self.swallowed += 1
            return True

    async def scenario() -> None:
        scheduler, election = Scheduler(), Swallowing()
        machine = virtual_time.MACHINE.get()
        assert machine is not None
        elector = Elector(election, US, scheduler, machine.clock)
        await elector.start()
        await asyncio.sleep(0.55)
        async with asyncio.timeout(60):
            await elector.close()
        assert (election.swallowed, scheduler.epoch) == (1, None)

    virtual_time.run(scenario())


def test_a_scheduler_says_whom_it_stands_by_for_and_what_it_does_without_the_store(caplog: pytest.LogCaptureFixture) -> None:
    class Changing(SoleScheduler):
        lease = 2 * SECOND
        other: ElectionCandidate | None = ElectionCandidate("other", "10.0.0.6:7070")
        where = "the store at X"
        is_down = False

        async def campaign(self, candidate: ElectionCandidate, floor: int) -> Term | None:
            if self.is_down:
                await asyncio.Event().wait()
            return None if self.other else await super().campaign(candidate, floor)

        async def renew(self, gateways: Collection[GatewayId]) -> bool:
            return await self.campaign(US, 0) is not None

        async def leader(self) -> ElectionCandidate | None:
            return self.other

    async def scenario() -> None:
        scheduler, election = Scheduler(), Changing()
        machine = virtual_time.MACHINE.get()
        assert machine is not None
        elector = Elector(election, US, scheduler, machine.clock)
        await elector.start()
        await asyncio.sleep(2)
        election.other = None
        await asyncio.sleep(1)
        assert (scheduler.epoch, elector.leader) == (1, US)
        election.is_down = True
        await asyncio.sleep(3)
        scheduler.epoch = None  # Its lease is over.
        await asyncio.sleep(6)
        assert elector.leader is None
        election.is_down = False
        await asyncio.sleep(3)
        await elector.close()

    down = "the store at X does not answer: this scheduler"
    with caplog.at_level("INFO", "maitred.gateway"):
        virtual_time.run(scenario())
    assert caplog.messages == [
        "this scheduler stands by: other at 10.0.0.6:7070 leads",
        "this scheduler leads: epoch 1",
        f"{down} is the leader until its lease is over",
        f"{down} stands by",
        "this scheduler leads: epoch 1",
        "the election answers again",
    ]


def test_a_store_that_is_down_or_no_cluster_is_named_in_plain_words() -> None:
    redis = pytest.importorskip("redis.exceptions")
    refused = redis.ConnectionError("Error 111 connecting to 10.0.0.9:6379. Connection refused.")
    refused.__context__ = ConnectionRefusedError(111, "Connection refused")

    class Failing(Store):
        async def get(self, key: str) -> bytes | None:
            raise self.error

        error: Exception = refused

    store, last = Failing(), Store(leader=b'{"candidate":{"name":"them","address":"10.0.0.6:7070"},"boot":""}')
    election = redis_election(store)

    async def words() -> str:
        with pytest.raises(ElectionError) as told:
            await election.leader()
        return str(told.value)

    async def scenario() -> None:
        down = "the store at redis://store cannot be asked: connection refused"
        assert await words() == down
        finder = ElectedAddresses(election)
        dialer = Dialer(finder)
        election._client = last
        assert (await finder.addresses(), dialer.explain("it does not lead")) == (
            [LinkAddress("10.0.0.6", 7070)],
            "it does not lead",
        )
        election._client = store
        assert [str(each) for each in await finder.addresses()] == ["10.0.0.6:7070"]
        assert dialer.explain("it does not lead") == f"it does not lead, and {down}"
        election._client = Store()
        with pytest.raises(FinderError, match="no scheduler leads, as the store at redis://store has it"):
            await finder.addresses()
        election._client = store
        store.error = redis.RedisClusterException("Cluster mode is not enabled on this node")
        assert await words() == "the store at redis://store cannot be asked: Cluster mode is not enabled on this node"

    asyncio.run(scenario())


def test_a_database_of_redis_that_is_no_number_is_refused() -> None:
    pytest.importorskip("redis")
    open_redis("redis://10.0.0.9:6379/15", for_event_loops, 1.0)
    with pytest.raises(ConfigError, match="'maitred' is no number of a database"):
        open_redis("redis://10.0.0.9:6379/maitred", for_event_loops, 1.0)


def test_a_file_that_hangs_is_asked_once_and_the_lock_of_a_late_campaign_is_let_go(tmp_path: Path) -> None:
    """A reader of a pipe that nobody writes to waits, as that of a disk that hangs."""
    path = tmp_path / "leader"

    async def scenario() -> None:
        os.mkfifo(path)
        election = FileElection(path)
        campaign = asyncio.create_task(election.campaign(US, 0))
        while election._asked is None:
            await asyncio.sleep(0)
        campaign.cancel()  # As after a time limit.
        await asyncio.wait({campaign})
        with pytest.raises(ElectionError, match="the file does not answer"):
            await election.leader()
        asked = election._asked
        with path.open("wb") as pipe:
            pipe.write(b"{}")
        assert (await asked) is not None
        term = await FileElection(path).campaign(US, 0)
        assert term is not None
        assert term.epoch == 2, "the late campaign has the first one, and leads under none"

    asyncio.run(scenario())


def test_a_leader_that_resigns_has_its_lock_until_its_last_write_is_done(tmp_path: Path) -> None:
    class Hanging(FileElection):
        """Writes when `gate` is set."""

        gate: threading.Event | None = None

        def _write(self, record: Any) -> None:
            if self.gate is not None:
                self.gate.wait()
            super()._write(record)

    async def scenario() -> None:
        first, second = Hanging(tmp_path / "leader"), FileElection(tmp_path / "leader")
        assert await first.campaign(US, 0) is not None
        first.gate = threading.Event()
        renewing = asyncio.create_task(first.renew([GATEWAY]))
        before = first._asked
        while first._asked is before:
            await asyncio.sleep(0)
        renewing.cancel()  # As after a time limit.
        await asyncio.wait({renewing})
        await first.resign()
        them = ElectionCandidate("them", "10.0.0.6:7070")
        assert await second.campaign(them, 0) is None
        first.gate.set()
        assert first._asked is not None
        await first._asked
        assert await second.campaign(them, 0) == Term(2, [GATEWAY])
        assert await second.leader() == them
        await second.resign()

    asyncio.run(scenario())
