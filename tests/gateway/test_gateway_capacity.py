"""Capacity: the slots that backends report, changes while requests wait, and reservations that do not fit."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import msgspec
import pytest
from world import ANSWER, Backend, BackendRequest, GatedAnswer, run, whole, world

from maitred.core.errors import ConfigError
from maitred.scheduler.engines.server_info import parse_reported_slots

TWO_AND_TWO = {"system": {"reserved_floor": 2}, "interactive": {"reserved_floor": 2}}


def reporting(slots: int, respond: Any = None, models: tuple[str, ...] = ("m",)) -> Backend:
    backend = Backend(respond or GatedAnswer(), models)
    backend.info = {"max_running_requests": slots}
    return backend


@pytest.mark.parametrize(
    ("answer", "slots"),
    [
        ({"max_running_requests": 48}, 48),
        ({"max_running_requests": None, "internal_states": [{"effective_max_running_requests_per_dp": 64}] * 2}, 128),
        ({"max_running_requests": 500, "internal_states": [{"effective_max_running_requests_per_dp": 256}]}, 256),
        ({"max_running_requests": None, "internal_states": [{"max_running_requests": 7}]}, 7),
        ({"server_args": {"max_running_requests": 9}}, 9),
        ({"max_running_requests": 12, "internal_states": None, "server_args": None}, 12),
        ({"max_running_requests": None}, None),
        ({"max_running_requests": 0}, None),
        ({"max_running_requests": -3}, None),
        ({"max_running_requests": True}, None),
        ({"max_running_requests": "64"}, None),
        ({"max_running_requests": 1e30}, None),
        ({}, None),
    ],
)
def test_what_a_server_info_says(answer: dict[str, Any], slots: int | None) -> None:
    assert parse_reported_slots(msgspec.json.encode(answer)) == slots


def test_sources() -> None:
    """A configured number comes before a reported one, and that before one that is learned."""

    async def scenario() -> None:
        async with world(reporting(3), Backend(), slots=None) as w:
            assert [(b.slots, b.source) for b in w.state.backends] == [(3, "reported"), (8, "learned")]
            assert (w.state.models["m"].slots, w.state.models["m"].source) == (11, "mixed")
            assert w.state.pools["m"].capacity == 11
        async with world(reporting(3), slots=5) as w:
            assert (w.state.models["m"].slots, w.state.models["m"].source) == (5, "configured")
            assert w.backends[0].info_polls == []

    run(scenario())


def test_who_does_not_report_is_asked_once_and_again_when_it_comes_back() -> None:
    async def scenario() -> None:
        backend = Backend()
        async with world(backend, slots=None) as w:
            fleet = w.gateway.scheduler.fleet.backends[0]
            await w.wait_for_polls(backend, 5)
            assert backend.info_polls == ["/server_info", "/get_server_info"]
            await backend.stop()
            await w.wait_until(lambda: not fleet.healthy)
            backend.info = {"max_running_requests": 2}
            await backend.start()
            await w.wait_until(lambda: w.state.capacity == 2)
            assert w.state.models["m"].source == "reported"

    run(scenario())


def test_the_older_name_of_the_page() -> None:
    class Older(Backend):
        async def _answer(self, received: BackendRequest) -> None:
            if received.head.startswith(b"GET /server_info"):
                await received.send(whole(b"{}", b"404 Not Found"))
            else:
                await super()._answer(received)

    async def scenario() -> int | None:
        older = Older()
        older.info = {"max_running_requests": 6}
        async with world(older, slots=None) as w:
            return w.state.capacity

    assert run(scenario()) == 6


def test_a_vllm_is_asked_for_its_configuration_as_json() -> None:
    class Vllm(Backend):
        async def _answer(self, received: BackendRequest) -> None:
            if received.head.startswith(b"GET /server_info"):
                self.info_polls.append(received.head.split(b" ")[1].decode())
                as_json = b"?config_format=json" in received.head
                config = b'{"scheduler_config":{"max_num_seqs":9}}' if as_json else b'"SchedulerConfig(max_num_seqs=9)"'
                await received.send(whole(b'{"vllm_config":' + config + b"}"))
            else:
                await super()._answer(received)

    async def scenario() -> tuple[int | None, list[str]]:
        vllm = Vllm()
        async with world(vllm, slots=None) as w:
            return w.state.capacity, vllm.info_polls[:2]

    assert run(scenario()) == (9, ["/server_info", "/server_info?config_format=json"])


@pytest.mark.parametrize("has_info", [True, False])
def test_tensorrt_llm_has_the_number_in_its_iterations_and_is_read_until_it_is_known(has_info: bool) -> None:
    class TensorRt(Backend):
        pages: ClassVar[list[bytes]] = []

        async def _answer(self, received: BackendRequest) -> None:
            if received.head.startswith(b"GET /metrics"):
                self.pages.append(
                    b"[]" if len(self.pages) < 2 else b'[{"iter": 1, "maxNumActiveRequests": 9, "numActiveRequests": 1}]'
                )
                await received.send(whole(self.pages[-1]))
            else:
                await super()._answer(received)

    async def scenario() -> None:
        engine = TensorRt()
        engine.pages.clear()
        engine.info = {"disaggregated_params": None} if has_info else None
        async with world(engine, slots=None, health_interval_secs=0.02) as w:
            await w.wait_until(lambda: w.state.capacity == 9)
            assert w.state.models["m"].source == "reported"
            await w.wait_for_polls(engine, 5)
            assert len(engine.pages) == 3
            assert w.state.capacity == 9

    run(scenario())


def test_trouble_with_the_page_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Troubled(Backend):
        trouble = b""

        async def _answer(self, received: BackendRequest) -> None:
            if b"server_info" in received.head and self.trouble:
                self.info_polls.append("")
                await received.send(whole(b"[1]", self.trouble))
            else:
                await super()._answer(received)

    async def scenario() -> None:
        troubled = Troubled()
        troubled.info = {"max_running_requests": 6}
        async with world(troubled, slots=None) as w:
            for troubled.trouble in (b"500 Internal Server Error", b"200 OK"):
                before = len(troubled.info_polls)
                await w.wait_until(lambda before=before: len(troubled.info_polls) > before + 2)
                assert w.state.capacity == 6
                assert w.state.ready

    run(scenario())
    troubles = [record.message for record in caplog.records if "how many requests" in record.message]
    assert len(troubles) == 2, "each is said once"
    assert "/server_info answered 500" in troubles[0]


def test_capacity_changes_while_it_is_used(caplog: pytest.LogCaptureFixture) -> None:
    """4 slots become 2, then 8: no request is stopped or admitted too early, and each is admitted as soon as possible."""
    caplog.set_level(logging.INFO, "maitred.gateway")

    async def scenario() -> None:
        go = asyncio.Semaphore(0)

        async def respond(received: BackendRequest) -> None:
            await go.acquire()
            await received.send(whole(ANSWER))

        backend = reporting(4, respond)
        async with world(backend, slots=None) as w:
            connections = [await w.start_request() for _ in range(12)]
            await w.wait_until(lambda: len(backend.received) == 4 and w.state.waiting == 8)
            backend.info = {"max_running_requests": 2}
            await w.wait_until(lambda: w.state.capacity == 2)
            assert (w.state.in_flight, w.state.waiting) == (4, 8)
            for in_flight in (3, 2):
                go.release()
                await w.wait_until(lambda in_flight=in_flight: w.state.in_flight == in_flight)
                assert w.state.waiting == 8
            go.release()
            await w.wait_until(lambda: w.state.waiting == 7)
            assert w.state.in_flight == 2
            backend.info = {"max_running_requests": 8}
            await w.wait_until(lambda: w.state.waiting == 1)
            assert (w.state.in_flight, w.state.capacity) == (8, 8)
            for _ in range(9):
                go.release()
            assert [(await connection.read_response())[0] for connection in connections] == [200] * 12

    run(scenario())
    said = [record.message for record in caplog.records if record.message.startswith("capacity of")]
    assert said == [
        "capacity of model `m`: 4 slots (reported), before: 0",
        "capacity of model `m`: 2 slots (reported), before: 4",
        "capacity of model `m`: 8 slots (reported), before: 2",
        *said[3:],
    ]


def test_models_do_not_take_each_others_slots() -> None:
    async def scenario() -> None:
        gate = GatedAnswer()
        async with world(reporting(1, gate, ("a",)), reporting(2, models=("b",)), slots=None) as w:
            w.backends[1].respond = lambda received: received.send(whole(ANSWER))
            connections = [await w.start_request({"model": "a"}) for _ in range(6)]
            await w.wait_until(lambda: w.state.waiting == 5)
            for _ in range(10):
                assert (await w.request(body={"model": "b"}))[0] == 200
            assert (w.state.pools["a"].in_flight, w.state.pools["a"].waiting) == (1, 5)
            gate.open.set()
            assert {(await connection.read_response())[0] for connection in connections} == {200}

    run(scenario())


def test_reservations_that_do_not_fit_mean_no_classes(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        admission = {"classes": TWO_AND_TWO, "legacy": {"max_concurrent_requests": 1, "queue_size": 0}}
        async with world(reporting(3), reporting(64, models=("other",)), slots=None, admission=admission) as w:
            await w.wait_until(lambda: w.state.mode == "legacy")
            problem = (
                "sum of class reservations (4) exceeds capacity (3) of model `m`: serving without classes, "
                "at most 1 requests in flight (reserve less, or set on_overcommit: clamp)"
            )
            assert w.state.config_fallback == problem
            assert f"priority scheduler failed to start; falling back to legacy admission: {problem}" in caplog.messages
            metrics = (await w.request("/metrics", method="GET"))[2].decode().splitlines()
            assert "maitred_config_fallback 1.0" in metrics
            health = msgspec.json.decode((await w.request("/health", method="GET"))[2])
            assert (health["status"], health["problems"]) == ("degraded", [problem])
            assert msgspec.json.decode((await w.request("/ready", method="GET"))[2])["problems"] == [problem]
            connection = await w.start_request(x_smg_priority="bulk")
            await w.wait_until(lambda: w.state.in_flight)
            assert (await w.request(x_smg_priority="system"))[1]["x-smg-error-code"] == "admission_queue_full"
            w.backends[0].respond.open.set()
            assert (await connection.read_response())[0] == 200

    run(scenario())


def test_without_classes_and_without_a_number_the_slots_of_the_fleet_are_the_limit() -> None:
    """Three slots, then five: a backend of two comes up. The classes reserve six."""

    async def scenario() -> None:
        first = reporting(3)
        late = Late(first.respond)
        late.info = {"max_running_requests": 2}
        admission = {"classes": {"system": {"reserved_floor": 3}, "interactive": {"reserved_floor": 3}}}
        async with world(first, late, slots=None, admission=admission, ready=False) as w:
            await w.wait_until(lambda: w.state.config_fallback)
            assert "as many requests in flight as the fleet has slots (reserve less" in (w.state.config_fallback or "")
            connections = [await w.start_request() for _ in range(5)]
            await w.wait_until(lambda: (w.state.in_flight, w.state.waiting) == (3, 2))
            await late.start()
            await w.wait_until(lambda: (w.state.in_flight, w.state.waiting) == (5, 0))
            first.respond.open.set()
            assert [(await connection.read_response())[0] for connection in connections] == [200] * 5

    run(scenario())


def test_the_question_waits_for_the_last_backend_and_for_a_slot() -> None:
    """Each of the two backends alone would be too small."""

    async def scenario() -> None:
        first, late = reporting(3), reporting(3)
        async with world(first, late, slots=None, admission={"classes": TWO_AND_TWO}, ready=False) as w:
            await w.wait_until(lambda: w.gateway.scheduler.fleet.all_polled)
            assert (w.state.mode, w.state.config_fallback) == ("priority", None)

    run(scenario())


class Late(Backend):
    """A backend that has a port, but does not listen when the gateway starts."""

    async def start(self) -> None:
        known = self.port
        await super().start()
        if not known:
            await self.stop()


def test_classes_are_taken_up_when_the_reservations_fit_at_last(caplog: pytest.LogCaptureFixture) -> None:
    """There are three slots until the second backend starts. Classes stay in use when it goes down again."""

    async def scenario() -> None:
        first, late = reporting(3), Late()
        late.info = {"max_running_requests": 1}
        async with world(first, late, slots=None, admission={"classes": TWO_AND_TWO}, ready=False) as w:
            await w.wait_until(lambda: w.state.config_fallback)
            here = await w.start_request(x_smg_priority="bulk")
            await w.wait_until(lambda: w.state.in_flight)
            await first.stop()
            await w.wait_until(lambda: not w.state.ready)
            assert w.state.mode == "legacy", "a fleet without slots is no sign that reservations fit"
            assert (await here.read_response())[0] in (502, 503)
            await first.start()
            await late.start()
            await w.wait_until(lambda: w.state.mode == "priority")
            assert (w.state.capacity, w.state.config_fallback) == (4, None)
            assert msgspec.json.decode((await w.request("/health", method="GET"))[2]) == {"status": "ok"}
            await late.stop()
            await w.wait_until(lambda: w.state.capacity == 3)
            assert w.state.mode == "priority"

    run(scenario())
    assert "the reservations fit now: serving with classes" in caplog.messages


def test_clamped_reservations(caplog: pytest.LogCaptureFixture) -> None:
    """Each class keeps floor(2 x 3 / 4) = 1 slot, which leaves one slot unreserved."""

    async def scenario() -> None:
        admission = {"classes": TWO_AND_TWO, "on_overcommit": "clamp"}
        async with world(reporting(3), slots=None, admission=admission) as w:
            await w.wait_until(lambda: "are scaled down" in caplog.text)
            assert (w.state.mode, w.state.config_fallback) == ("priority", None)
            reserved = {"system": 1, "interactive": 1, "default": 0, "bulk": 0}
            assert w.state.pools["m"].reserved == reserved
            assert w.state.pools["m"].desired == {**reserved, "system": 2, "interactive": 2}
            lines = (await w.request("/metrics", method="GET"))[2].decode().splitlines()
            assert 'maitred_scheduler_reserved_effective{class="system",model="m"} 1.0' in lines

    run(scenario())
    assert (
        "capacity of model `m` (3) is below the configured reservations: "
        "system 1 instead of 2, interactive 1 instead of 2, 1 unreserved" in caplog.messages
    )


def test_a_shrink_scales_reservations_down_and_recovery_restores_them(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        backend = reporting(8)
        async with world(backend, slots=None, admission={"classes": TWO_AND_TWO}) as w:
            assert sum(w.state.pools["m"].reserved.values()) == 4
            backend.info = {"max_running_requests": 2}
            await w.wait_until(lambda: w.state.capacity == 2)
            assert w.state.mode == "priority"
            assert sum(w.state.pools["m"].reserved.values()) == 1
            backend.info = {"max_running_requests": 8}
            await w.wait_until(lambda: w.state.capacity == 8)
            assert sum(w.state.pools["m"].reserved.values()) == 4

    run(scenario())
    warned = [message for message in caplog.messages if "below the configured reservations" in message]
    assert len(warned) == 1
    assert "(2)" in warned[0]


@pytest.mark.parametrize(
    ("bulk_floor", "assumed", "mode"), [(2000, -1, "legacy"), (1000, -1, "priority"), (5, 4, "priority"), (7, 4, "priority")]
)
def test_smg_asks_before_it_knows_any_backend(bulk_floor: int, assumed: int, mode: str) -> None:
    """It compares the largest reservation of each class with 1024 or max_concurrent_requests, never with the fleet."""

    async def scenario() -> tuple[str, bool]:
        bulk = {"reserved_floor": bulk_floor, "queue_size": 3, "queue_timeout_secs": 1, "starvation_threshold_secs": 1}
        bare = {**bulk, "reserved_floor": 0, "can_preempt": False}
        admission = {
            "flavour": "smg",
            "on_overcommit": "clamp",
            "classes": {"bulk": {**bulk, "can_preempt": False}, "system": bare, "interactive": bare, "default": bare},
            "legacy": {"max_concurrent_requests": assumed},
        }
        if bulk_floor == 2000:
            admission["classes"]["default"] = {**bare, "reserved_floor": 1}
        async with world(reporting(4), slots=None, admission=admission) as w:
            return w.state.mode, w.state.config_fallback is not None

    assert run(scenario()) == (mode, mode == "legacy")


def test_what_could_not_be_started_with_cannot_be_reloaded() -> None:
    async def scenario() -> None:
        from world import admission_config

        async with world(reporting(3), slots=None, admission={"classes": {}}) as w:
            with pytest.raises(ConfigError, match=r"sum of class reservations \(4\) exceeds capacity \(3\) of model `m`"):
                w.gateway.scheduler.capacity.reconfigure(admission_config(classes=TWO_AND_TWO))
            assert sum(w.state.pools["m"].reserved.values()) == 0
            w.gateway.scheduler.capacity.reconfigure(admission_config(classes=TWO_AND_TWO, on_overcommit="clamp"))
            assert sum(w.state.pools["m"].reserved.values()) == 2

    run(scenario())
