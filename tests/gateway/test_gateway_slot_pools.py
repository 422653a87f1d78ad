"""Models that run in one batch share one pool of slots: a base model with its adapters, and several names of one model."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from world import Backend, BackendRequest, GatedAnswer, run, whole, world

from maitred.scheduler.backends.slot_pools import base_models

Card = dict[str, Any]


def vllm_adapter(name: str, parent: str = "base") -> Card:
    return {"id": name, "root": f"/adapters/{name}", "parent": parent}


BASE: Card = {"id": "base", "root": "/models/base", "parent": None}


@pytest.mark.parametrize(
    ("cards", "bases"),
    [
        ([BASE, vllm_adapter("a"), vllm_adapter("b")], {"base": "base", "a": "base", "b": "base"}),
        ([vllm_adapter("a"), BASE], {"a": "base", "base": "base"}),
        ([vllm_adapter("a")], {"a": "base"}),  # the base is hidden
        ([BASE, vllm_adapter("a", parent="/models/base")], {"base": "base", "a": "base"}),
        ([BASE, vllm_adapter("a"), vllm_adapter("of-a", parent="a")], {"base": "base", "a": "base", "of-a": "base"}),
        # NIM: the root of an adapter is the id of its base.
        ([{"id": "a", "root": "b", "parent": None}, {"id": "b", "root": "b", "parent": None}], {"a": "b", "b": "b"}),
        # vLLM with two names of one model.
        ([{"id": "x", "root": "/m"}, {"id": "y", "root": "/m"}, {"id": "z", "root": "/n"}], {"x": "x", "y": "x", "z": "z"}),
        ([{"id": "x"}, {"id": "y"}], {"x": "x", "y": "y"}),
        ([{"id": "x", "root": "x"}, {"id": "y", "root": "y"}], {"x": "x", "y": "y"}),
        ([{"id": "x", "parent": 3, "root": []}, {"id": "y", "parent": "p" * 2000}], {"x": "x", "y": "y"}),
        ([vllm_adapter("a", parent="b"), vllm_adapter("b", parent="a")], {"a": "a", "b": "a"}),  # a circle
    ],
)
def test_what_cards_say_of_their_base(cards: list[Card], bases: dict[str, str]) -> None:
    assert base_models({card["id"]: card for card in cards}) == bases


class Engine(Backend):
    """An engine that lists `cards`, reports `slots`, and holds its answers until `gate.open` is set."""

    def __init__(self, *cards: Card, slots: int = 4) -> None:
        self.gate = GatedAnswer()
        super().__init__(self.gate)
        self.cards = list(cards)
        self.info = {"max_running_requests": slots}

    async def _answer(self, received: BackendRequest) -> None:
        if received.head.startswith(b"GET /v1/models"):
            await received.send(whole(msgspec.json.encode({"object": "list", "data": self.cards})))
        else:
            await super()._answer(received)

    @property
    def models_received(self) -> list[str]:
        return [msgspec.json.decode(received.body)["model"] for received in self.received]


CLASSES = {"classes": {"interactive": {"can_preempt": True}}, "on_preempt": "retry"}


@pytest.mark.parametrize("slots", [None, 4])
def test_adapters_of_an_engine_share_its_slots_with_the_base(slots: int | None) -> None:
    async def scenario() -> None:
        engine = Engine(BASE, *(vllm_adapter(name) for name in "abc"), slots=4)
        async with world(engine, slots=slots, admission=CLASSES) as w:
            await w.wait_until(lambda: w.state.capacity == 4)
            names = ["base", "a", "b", "c"]
            bulk = [asyncio.create_task(w.request(body={"model": names[n % 4]}, x_smg_priority="bulk")) for n in range(12)]
            await w.wait_until(lambda: (w.state.in_flight, w.state.waiting, len(engine.received)) == (4, 8, 4))
            assert list(w.state.pools) == ["base"]
            assert {name: model.slots for name, model in w.state.models.items()} == dict.fromkeys(names, 4)
            # A chat for one adapter takes the slot of bulk for another.
            chat = asyncio.create_task(w.request(body={"model": "c"}, x_smg_priority="interactive"))
            await w.wait_until(lambda: len(engine.received) == 5)
            assert engine.models_received[4] == "c"
            engine.gate.open.set()
            assert [status for status, _, _ in await asyncio.gather(chat, *bulk)] == [200] * 13

    run(scenario())


def test_an_adapter_that_is_loaded_later_joins_and_one_that_is_dropped_leaves() -> None:
    async def scenario() -> None:
        engine = Engine(BASE)
        engine.gate.open.set()
        async with world(engine, slots=None) as w:
            await w.wait_until(lambda: w.state.capacity == 4)
            assert (await w.request(body={"model": "late"}))[0] == 404
            engine.cards.append(vllm_adapter("late"))
            await w.wait_until(lambda: "late" in w.state.models)
            assert (await w.request(body={"model": "late"}))[0] == 200
            assert (w.state.capacity, list(w.state.pools)) == (4, ["base"])
            engine.cards.pop()
            await w.wait_until(lambda: "late" not in w.state.models)
            assert (await w.request(body={"model": "late"}))[0] == 503
            assert (await w.request(body={"model": "base"}))[0] == 200
            engine.cards[0] = {"id": "other"}
            await w.wait_until(lambda: list(w.state.pools) == ["other"])

    run(scenario())


def test_a_request_whose_adapter_is_unloaded_while_it_waits_is_told_so() -> None:
    async def scenario() -> None:
        engine = Engine(BASE, vllm_adapter("a"), vllm_adapter("b"), slots=1)
        async with world(engine, slots=None) as w:
            await w.wait_until(lambda: w.state.capacity == 1)
            requests = [asyncio.create_task(w.request(body={"model": "base"}))]
            await w.wait_until(lambda: len(engine.received) == 1)
            requests += [asyncio.create_task(w.request(body={"model": name})) for name in ("a", "b")]
            await w.wait_until(lambda: w.state.waiting == 2)
            del engine.cards[1]
            await w.wait_until(lambda: "a" not in w.state.models)
            engine.gate.open.set()
            (held, (status, _, answer), other) = await asyncio.gather(*requests)
            assert (held[0], status, other[0]) == (200, 503, 200)
            assert msgspec.json.decode(answer)["error"]["message"] == "no backend that serves `a` is up"
            assert engine.models_received == ["base", "b"]

    run(scenario())


def test_a_pool_has_the_slots_of_all_its_backends_and_routing_goes_by_the_model() -> None:
    async def scenario() -> None:
        both, plain = Engine(BASE, vllm_adapter("a"), slots=4), Engine(BASE, slots=3)
        for engine in (both, plain):
            engine.gate.open.set()
        async with world(both, plain, slots=None) as w:
            await w.wait_until(lambda: w.state.capacity == 7)
            for _ in range(5):
                assert (await w.request(body={"model": "a"}))[0] == 200
            assert both.models_received == ["a"] * 5
            await both.stop()
            await w.wait_until(lambda: w.state.capacity == 3)
            status, _, body = await w.request(body={"model": "a"})
            assert (status, msgspec.json.decode(body)["error"]["code"]) == (503, "no_healthy_backend")
            assert (await w.request(body={"model": "base"}))[0] == 200

    run(scenario())


def test_learned_slots_are_those_of_the_engine_and_not_of_each_adapter() -> None:
    async def scenario() -> None:
        engine = Engine(BASE, vllm_adapter("a"), vllm_adapter("b"))
        engine.info = None
        engine.gate.open.set()
        async with world(engine, slots=None) as w:
            await w.wait_until(lambda: w.state.capacity == 8)
            await asyncio.gather(*(w.request(body={"model": name}) for name in ("base", "a", "b")))
            assert w.gateway.scheduler.fleet.backends[0].slot_shares.keys() <= {"base"}

    run(scenario())


def test_models_that_say_nothing_of_each_other_have_a_pool_each() -> None:
    async def scenario() -> None:
        engine = Engine({"id": "m"}, {"id": "n"})
        async with world(engine, slots=None) as w:
            await w.wait_until(lambda: w.state.capacity == 8)
            assert list(w.state.pools) == ["m", "n"]

    run(scenario())
