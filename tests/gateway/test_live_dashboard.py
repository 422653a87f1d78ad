"""The dashboard's stream: what it shows, who may see it, and what it costs."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import Backend, ClientConnection, GatedAnswer, GatewayWorld, apart, run, world

from maitred.core.histogram import DURATION_BOUNDS
from maitred.gateway.dashboard import live_feed
from maitred.gateway.dashboard.changes import changes
from maitred.gateway.dashboard.document import dashboard_document
from maitred.gateway.dashboard.latency_window import LatencyWindow, percentile_ms
from maitred.routing import RoutingConfig

KEYS: dict[str, Any] = {"api_key": "shared", "tenant_api_keys": {"acme": "of-acme"}}
TREES = st.recursive(st.none() | st.integers(0, 3), lambda below: st.dictionaries(st.sampled_from("abc"), below, max_size=3))
STATES = st.dictionaries(st.sampled_from("abc"), TREES, max_size=3)


def patched(state: Any, patch: Any) -> Any:
    """What RFC 7396 says."""
    if not isinstance(patch, dict):
        return patch
    result = dict(state) if isinstance(state, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = patched(result.get(name), value)
    return result


@given(STATES, STATES)
def test_a_patch_makes_one_state_of_another(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert patched(patched({}, before), changes(before, after)) == patched({}, after)
    assert changes(after, after) == {}


class Watcher:
    """A client that follows the stream."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.status = 0
        self.state: dict[str, Any] = {}
        self.kinds: list[str] = []

    async def next(self) -> str:
        """Take the next event, and return its kind; "" at the end."""
        while True:
            piece = (await self._connection.read_chunk()).decode()
            if not piece:
                return ""
            found = re.match(r"event: (\w+)\ndata: (.*)\n\n", piece)
            if found is not None:
                break
        kind, data = found[1], msgspec.json.decode(found[2])
        self.state = patched({} if kind == "whole" else self.state, data)
        self.kinds.append(kind)
        return kind


async def watch(w: GatewayWorld, key: str | None = None) -> Watcher:
    connection = await w.connect()
    named = {} if key is None else {"authorization": f"Bearer {key}"}
    await connection.send_request("/maitred/events", b"", "GET", **named)
    watcher = Watcher(connection)
    watcher.status, _ = await connection.read_head()
    return watcher


def test_the_stream_has_the_whole_first_and_then_what_changes() -> None:
    async def scenario() -> None:
        gate = GatedAnswer()
        async with world(Backend(gate), slots=1) as w:
            watcher = await watch(w)
            assert await watcher.next() == "whole"
            assert watcher.state["state"]["in_flight"] == 0
            first = await w.start_request()
            await apart()
            second = await w.start_request(x_request_id="<b>mine</b>", x_smg_priority="bulk")
            assert await watcher.next() == "changes"
            assert watcher.state["state"]["pools"]["m"]["held_by"]["default"] == 1
            queue = watcher.state["queues"]["bulk"]
            assert queue["waiting"] == 1
            assert queue["oldest"][0]["id"] == "<b>mine</b>"
            since = queue["oldest"][0]["since"]
            assert 0 <= watcher.state["at"] - since <= 1.2
            assert await watcher.next() == "changes"
            assert watcher.state["queues"]["bulk"]["oldest"][0]["since"] == since
            gate.open.set()
            for each in (first, second):
                await each.read_response()
            await watcher.next()
            assert "bulk" not in watcher.state["queues"]
            assert watcher.state["state"]["classes"]["bulk"]["completed"] == 1
            assert watcher.kinds == ["whole", "changes", "changes", "changes"]

    run(scenario())


def test_all_viewers_share_a_look_and_nobody_costs_none() -> None:
    async def scenario() -> None:
        async with world() as w:
            looks, look = [0], w.gateway._dashboard.feed.look

            async def counted() -> bytes:
                looks[0] += 1
                return await look()

            w.gateway._dashboard.feed.look = counted
            await asyncio.sleep(5)
            assert looks == [0]
            watchers = [await watch(w) for _ in range(5)]
            for _ in range(3):
                await asyncio.gather(*(each.next() for each in watchers))
            assert looks[0] <= 4
            for each in watchers:
                each._connection.disconnect()
            await w.wait_until(lambda: not w.gateway._dashboard.feed.num_viewers)
            await asyncio.sleep(2)
            seen = looks[0]
            await asyncio.sleep(5)
            assert looks[0] == seen

    run(scenario())


