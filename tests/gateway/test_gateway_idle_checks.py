"""An idle gateway checks its cores, and says once what does not match."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest
from shared_world import shared_world
from world import Backend, BackendRequest, run, world

from maitred.core.errors import InvariantError
from maitred.gateway import app
from maitred.gateway.admin import idle_checks
from maitred.gateway.admin.idle_checks import IdleChecks
from maitred.routing import RoutingConfig
from maitred.scheduler.interface import Backend as BackendInFleet


async def mute(received: BackendRequest) -> None:
    await received.wait_until_disconnected()


def fails() -> None:
    raise InvariantError("a slot is counted twice")


def test_a_problem_is_logged_once_and_the_other_cores_are_checked_as_well(caplog: pytest.LogCaptureFixture) -> None:
    checked: list[str] = []
    checks = IdleChecks({"admission": fails, "programs": lambda: checked.append("programs")}, lambda: True)
    with caplog.at_level(logging.ERROR, "maitred.gateway"):
        checks.run()
        checks.run()
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["admission: a slot is counted twice"]
    assert checked == ["programs", "programs"]


def miscount_fleet(backend: BackendInFleet) -> None:
    backend.in_flight += 1


def miscount_own_requests(backend: BackendInFleet) -> None:
    backend.own_requests._in_flight += 1


def lose_slots(backend: BackendInFleet) -> None:
    assert backend.learned_slots is not None
    backend.learned_slots._search.slots = 0


@pytest.mark.parametrize(
    ("spoil", "told"),
    [(miscount_fleet, "1 in flight are counted"), (miscount_own_requests, "1 sequences are counted"), (lose_slots, "0 slots")],
)
def test_what_is_wrong_with_a_backend_is_found(spoil: Callable[[BackendInFleet], None], told: str) -> None:
    async def scenario() -> None:
        async with world(Backend(), slots=None, admission={"mode": "priority"}) as w:
            assert (await w.request())[0] == 200
            check = w.gateway.scheduler.checks()["fleet"]
            check()
            spoil(w.gateway.scheduler.fleet.backends[0])
            with pytest.raises(InvariantError, match=told):
                check()

    run(scenario())


def test_what_is_wrong_with_a_router_is_found(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with world(Backend(), routing=RoutingConfig(policy="round-robin")) as w:
            assert (await w.request())[0] == 200
            w.gateway._idle_checks.run()
            assert not caplog.records
            w.gateway.scheduler.router._turns["m"] = -1
            w.gateway._idle_checks.run()

    with caplog.at_level(logging.ERROR, "maitred.gateway"):
        run(scenario())
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "routing: model 'm': -1 turns are counted, and each model here has had one"
    ]


def test_what_is_wrong_at_either_end_of_a_link_is_found() -> None:
    async def scenario() -> None:
        async with shared_world() as w:
            assert (await w.request(at=0))[0] == 200
            gateway = w.gateways[0].scheduler
            for checks in (w.scheduler.checks(), gateway.checks()):
                assert {"admission", "fleet", "link", "routing"} <= checks.keys()
                for check in checks.values():
                    check()
            w.host.end.books.by_ticket[7] = None
            with pytest.raises(InvariantError):
                w.scheduler.checks()["link"]()
            w.host.end.books.by_ticket.clear()
            until, gateway.link.end.lease.until = gateway.link.end.lease.until, None
            with pytest.raises(InvariantError, match="with a lease until None"):
                gateway.checks()["link"]()
            gateway.link.end.lease.until = until

    run(scenario())


def test_a_gateway_checks_its_cores_only_while_it_has_no_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its counters are spoiled: the checks find that, but not while a request holds a slot."""
    monkeypatch.setattr(idle_checks, "_PERIOD_SECS", 0.001)
    looks: list[bool] = []

    class Watched(IdleChecks):
        def __init__(self, checks: Mapping[str, Callable[[], None]], is_idle: Callable[[], bool]) -> None:
            super().__init__(checks, lambda: looks.append(is_idle()) or looks[-1])

    monkeypatch.setattr(app, "IdleChecks", Watched)

    def problems() -> list[str]:
        return [record.getMessage() for record in caplog.records if "contradicts itself" in record.getMessage()]

    async def scenario() -> None:
        async with world(Backend(mute)) as w:
            connection = await w.start_request()
            await w.wait_until(lambda: w.state.in_flight)
            (pool,) = w.gateway.core._pools.by_name.values()
            pool.waiting += 1
            looks.clear()
            await w.wait_until(lambda: len(looks) > 2)
            assert (any(looks), problems()) == (False, [])
            connection.disconnect()
            await w.wait_until(problems)
            pool.waiting -= 1

    with caplog.at_level(logging.ERROR, "maitred.gateway"):
        run(scenario())
    assert len(problems()) == 1
    assert "admission" in problems()[0]
