"""Learned slots live: readings of engines, where slots come from, what is told of it, and the looks."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from world import NOT_FOUND, STREAM_HEAD, Backend, BackendRequest, GatewayWorld, chunk, run, whole, world

from maitred.admission.learned_slots import EngineReading, LearnedLimit, SlotState
from maitred.gateway import GatewayConfig
from maitred.scheduler.engines.readings import parse_engine_reading
from maitred.scheduler.engines.server_info import parse_reported_slots
from maitred.scheduler.interface import Backend as FleetBackend
from maitred.scheduler.interface import LocalScheduler
from maitred.testing.world.invariants import check_replay

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 16.0
vllm:num_requests_running{engine="1",model_name="m"} 15.0
vllm:num_requests_waiting{engine="0",model_name="m"} 9.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 1234.0
"""


@pytest.mark.parametrize(
    ("page", "reading"),
    [
        (VLLM, EngineReading(31, 4, 0.375, 2, 1234)),
        (b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n", EngineReading(3, 1)),
        (
            b'sglang:num_running_reqs{x="}"} 7\nsglang:num_queue_reqs 2\nsglang:token_usage 0.1\n',
            EngineReading(7, 2, 0.1),
        ),
        (b"vllm:num_requests_running nan\n", None),
        (b"vllm:num_requests_running 1e99\n", None),
        (b"vllm:num_requests_waiting 3\n", None),
        (b"", None),
        (b"\xff\xfe", None),
    ],
)
def test_what_a_page_says(page: bytes, reading: EngineReading | None) -> None:
    assert parse_engine_reading(page) == reading


@pytest.mark.parametrize(
    ("answer", "slots"),
    [
        ({"vllm_config": {"scheduler_config": {"max_num_seqs": 48}}}, 48),
        ({"vllm_config": {"scheduler_config": {"max_num_seqs": 0}}}, None),
        ({"vllm_config": {"scheduler_config": None}}, None),
        ({"vllm_config": "scheduler_config=SchedulerConfig(max_num_seqs=48)"}, None),
    ],
)
def test_vllm_reports_its_limit_where_it_has_the_page(answer: object, slots: int | None) -> None:
    assert parse_reported_slots(json.dumps(answer).encode()) == slots


class Engine(Backend):
    """An engine that runs `limit` requests at once and publishes what runs and what waits: 10 tokens per answer."""

    def __init__(self, limit: int, *, has_metrics: bool = True, reported: int | None = None) -> None:
        super().__init__(self.stream)
        self.limit, self.has_metrics = limit, has_metrics
        self.info = None if reported is None else {"max_running_requests": reported}
        self.running = self.waiting = self.generated = 0
        self._room = asyncio.Condition()

    async def stream(self, received: BackendRequest) -> None:
        self.waiting += 1
        async with self._room:
            await self._room.wait_for(lambda: self.running < self.limit)
            self.waiting -= 1
            self.running += 1
        try:
            await received.send(STREAM_HEAD)
            for _ in range(10):
                await asyncio.sleep(0.01)  # the time of a token: speeds are learned from it
                self.generated += 1
                await received.send(chunk(b'data: {"choices":[]}\n\n'))
            await received.send(b"0\r\n\r\n")
        finally:
            async with self._room:
                self.running -= 1
                self._room.notify()

    @property
    def metrics(self) -> bytes | None:
        if not self.has_metrics:
            return None
        page = b"vllm:num_requests_running %d\nvllm:num_requests_waiting %d\nvllm:generation_tokens_total %d\n"
        return page % (self.running, self.waiting, self.generated)

    @metrics.setter
    def metrics(self, _: bytes | None) -> None:
        pass


async def flood(w: GatewayWorld, clients: int, until: asyncio.Event) -> None:
    """Keep `clients` streams going until the event is set."""

    async def client() -> None:
        while not until.is_set():
            status, _, _ = await w.request(body={"model": "m", "stream": True, "prompt": "x"})
            assert status == 200

    await asyncio.gather(*(client() for _ in range(clients)))


@pytest.mark.parametrize("has_metrics", [True, False])
def test_a_limit_is_learned_and_told(has_metrics: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "maitred.gateway")

    async def scenario() -> str:
        engine, done = Engine(6, has_metrics=has_metrics), asyncio.Event()
        async with world(engine, slots=None, decision_log=str(tmp_path / "log")) as w:
            before = engine.metrics_polls
            await w.wait_for_polls(engine, 20)
            assert engine.metrics_polls == before, "an idle engine costs nothing"
            first = w.state.backends[0]
            assert (first.slots, first.source) == (8, "learned")
            assert first.learned is not None
            assert (first.learned.limit, first.learned.least, first.learned.most) == (None, 2, 4096)
            load = asyncio.create_task(flood(w, 40, done))
            controller = w.gateway.scheduler.fleet.backends[0].learned_slots
            assert controller is not None
            # On a busy machine the streams of the test are late by themselves, which looks like a queue in the engine.
            error = 1 if has_metrics else 3
            await w.wait_until(lambda: controller.limit is not None and abs(controller.limit - 6) <= error)
            learned = w.state.backends[0].learned
            assert learned is not None
            assert learned.last_change is not None
            assert w.state.models["m"].source == "learned"
            _, _, page = await w.request("/metrics", method="GET")
            done.set()
            await load
            return page.decode()

    page = run(scenario())
    assert 'source="learned"}' in page
    assert "maitred_backend_slots_limit{" in page
    assert "maitred_backend_slots_most{" in page
    said = [record.message for record in caplog.records if "8 slots at first, to be learned, from 2 to 4,096" in record.message]
    assert len(said) == 1
    log = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    assert list(check_replay(log, may_lack_lines=False)) == []
    assert any(b'"room":"slots"' in line for line in log)
    assert any(b'"change"' in line for line in log)


def test_what_was_recalled_of_a_backend_outlives_its_first_report_and_waits_for_one_that_is_not_known_yet() -> None:
    """A scheduler that has just begun to lead is told by its gateways before it has polled, or found, all backends."""

    async def scenario() -> None:
        async with world(Engine(6), slots=None, slots_from="learned") as w:
            scheduler = w.gateway.scheduler
            assert isinstance(scheduler, LocalScheduler)
            learning, fleet = scheduler._slot_learning, scheduler.fleet
            here, late = fleet.backends[0], "http://127.0.0.1:1"
            learning.recall({here.url: LearnedLimit(5, is_trusted=True), late: LearnedLimit(7, is_trusted=True)})

            def slots_of(backend: FleetBackend, reported: int | None) -> tuple[int, int, LearnedLimit | None]:
                backend.reported_slots = reported
                fleet.tell_slots_changed((), (backend,))
                controller = backend.learned_slots
                assert controller is not None
                return controller.slots, controller.most, controller.learned

            assert slots_of(here, None) == (5, 4096, LearnedLimit(5, is_trusted=True))
            assert slots_of(here, 16) == (5, 16, LearnedLimit(5, is_trusted=True))
            assert slots_of(here, 32) == (32, 32, None)  # It was started anew with another number.
            assert slots_of(fleet.add(late), 16) == (7, 16, LearnedLimit(7, is_trusted=True))

    run(scenario())


def test_metrics_that_show_nothing_running_while_streams_answer_are_not_believed_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Silent(Engine):
        """An engine that never sets its gauge of running requests."""

        @property
        def metrics(self) -> bytes | None:
            page = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total %d\n"
            return page % self.generated

        @metrics.setter
        def metrics(self, _: bytes | None) -> None:
            pass

    async def scenario() -> None:
        engine, done = Silent(16), asyncio.Event()
        async with world(engine, slots=None) as w:
            load = asyncio.create_task(flood(w, 40, done))
            controller = w.gateway.scheduler.fleet.backends[0].learned_slots
            assert controller is not None
            await w.wait_until(lambda: controller.state is SlotState.BLIND)
            done.set()
            await load

    run(scenario())
    said = [record.message for record in caplog.records if "so they are not believed" in record.message]
    assert len(said) == 1
    assert "its metrics show 0 running requests while" in said[0]


def test_looks_are_close_while_requests_wait() -> None:
    async def scenario() -> None:
        engine, done = Engine(4), asyncio.Event()
        async with world(engine, slots=None) as w:
            load = asyncio.create_task(flood(w, 40, done))
            await w.wait_until(lambda: engine.metrics_polls)
            before = engine.metrics_polls
            await w.wait_until(lambda: engine.metrics_polls >= before + 4)
            done.set()
            await load
            controller = w.gateway.scheduler.fleet.backends[0].learned_slots
            assert controller is not None
            assert not len(w.gateway.scheduler.fleet.backends[0].own_requests)

    run(scenario())


class PickyEngine(Engine):
    """An engine that notes which pages of metrics are asked for, and has only some."""

    def __init__(self, *, has_samples: bool) -> None:
        super().__init__(4)
        self.has_samples = has_samples
        self.asked: list[str] = []

    async def _answer(self, received: BackendRequest) -> None:
        path = received.head.split()[1].decode()
        if path.startswith("/metrics"):
            self.asked.append(path)
            if "?" in path and not self.has_samples:
                await received.send(NOT_FOUND)
                return
        await super()._answer(received)


@pytest.mark.parametrize("has_samples", [True, False])
def test_only_the_samples_that_are_read_are_asked_for_where_the_engine_can(has_samples: bool) -> None:
    async def scenario() -> list[str]:
        engine, done = PickyEngine(has_samples=has_samples), asyncio.Event()
        async with world(engine, slots=None) as w:
            load = asyncio.create_task(flood(w, 20, done))
            controller = w.gateway.scheduler.fleet.backends[0].learned_slots
            assert controller is not None
            await w.wait_until(lambda: controller.limit is not None)
            done.set()
            await load
        return engine.asked

    asked = run(scenario())
    samples = [path for path in asked if path.startswith("/metrics/?name[]=vllm:num_requests_running&name[]=")]
    assert len(samples) > 2 if has_samples else len(samples) == 1
    assert has_samples or len(asked) > 3


def test_an_engine_of_which_nothing_can_be_seen_is_a_guess_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> str:
        release = asyncio.Event()

        async def silent(received: BackendRequest) -> None:
            await release.wait()
            await received.send(whole(b"{}"))

        async with world(Backend(silent), slots=None) as w:
            load = [asyncio.create_task(w.request(body={"model": "m"})) for _ in range(40)]
            await w.wait_until(lambda: w.state.backends[0].slots == 32)
            learned = w.state.backends[0].learned
            assert learned is not None
            assert (learned.state, learned.last_change) == ("guessed", "guessed")
            _, _, page = await w.request("/metrics", method="GET")
            release.set()
            await asyncio.gather(*load)
            return page.decode()

    page = run(scenario())
    assert [line for line in page.splitlines() if 'state="guessed"' in line and line.endswith(" 1.0")]
    warnings = [record.message for record in caplog.records if "a guess" in record.message]
    assert len(warnings) == 1
    assert "32 slots, which is a guess: it has no metrics and its answers are not streamed" in warnings[0]


def test_sources_in_order() -> None:
    async def source(reported: int | None, **keys: object) -> tuple[int, str]:
        async with world(Engine(9, reported=reported), **{"slots": None, **keys}) as w:  # type: ignore[arg-type]
            wanted = reported is not None and "slots" not in keys
            await w.wait_until(lambda: not wanted or w.gateway.scheduler.fleet.backends[0].reported_slots == reported)
            state = w.state.backends[0]
            return state.slots, state.source

    async def scenario() -> None:
        assert await source(9, slots=5) == (5, "configured")
        assert await source(9) == (9, "reported")
        assert await source(None) == (8, "learned")
        assert await source(None, admission={"mode": "legacy"}) == (64, "default")
        assert await source(None, admission={"slot_cost": "tokens"}) == (64, "default")

    run(scenario())


def test_a_guess_is_a_warning_and_learned_in_any_case_begins_with_what_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with world(Engine(9), slots=None, slots_from="fixed") as w:
            assert (w.state.backends[0].slots, w.state.backends[0].source) == (64, "default")
        async with world(Engine(9, reported=9), slots=None, slots_from="learned") as w:
            await w.wait_until(lambda: w.state.backends[0].slots == 9)
            learned = w.state.backends[0].learned
            assert learned is not None
            assert (learned.least, learned.most) == (2, 9)

    run(scenario())
    warnings = [record.message for record in caplog.records if "a guess" in record.message]
    assert len(warnings) == 1
    assert "64 slots, which is a guess: it reports no number" in warnings[0]


def test_a_number_and_learning_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="slots_per_backend and slots: learned contradict"):
        GatewayConfig(slots_per_backend=3, slots="learned")


