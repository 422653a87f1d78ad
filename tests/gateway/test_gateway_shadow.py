"""A shadow beside a gateway: it is told of what happens, says where it would have decided otherwise, and harms nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from world import (
    ANSWER,
    Backend,
    BackendRequest,
    GatedAnswer,
    GatewayWorld,
    admission_config,
    answer,
    apart,
    programs_config,
    run,
    world,
)

from maitred import is_compiled
from maitred.admission import Admission, AdmissionPolicy
from maitred.admission.pool_directory import PoolDirectory
from maitred.core.contracts import Choice, FleetView
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.gateway import GatewayConfig
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.observe import shadow as following
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.routing.base import BaseRouter
from maitred.shadow import ShadowRules

PREEMPTING: dict[str, Any] = {
    "on_preempt": "retry",
    "classes": {"interactive": {"can_preempt": True}, "bulk": {"queue_timeout_secs": 2, "queue_size": 3}},
}


def rules(routing: str = "round-robin", programs: dict[str, Any] | None = None, **admission: Any) -> ShadowRules:
    return ShadowRules(
        name="other.yaml",
        admission=admission_config(**admission),
        routing=RoutingConfig(policy=routing),
        programs=programs_config(programs) or ProgramsConfig(),
    )


async def shadow_page(w: GatewayWorld) -> dict[str, Any]:
    assert w.gateway.shadow is not None
    w.gateway.shadow.follow_all()
    status, _, page = await w.request("/admin/shadow", b"", "GET")
    assert status == 200
    found: dict[str, Any] = msgspec.json.decode(page)
    return found


async def slowly(received: BackendRequest) -> None:
    await asyncio.sleep(0.3)
    await answer(received)


async def load(w: GatewayWorld) -> list[int]:
    """Bulk work beyond the slots and the queue, chats that preempt it, and requests of one program."""
    tasks = []
    for number in range(24):
        c = "interactive" if number % 3 == 2 else "bulk"
        body = {"model": "m", "program_id": f"p{number % 4}"}
        tasks.append(asyncio.create_task(w.request(body=body, x_smg_priority=c)))
        await asyncio.sleep(0.05)
    return [(await each)[0] for each in tasks]


def test_a_shadow_under_the_rules_in_force_agrees_with_them_through_preemptions_timeouts_and_reloads() -> None:
    other = PREEMPTING | {"classes": PREEMPTING["classes"] | {"default": {"queue_size": 2}}}

    def reload(config: GatewayConfig) -> GatewaySettings:
        named = {"programs": programs_config({}), "routing": RoutingConfig(policy="round-robin")}
        found = admission_config(**other)
        return GatewaySettings(gateway=config, admission=found, shadow=rules(programs={}, **other), **named)

    async def scenario() -> tuple[dict[str, Any], Any]:
        backends = Backend(slowly), Backend(slowly)
        in_force: dict[str, Any] = {"admission": PREEMPTING, "routing": RoutingConfig(policy="round-robin"), "programs": {}}
        async with world(*backends, slots=1, shadow=rules(programs={}, **PREEMPTING), reload=reload, **in_force) as w:
            statuses = await load(w)
            assert (await w.request("/admin/reload", b""))[0] == 200
            assert statuses + await load(w) != []
            state = w.state.classes
            assert state["bulk"].retried + state["bulk"].preempted > 0
            assert state["bulk"].queue_full + state["bulk"].queue_timeout > 0
            return await shadow_page(w), w.gateway.shadow

    page, _ = run(scenario())
    assert page["active"], page["problem"]
    assert page["examples"] == []
    assert set(page["disagreements"].values()) == {0}
    assert page["compared"]["admission"] > 60
    assert page["compared"]["programs"] > 20
    assert page["not_compared"] == {}
    assert "routing" not in page["compared"]  # The same router would choose the same.
    assert page["skipped_requests"] == 0


def test_other_rules_are_told_by_kind() -> None:
    async def scenario() -> tuple[dict[str, Any], str]:
        gate = GatedAnswer()
        other = rules("random", classes={"interactive": {"reserved_floor": 1}, "bulk": {"queue_size": 0}})
        async with world(Backend(gate), Backend(gate), slots=1, shadow=other, routing=RoutingConfig(policy="round-robin")) as w:
            first = [await w.start_request(x_smg_priority="bulk", x_request_id="<i>1")]
            await apart()
            first.append(await w.start_request(x_smg_priority="bulk"))
            await apart()
            first.append(await w.start_request(x_smg_priority="interactive"))
            await apart()
            gate.open.set()
            for each in first:
                assert (await each.read_response())[0] == 200
            page = await shadow_page(w)
            metrics = (await w.request("/metrics", b"", "GET"))[2].decode()
            return page, metrics

    page, metrics = run(scenario())
    assert page["disagreements"]["refuse"] == 1  # The second one finds the last slot reserved, and no queue.
    assert page["disagreements"]["admit"] == 1  # The chat has it at once.
    told = {each["kind"]: each for each in page["examples"]}
    assert told["refuse"]["real"].startswith("holds a slot")
    assert 'maitred_shadow_disagreements_total{kind="admit"} 1.0' in metrics
    assert "maitred_shadow_active 1.0" in metrics


class Last(BaseRouter):
    """A router that takes the last backend."""

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        return Choice(fleet[-1].index, "last")


def test_another_backend_and_a_program_that_would_be_paused_are_told() -> None:
    """In force requests go to both backends in turn, and no program is short of memory; under the shadow the last backend has
    all, and 2,000 tokens of memory hold one program of 1,500."""
    one_program = {"backend_capacity_tokens": 2000}

    async def scenario() -> tuple[dict[str, Any], dict[str, Any]]:
        shadow = rules("test_gateway_shadow:Last", one_program)
        in_force: dict[str, Any] = {"routing": RoutingConfig(policy="round-robin"), "programs": {}}
        gate = GatedAnswer()
        async with world(Backend(gate), shadow=shadow, **in_force) as w:
            bodies = [{"model": "m", "program_id": name, "x": "x" * 7500} for name in ("p1", "p2")]
            asked = [await w.start_request(body=msgspec.json.encode(body)) for body in bodies]
            await apart()
            gate.open.set()
            assert [(await each.read_response())[0] for each in asked] == [200, 200]
            paused = await shadow_page(w)
        async with world(Backend(), Backend(), shadow=rules("test_gateway_shadow:Last"), routing=in_force["routing"]) as w:
            for number in range(4):
                assert (await w.request(x_request_id=f"r{number}"))[0] == 200
            return paused, await shadow_page(w)

    paused, routed = run(scenario())
    assert paused["disagreements"]["pause"] == 1
    (told,) = (each for each in paused["examples"] if each["kind"] == "pause")
    assert (told["id"], told["real"].split(" (")[0], told["shadow"]) == ("p2", "active", "paused")
    assert routed["disagreements"]["instance"] == 2  # Two of four have gone to the first one.
    assert {each["id"] for each in routed["examples"]} in ({"r0", "r2"}, {"r1", "r3"})
    assert all(each["shadow"] == "backend 1 (last)" for each in routed["examples"])


def test_a_router_that_reads_more_is_not_compared() -> None:
    async def scenario() -> dict[str, Any]:
        async with world(Backend(), routing=RoutingConfig(policy="round-robin"), shadow=rules("prefix-hash")) as w:
            assert (await w.request())[0] == 200
            return await shadow_page(w)

    page = run(scenario())
    assert page["not_compared"]["routing"]
    assert page["compared"]["routing"] == 0


class Raises(AdmissionPolicy):
    """A policy with a defect."""

    def refusal(self, *args: Any) -> None:
        raise ZeroDivisionError("a defect\nof two lines")


def test_a_shadow_that_raises_is_switched_off_and_nothing_else_comes_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> tuple[dict[str, Any], int, str]:
        async with world(Backend(), shadow=rules(policy="test_gateway_shadow:Raises")) as w:
            for _ in range(3):
                status, _, answered = await w.request()
                assert (status, answered) == (200, ANSWER)
                await asyncio.sleep(0.2)
            page = await shadow_page(w)
            ready = (await w.request("/ready", b"", "GET"))[0]
            return page, ready, (await w.request("/metrics", b"", "GET"))[2].decode()

    page, ready, metrics = run(scenario())
    assert not page["active"]
    assert page["problem"].startswith("ZeroDivisionError")
    assert ready == 200
    assert "maitred_shadow_active 0.0" in metrics
    assert sum("is switched off" in each.message for each in caplog.records) == 1


@pytest.mark.skipif(is_compiled(), reason="a compiled core cannot be copied, which the shadow says")
@pytest.mark.parametrize("log", [None, "/dev/null"])
def test_where_a_tenth_is_not_enough_it_sees_samples(monkeypatch: pytest.MonkeyPatch, log: str | None) -> None:
    """And while it does not look, cores make nothing for it; under the rules in force it agrees afterwards, too."""
    monkeypatch.setattr(following, "MAX_PILED", 10)
    in_force: dict[str, Any] = {"admission": PREEMPTING, "programs": {}, "decision_log": log}

    async def scenario() -> tuple[dict[str, Any], int]:
        async with world(Backend(slowly), slots=2, shadow=rules("random", {}, **PREEMPTING), **in_force) as w:
            shadow = w.gateway.shadow
            assert shadow is not None
            shadow._saved_secs = -1.0  # All is spent, and the clock of this world counts no CPU time.
            await load(w)
            piled, skipped = len(shadow._piled), shadow.num_skipped
            await load(w)
            assert len(shadow._piled) == piled
            assert shadow.num_skipped == skipped + 24
            assert isinstance(shadow.log.cores["admission"], Admission)
            assert (shadow.log.cores["admission"]._recorder is None) == (log is None)
            shadow._saved_secs = 1.0
            await asyncio.sleep(0.2)
            before = shadow.num_skipped
            await load(w)
            await asyncio.sleep(1)
            return await shadow_page(w), before

    page, skipped = run(scenario())
    assert page["active"], page["problem"]
    assert page["skipped_requests"] == skipped > 24
    assert page["compared"]["admission"] > 40
    assert page["compared"]["programs"] > 20
    assert {kind for kind, count in page["disagreements"].items() if count} <= {"instance"}
    assert page["not_compared"] == {}


def test_without_a_shadow_there_is_nothing_to_tell() -> None:
    async def scenario() -> None:
        async with world() as w:
            assert (await w.request("/admin/shadow", b"", "GET"))[2] == b"null"
            assert b"maitred_shadow" not in (await w.request("/metrics", b"", "GET"))[2]

    run(scenario())


def test_a_shadow_without_a_log_does_not_look_at_reservations_within_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """To see whether one has changed costs more than all else that a shadow does within an input."""
    looked = list[int]()
    monkeypatch.setattr(PoolDirectory, "headroom", lambda self: looked.append(1) or {})

    async def scenario(log: str | None) -> None:
        async with world(Backend(), slots=1, shadow=rules(), decision_log=log) as w:
            assert (await w.request())[0] == 200
            page = await shadow_page(w)
            assert page["compared"]["admission"] > 0

    run(scenario(None))
    assert looked == []
    run(scenario("/dev/null"))
    assert looked != []
