"""Flow control live: what the gateway has sent counts between two polls of the engine."""

from __future__ import annotations

import asyncio

from world import Backend, BackendRequest, run, whole, world

FLOW = {"saturation_detector": "utilization", "queue_depth_threshold": 1}


def test_a_place_that_becomes_free_is_given_away_before_the_next_poll() -> None:
    async def scenario() -> None:
        may_end = asyncio.Semaphore(0)

        async def respond(received: BackendRequest) -> None:
            await may_end.acquire()
            await received.send(whole(b"{}"))

        engine = Backend(respond)
        engine.metrics = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        admission = {"mode": "flow-control", "flow_control": FLOW}
        async with world(engine, slots=None, admission=admission, health_interval_secs=3600.0) as w:
            fleet, watch = w.gateway.scheduler.fleet, w.gateway.scheduler.watch
            sent = [asyncio.create_task(w.request(body={"model": "m"})) for _ in range(2)]
            await w.wait_until(lambda: len(engine.received) == 2)
            engine.metrics = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n"
            await watch.poll_now(fleet.backends[0])
            polls = engine.metrics_polls
            sent.append(asyncio.create_task(w.request(body={"model": "m"})))
            await w.wait_until(lambda: w.state.waiting == 1)
            may_end.release()
            await w.wait_until(lambda: len(engine.received) == 3)
            sent.append(asyncio.create_task(w.request(body={"model": "m"})))
            await w.wait_until(lambda: w.state.waiting == 1)
            assert len(engine.received) == 3, "the engine has two again: what was sent fills its queue"
            assert engine.metrics_polls == polls
            for _ in range(3):
                may_end.release()
            assert [status for status, _, _ in await asyncio.gather(*sent)] == [200] * 4

    run(scenario())
