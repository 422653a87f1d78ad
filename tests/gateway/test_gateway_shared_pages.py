"""Pages that take long to make: in steps, and once for all who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily
from world import CHAT, Backend, BackendRequest, run, run_on_sockets, world

from maitred.gateway.observe import shared_page, state_snapshots, tenant_views
from maitred.gateway.observe.shared_page import SharedPages, write_metrics


def test_who_asks_while_a_page_is_made_gets_the_next_one_with_all_others() -> None:
    async def scenario() -> None:
        made, pages = [0], SharedPages()

        def make() -> Iterator[bytes]:
            made[0] += 1
            number = made[0]
            for _ in range(3):
                yield b"%d" % number

        first = asyncio.create_task(pages.page("metrics", make))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert made == [1]
        others = [asyncio.create_task(pages.page("metrics", make)) for _ in range(20)]
        another = asyncio.create_task(pages.page("those of a tenant", make))
        others[0].cancel()
        assert await first == b"111"
        assert await asyncio.gather(*others[1:]) == [b"222"] * 19
        assert await another == b"333"

    run(scenario())


def test_the_rows_of_a_large_metric_are_written_in_steps_as_one_metric() -> None:
    family = GaugeMetricFamily("some_gauge", "What it is.", labels=["model"])
    for number in range(1_000):
        family.add_metric([f"m{number}"], number)
    parts = list(write_metrics([family, GaugeMetricFamily("other_gauge", "Another.", value=1)], lambda family: family))
    lines = b"".join(parts).decode().splitlines()
    assert len(parts) == 5
    assert lines[:2] == ["# HELP some_gauge What it is.", "# TYPE some_gauge gauge"]
    assert lines[2:1_002] == [f'some_gauge{{model="m{number}"}} {float(number)}' for number in range(1_000)]
    assert lines[1_002:] == ["# HELP other_gauge Another.", "# TYPE other_gauge gauge", "other_gauge 1.0"]


def test_the_loop_runs_while_metrics_of_many_models_are_written() -> None:
    async def scenario() -> None:
        models = tuple(f"m{number}" for number in range(64))
        async with world(Backend(models=models)) as w:
            for model in models:
                assert (await w.request(CHAT, {"model": model, "messages": []}))[0] == 200
            turns, loop = [0], asyncio.get_running_loop()

            def tick() -> None:
                turns[0] += 1
                loop.call_soon(tick)

            tick()
            pages = await asyncio.gather(*(w.request("/metrics", method="GET") for _ in range(3)))
            assert {status for status, _, _ in pages} == {200}
            assert turns[0] > 40
            arrivals = [line for line in pages[0][2].split(b"\n") if line.startswith(b"maitred_scheduler_arrivals_total")]
            assert sum(float(line.rsplit(b" ", 1)[1]) for line in arrivals) == 64

    run_on_sockets(scenario())


def test_a_metric_that_comes_in_parts_is_written_as_one() -> None:
    families = [GaugeMetricFamily("some_gauge", "What it is.", labels=["model"]) for _ in range(2)]
    for number, family in enumerate(families):
        family.add_metric([f"m{number}"], number)
    text = b"".join(write_metrics(families, lambda family: family)).decode()
    assert text.splitlines()[1:] == ["# TYPE some_gauge gauge", 'some_gauge{model="m0"} 0.0', 'some_gauge{model="m1"} 1.0']


@pytest.mark.parametrize(
    ("path", "tenant", "turns"),
    [("/metrics", "a", 120), ("/maitred/state", "", 60), ("/maitred/state", "a", 3), ("/ready", "", 3)],
)
def test_the_loop_runs_while_a_page_is_made(path: str, tenant: str, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turns are what making the page gives back to the loop; all else are a few that every page takes."""
    monkeypatch.setattr(state_snapshots, "_BACKENDS_IN_STEP", 1)
    monkeypatch.setattr(tenant_views, "_LEASES_IN_STEP", 1)

    async def scenario() -> None:
        backends = [Backend(hang, models=tuple(f"m{number}" for number in range(64))) for _ in range(4)]
        async with world(*backends, trust_tenant_header=True) as w:
            for number in range(4):
                await w.start_request({"model": f"m{number}", "messages": []}, x_smg_tenant_id="a")
            await w.wait_until(lambda: w.state.in_flight == 4)
            parts = [0]
            make = shared_page.SharedPages.page

            async def counted(self: SharedPages, key: Hashable, write: Callable[[], Iterable[bytes]]) -> bytes:
                def counting() -> Iterator[bytes]:
                    for part in write():
                        parts[0] += 1
                        yield part

                return await make(self, key, counting)

            monkeypatch.setattr(shared_page.SharedPages, "page", counted)
            tenants = {"x_smg_tenant_id": tenant} if tenant else {}
            assert (await w.request(path, method="GET", **tenants))[0] == 200
            assert parts[0] > turns

    run(scenario())


async def hang(received: BackendRequest) -> None:
    await asyncio.Event().wait()
