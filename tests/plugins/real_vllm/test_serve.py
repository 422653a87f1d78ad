"""`vllm serve` with our scheduler class behind `maitred serve`, over HTTP: what shows from outside.

Three servers after one another, with fcfs, sjf and lpm, get the same load. Requests with long answers are before it, so all of
the load waits before the first of it is admitted, and nothing depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("vllm", reason="needs vLLM: make vllm-test")

from vllm_servers import Client, Server, gateway_server, vllm_server

from maitred.plugins.vllm.__main__ import compare_steps

pytestmark = pytest.mark.timeout(600)
POLICIES = ("fcfs", "sjf", "by-priority(lpm)")
SHARED = 1024
"""Tokens that the prompts of a family share: two families do not fit into the KV memory together."""
LOAD = [(number % 4, SHARED + 32 + 24 * (7 * number % 16)) for number in range(16)]
"""Family and length of each prompt. The families take turns."""
KV_BLOCKS = 56
NUM_BLOCKERS = 4
"""Requests with long answers, one after the other: a second each, or several on a busy machine."""


class Outcome(msgspec.Struct):
    """What a server made of the load."""

    order: list[int]
    """Lengths of the prompts, in the order in which they were answered."""
    hits: float
    """Prompt tokens that were found in the prefix cache, by vLLM's counter."""
    steps: Path
    """The step log."""


class World(msgspec.Struct):
    """The servers that run now, and what those before made of the load."""

    outcomes: dict[str, Outcome]
    vllm: Server | None = None
    gateway: Server | None = None

    def ask(self, scene: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        """Play a scene with a client."""
        assert self.vllm is not None
        assert self.gateway is not None
        vllm, gateway = self.vllm, self.gateway

        async def play() -> None:
            async with Client(vllm, gateway) as client:
                await scene(client)

        asyncio.run(play())


def family_prompt(family: int, length: int) -> list[int]:
    own = length - SHARED
    return [10 + (7 * family + 31 * i) % 900 for i in range(SHARED)] + [10 + (length * 53 + 17 * i) % 900 for i in range(own)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Serve the load with each policy; the last server stays, with the gateway before it."""
    world = World({})
    try:
        for policy in POLICIES:
            stop(world)
            start(world, policy, tmp_path_factory.mktemp("servers"))
        yield world
    finally:
        stop(world)


def start(world: World, policy: str, folder: Path) -> None:
    """Start vLLM and a gateway, and serve the load."""
    outcome = world.outcomes[policy] = Outcome([], 0, folder / "steps.jsonl")
    world.vllm = vllm_server(
        folder,
        {"scheduler": policy, "record_steps": str(outcome.steps)},
        *("--max-num-seqs", "1", "--max-model-len", "1600", "--num-gpu-blocks-override", str(KV_BLOCKS)),
    )
    world.vllm.wait_until_ready("/health")
    world.gateway = gateway_server(folder, world.vllm)
    world.gateway.wait_until_ready("/ready")
    world.ask(lambda client: serve_load(client, outcome))


def stop(world: World) -> None:
    """Stop what runs."""
    for server in (world.gateway, world.vllm):
        if server is not None:
            server.stop()
    world.gateway = world.vllm = None


async def behind_blockers(client: Client, requests: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Let the requests wait, in this order, behind some that go first; return when all are answered."""
    before = await client.requests_seen()
    async with asyncio.TaskGroup() as group:
        blockers = [group.create_task(client.complete([5] * 10, 1500)) for _ in range(NUM_BLOCKERS)]
        await client.wait_for_requests(before + NUM_BLOCKERS)
        for number, request in enumerate(requests, 1):
            group.create_task(request())
            await client.wait_for_requests(before + NUM_BLOCKERS + number)
        assert not all(blocker.done() for blocker in blockers), "the load must wait before any of it is served"
        for blocker in blockers:
            blocker.cancel()  # its client leaves, and vLLM goes on to the next


async def serve_load(client: Client, outcome: Outcome) -> None:
    async def ask(family: int, length: int) -> None:
        await client.complete(family_prompt(family, length), 8)
        outcome.order.append(length)

    before = await client.metric("prefix_cache_hits_total")
    await behind_blockers(client, [lambda family=family, length=length: ask(family, length) for family, length in LOAD])
    outcome.hits = await client.metric("prefix_cache_hits_total") - before


def test_the_order_is_that_of_the_policy(world: World) -> None:
    arrivals = [length for _, length in LOAD]
    assert len(set(arrivals)) == 16
    assert world.outcomes["fcfs"].order == arrivals
    assert world.outcomes["sjf"].order == sorted(arrivals)


def test_with_lpm_the_prefix_hit_counter_rises(world: World) -> None:
    """Of each family three prompts find what the first has computed, if they come one after the other."""
    assert world.outcomes["by-priority(lpm)"].hits >= 12 * SHARED
    assert world.outcomes["fcfs"].hits <= 4 * SHARED


def test_a_stream_passes_through_the_gateway(world: World) -> None:
    async def scene(client: Client) -> None:
        events = [event async for event in client.stream_chat("Tell me a story.", 200)]
        texts = [event["choices"][0]["delta"].get("content") for event in events[:-1] if event["choices"]]
        assert sum(map(bool, texts)) > 5, "many events, and not one with everything"
        assert events[-2]["usage"]["completion_tokens"] == 200
        assert events[-1] == {"done": True}

    world.ask(scene)


def test_a_client_that_leaves_is_an_abort_in_vllm(world: World) -> None:
    """vLLM has no counter of aborts. They show in its others: nothing runs and no memory is held, although the answer has few
    of its 1,500 tokens, and no request was finished."""

    async def scene(client: Client) -> None:
        finished = await client.metric("request_success_total")
        generated = await client.metric("generation_tokens_total")
        async with aclosing(client.stream_chat("Go on for long.", 1500)) as events:
            for _ in range(5):
                await anext(events)
            assert await client.metric("num_requests_running") == 1
        await client.wait_until("num_requests_running", lambda running: running == 0)
        await client.wait_until("kv_cache_usage_perc", lambda usage: usage == 0)
        assert 4 <= await client.metric("generation_tokens_total") - generated < 1000
        assert await client.metric("request_success_total") == finished

    world.ask(scene)


def test_the_gateway_reads_the_kv_memory_from_vllms_metrics(world: World) -> None:
    async def scene(client: Client) -> None:
        page = await client.gateway_json("/programs/metrics")
        (memory,) = page["backends"].values()
        info = await client.vllm_metrics()
        assert f'num_gpu_blocks="{KV_BLOCKS}"' in info
        assert memory["cache_config"]["total_tokens_capacity"] == KV_BLOCKS * 32
        assert memory["metrics"]["prefix_cache_hits"] == await client.metric("prefix_cache_hits_total")

    world.ask(scene)


def test_classes_of_the_gateway_are_priorities_in_vllms_queue(world: World) -> None:
    async def scene(client: Client) -> None:
        order: list[str] = []

        async def ask(name: str) -> None:
            headers = {"x-smg-priority": name}
            await client.complete([20 + len(name)] * 40, 4, headers=headers)
            order.append(name)

        names = ["bulk", "default", "interactive", "system"]
        await behind_blockers(client, [lambda name=name: ask(name) for name in names])
        assert order == names[::-1]

    world.ask(scene)


def test_the_simulator_makes_the_steps_that_the_server_made(world: World) -> None:
    """Also those of the scenes above: clients that left, and classes."""
    for outcome in world.outcomes.values():
        pairs = compare_steps(outcome.steps)
        assert len(pairs) > 100
        assert [pair for pair in pairs if pair.vllm != pair.simulator] == []