def test_the_last_decisions_are_kept_while_somebody_looks(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = GatedAnswer()
        log = tmp_path / "decisions"
        async with world(Backend(gate), slots=1, decision_log=str(log)) as w:
            watcher = await watch(w)
            await watcher.next()
            assert watcher.state["decisions"] == []
            asked = [await w.start_request(x_request_id="first")]
            await apart()
            asked.append(await w.start_request(x_request_id="<b>", x_smg_priority="bulk"))
            await watcher.next()
            told = [(each["id"], each["action"], each["priority_class"]) for each in watcher.state["decisions"]]
            assert told == [("<b>", "queue", "bulk"), ("first", "admit", "default")]
            gate.open.set()
            for each in asked:
                await each.read_response()
            watcher._connection.disconnect()
            assert w.gateway._dashboard.recent.is_watching()
            await asyncio.sleep(7)
            assert not w.gateway._dashboard.recent.is_watching()
            assert (await w.request())[0] == 200
        assert log.read_bytes().count(b'"action"') == 4  # Its log has all of them once.

    run(scenario())


def test_loads_of_engines_are_read_while_somebody_looks() -> None:
    """Neither the router nor admission goes by them here."""

    async def scenario() -> None:
        backend = Backend()
        backend.metrics = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.25\n"
        async with world(backend, routing=RoutingConfig(policy="round-robin")) as w:
            assert w.gateway.scheduler.fleet.backends[0].load is None
            watcher = await watch(w)
            for _ in range(12):
                await watcher.next()
            (engine,) = watcher.state["backends"].values()
            assert (engine["load"]["running"], engine["load"]["kv_usage"]) == (3, 0.25)
            watcher._connection.disconnect()
            await asyncio.sleep(20)
            assert w.gateway.scheduler.fleet.backends[0].load is None

    run(scenario())


def test_a_look_that_fails_ends_the_streams_and_the_next_one_looks_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with world() as w:
            feed = w.gateway._dashboard.feed
            look = feed.look

            async def fails() -> bytes:
                raise ZeroDivisionError("a defect")

            watcher = await watch(w)
            await watcher.next()
            feed.look = fails
            await w.wait_until(lambda: not feed.num_viewers)
            feed.look = look
            again = await watch(w)
            await again.next()
            assert "state" in again.state
        assert sum("the dashboard cannot be shown" in each.message for each in caplog.records) == 1

    run(scenario())


def test_viewers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "MAX_VIEWERS", 2)

    async def scenario() -> None:
        async with world() as w:
            watchers = [await watch(w) for _ in range(2)]
            status, headers, answered = await w.request("/maitred/events", b"", "GET")
            assert (status, headers["x-smg-error-code"]) == (503, "too_many_viewers"), answered
            watchers[0]._connection.disconnect()
            await w.wait_until(lambda: w.gateway._dashboard.feed.num_viewers == 1)
            assert (await watch(w)).status == 200

    run(scenario())


def test_who_reads_slowly_misses_changes_and_gets_the_whole() -> None:
    async def scenario() -> None:
        async with world() as w:
            watcher = await watch(w)
            await watcher.next()
            (viewer,) = w.gateway._dashboard.feed._viewers
            viewer.busy = asyncio.get_running_loop().create_future()
            await asyncio.sleep(3)
            viewer.busy.set_result(None)
            assert await watcher.next() == "whole"
            assert await watcher.next() == "changes"

    run(scenario())


def test_a_gateway_that_drains_ends_its_streams() -> None:
    async def scenario() -> None:
        async with world() as w:
            watcher = await watch(w)
            await watcher.next()
            server = w.gateway._snapshots.server
            assert server is not None
            server.is_draining = True
            while await watcher.next():
                pass
            server.is_draining = False

    run(scenario())


@pytest.mark.parametrize("path", ["/maitred/events", "/maitred/live"])
def test_what_is_shown_is_the_operators(path: str) -> None:
    async def scenario() -> None:
        async with world(admin_port=0, **KEYS) as w:
            for key, status in (("of-acme", 403), (None, 401), ("wrong", 401)):
                named = {} if key is None else {"authorization": f"Bearer {key}"}
                assert (await w.request_at(w.admin_url, path, b"", "GET", **named))[0] == status
            assert (await w.request_at(w.url, path, b"", "GET", authorization="Bearer shared"))[0] == 404
            assert (await w.request_at(w.url, "/maitred", b"", "GET"))[0] == 404
            connection = await w.connect(w.admin_url)
            await connection.send_request(path, b"", "GET", authorization="Bearer shared")
            assert (await connection.read_head())[0] == 200

    run(scenario())


def test_the_page_runs_its_own_script_and_no_other() -> None:
    async def scenario() -> tuple[dict[str, str], str]:
        async with world(**KEYS) as w:
            status, headers, page = await w.request("/maitred", b"", "GET")
            assert status == 200
            return headers, page.decode()

    headers, page = run(scenario())
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inline,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert f"{tag}-src 'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'" in policy
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "shared" not in page.split("<script>")[0]
    assert len(dashboard_document().body) < 120_000


def test_percentiles_of_the_last_ten_minutes() -> None:
    counts = [0] * (len(DURATION_BOUNDS) + 1)
    window = LatencyWindow(lambda: {"bulk": list(counts)})
    for second in range(0, 1000, 10):
        counts[4] += 10  # ten of 10 to 25 ms
        window.look(second * 1_000_000)
    points = window.points()["bulk"]
    assert list(points) == [str(second) for second in range(400, 1000, 10)]
    assert (points["500"].count, points["500"].p50_ms) == (10, 17.5)
    with pytest.raises(ValueError, match="no percentile"):
        percentile_ms([0] * len(counts), 0.5)