def test_backends_with_free_slots_are_preferred() -> None:
    async def scenario() -> None:
        small, large = Engine(2, reported=2), Engine(6, reported=6)
        done = asyncio.Event()
        async with world(small, large, slots=None) as w:
            await w.wait_until(lambda: w.state.capacity == 8)
            load = asyncio.create_task(flood(w, 30, done))
            most = 0
            for _ in range(60):
                await asyncio.sleep(0.01)  # looks again and again while the load goes on
                most = max(
                    most,
                    *(
                        len(b.requests) - w.gateway.scheduler.fleet.pools.backend_slots(b).slots
                        for b in w.gateway.scheduler.fleet.backends
                    ),
                )
            done.set()
            await load
            assert most <= 0
            assert small.received
            assert large.received

    run(scenario())


def test_a_restart_forgets_the_limit() -> None:
    async def scenario() -> None:
        engine, done = Engine(4), asyncio.Event()
        async with world(engine, slots=None) as w:
            load = asyncio.create_task(flood(w, 40, done))
            controller = w.gateway.scheduler.fleet.backends[0].learned_slots
            assert controller is not None
            await w.wait_until(lambda: controller.limit is not None)
            done.set()
            await load
            await engine.stop()
            await w.wait_until(lambda: not w.state.ready)
            assert controller.limit is None
            await engine.start()
            await w.wait_until(lambda: w.state.ready)

    run(scenario())


