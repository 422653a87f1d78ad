"""`maitred serve --workers 2 --scheduler ADDRESS` as processes: pages of the whole, and what a killed worker leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from cluster_world import SECRET, SLOTS, HeldAnswers, cluster
from test_workers import Served, started
from world import run_on_sockets

from maitred.gateway.cluster.linked_workers import WORKER_PROCESS

FLAGS = ("--workers", "2", "--name", "gw", "--admission", "priority", "--access-log", "--slots-per-backend", str(SLOTS))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
def test_workers_of_a_scheduler_elsewhere_show_the_whole_and_give_back_what_a_killed_one_had(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = HeldAnswers()
        async with cluster(engine, schedulers=1) as c:
            (scheduler,) = c.schedulers
            assert scheduler.host is not None
            address, books = str(scheduler.link_address), lambda: scheduler.host.end.books  # type: ignore[union-attr]
            flags = (*FLAGS, "--backend", c.backend.url, "--scheduler", address)
            async with started(tmp_path, *flags, env={"MAITRED_SCHEDULER__SECRET": SECRET}) as w:
                first = [asyncio.create_task(w.request()) for _ in range(SLOTS)]
                await c.until(lambda: engine.now == SLOTS)
                waiting = [asyncio.create_task(w.request()) for _ in range(4)]
                await c.until(lambda: len(books().by_ticket) == SLOTS + 4)
                names = {gateway.id[0] for gateway in books().connected}
                assert names == {"gw", "gw/worker 1", "gw/worker 2"}
                for _ in range(4):  # Each may come to another worker.
                    cluster_state = (await w.page("/maitred/state"))["cluster"]
                    assert (cluster_state["mode"], cluster_state["name"]) == ("linked", "gw")
                    by_worker = cluster_state["gateways"]
                    assert [each["name"] for each in by_worker] == ["worker 1", "worker 2"]
                    assert sum(each["in_flight"] for each in by_worker) == SLOTS
                    assert sum(each["waiting"] for each in by_worker) == 4
                live = await w.page("/maitred/live")
                assert sum(each["waiting"] for each in live["state"]["cluster"]["gateways"]) == 4
                held = {gateway.id[0]: len(gateway.requests) for gateway in books().connected}
                victim = _worker_with_requests(w, held)
                os.kill(victim, signal.SIGKILL)
                await w.logged("is started anew")
                engine.go_on.set()
                ends = await asyncio.gather(*first, *waiting, return_exceptions=True)
                assert engine.most == SLOTS
                assert all(end[0] == 200 if isinstance(end, tuple) else isinstance(end, OSError | EOFError) for end in ends)
                assert [(await w.request())[0] for _ in range(6)] == [200] * 6, "the slots are back"
                answered = 6 + sum(isinstance(end, tuple) for end in ends)
                for _ in range(4):
                    _, metrics = await w.request("/metrics", b"", "GET")
                    line = b'maitred_http_responses_total{error_code="",status_code="200"} %.1f' % answered
                    assert line in metrics
                said = "path=/v1/chat/completions status=200"
                await c.until(lambda: sum(said in line for line in w.log) >= answered)  # The lines come by way of the parent.

    run_on_sockets(scenario())


def _worker_with_requests(w: Served, held: dict[str, int]) -> int:
    """Return the process of a worker that has requests."""
    number = b"1" if held["gw/worker 1"] else b"2"
    for process in w.workers():
        arguments = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if arguments[arguments.index(WORKER_PROCESS.encode()) + 2] == number:
            return process
    raise AssertionError(number)
