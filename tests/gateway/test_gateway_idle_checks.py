"""An idle gateway checks its cores, and says once what does not match."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest
from world import Backend, BackendRequest, run, world

from maitred.core.errors import InvariantError
from maitred.gateway import app
from maitred.gateway.admin import idle_checks
from maitred.gateway.admin.idle_checks import IdleChecks
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