def test_models_share_one_backend() -> None:
    async def scenario() -> None:
        engine = Engine(8)
        engine.models = ("m", "adapter")
        done = asyncio.Event()
        async with world(engine, slots=None) as w:

            async def client(model: str) -> None:
                while not done.is_set():
                    await w.request(body={"model": model, "stream": True})

            backend = w.gateway.scheduler.fleet.backends[0]

            def slots() -> list[int]:
                return sorted(pool.capacity or 0 for pool in w.state.pools.values())

            load = [asyncio.create_task(client(model)) for model in ("m", "adapter") for _ in range(20)]
            await w.wait_until(lambda: backend.learned_slots is not None and backend.learned_slots.limit is not None)
            await w.wait_until(lambda: len(slots()) == 2 and sum(slots()) <= w.state.backends[0].slots + 1)
            assert slots()[1] <= slots()[0] + 1
            done.set()
            await asyncio.gather(*load)

    run(scenario())


def test_reservations_beyond_the_first_guess_do_not_turn_classes_off() -> None:
    async def scenario() -> None:
        async with world(Engine(80), slots=None, admission={"classes": {"interactive": {"reserved_floor": 40}}}) as w:
            await w.wait_until(lambda: w.state.capacity == 8)
            assert (w.state.mode, w.state.config_fallback) == ("priority", None)
            assert w.state.pools["m"].reserved["interactive"] == 7

    run(scenario())
