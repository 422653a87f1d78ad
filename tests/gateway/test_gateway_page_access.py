"""Who sees what of the gateway's pages: the operator, a tenant, a client without a key; on one port and on two."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import msgspec
import pytest
from test_gateway_programs import body, small
from test_gateway_reload import Files, Served, reload
from world import CHAT, Backend, GatedAnswer, GatewayWorld, run, world

from maitred.gateway import GatewayConfig
from maitred.gateway.access.auth import ApiKeys
from maitred.gateway.access.inbound_head import HeadReader
from maitred.gateway.access.page_access import Page, PageAccess, Port, Shown
from maitred.wire.exchange import ApiError
from maitred.wire.messages import HeadMemo

KEYS: dict[str, Any] = {"api_key": "shared", "tenant_api_keys": {"acme": "of-acme", "bolt": ["of-bolt", "next"]}}
SENDERS = ("shared", "of-acme", None, "wrong")
PAGES = ("/health", "/ready", "/metrics", "/maitred/state", "/programs", "/v1/models", "/get_loads", "/programs/metrics",
         "/admin/config", "/sleep")  # fmt: skip


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


async def statuses(w: GatewayWorld, url: str, path: str) -> tuple[int, ...]:
    return tuple([(await w.request_at(url, path, b"", "GET", **bearer(key)))[0] for key in SENDERS])


async def get(w: GatewayWorld, path: str, key: str | None, url: str | None = None) -> bytes:
    status, _, answered = await w.request_at(url or w.url, path, b"", "GET", **bearer(key))
    assert status == 200, answered
    return answered


def test_pages_on_one_port() -> None:
    async def scenario() -> dict[str, tuple[int, ...]]:
        async with world(Backend(small), programs={}, **KEYS) as w:
            return {path: await statuses(w, w.url, path) for path in PAGES}

    assert run(scenario()) == {
        "/health": (200, 200, 200, 200),
        "/ready": (200, 200, 200, 200),
        "/metrics": (200, 200, 200, 401),
        "/maitred/state": (200, 200, 401, 401),
        "/programs": (200, 200, 401, 401),
        "/v1/models": (200, 200, 401, 401),
        "/get_loads": (200, 403, 401, 401),
        "/programs/metrics": (200, 403, 401, 401),
        "/admin/config": (200, 403, 401, 401),
        "/sleep": (200, 404, 401, 401),
    }


def test_pages_on_two_ports() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={}, admin_port=0, **KEYS) as w:
            assert w.admin_url != w.url
            assert {path: await statuses(w, w.url, path) for path in PAGES} == {
                "/health": (200, 200, 200, 200),
                "/ready": (200, 200, 200, 200),
                "/metrics": (404, 200, 404, 401),
                "/maitred/state": (404, 200, 404, 401),
                "/programs": (200, 200, 401, 401),
                "/v1/models": (200, 200, 401, 401),
                "/get_loads": (404, 404, 404, 404),
                "/programs/metrics": (404, 404, 404, 404),
                "/admin/config": (404, 404, 404, 404),
                "/sleep": (404, 404, 401, 401),
            }
            assert {path: await statuses(w, w.admin_url, path) for path in PAGES} == {
                "/health": (200, 200, 200, 200),
                "/ready": (200, 200, 200, 200),
                "/metrics": (200, 200, 200, 401),
                "/maitred/state": (200, 200, 401, 401),
                "/programs": (200, 200, 401, 401),
                "/v1/models": (404, 404, 404, 404),
                "/get_loads": (200, 403, 401, 401),
                "/programs/metrics": (200, 403, 401, 401),
                "/admin/config": (200, 403, 401, 401),
                "/sleep": (200, 404, 401, 401),
            }
            reached = len(w.backends[0].received)
            assert (await w.request_at(w.admin_url, CHAT, **bearer("shared")))[0] == 404
            assert len(w.backends[0].received) == reached
            for url, status in ((w.url, 404), (w.admin_url, 200)):
                drain = {"backend": w.backends[0].url}
                assert (await w.request_at(url, "/admin/drain", drain, **bearer("shared")))[0] == status
            assert w.state.backends[0].draining

    run(scenario())


def test_without_keys_the_operator_comes_from_this_machine_to_his_port() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={}, admin_port=0) as w:
            for path in ("/metrics", "/maitred/state", "/admin/config", "/get_loads", "/sleep"):
                assert (await w.request_at(w.url, path, b"", "GET"))[0] == 404
                assert (await w.request_at(w.admin_url, path, b"", "GET"))[0] == 200
            await w.request(body=body("p"))
            assert (await w.request("/programs/release", {"program_id": "p"}))[0] == 200  # agents are clients
            assert (await w.request_at(w.admin_url, "/admin/config", b"", "GET", origin="https://evil.example"))[0] == 403

    run(scenario())


def test_a_port_without_keys_is_the_operators_but_no_pages_of_others() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={}, admin_port=0, admin_auth="none", **KEYS) as w:
            metrics = await get(w, "/metrics", None, w.admin_url)
            assert w.backends[0].url.encode() in metrics
            assert (await w.request_at(w.admin_url, "/admin/config", b"", "GET"))[0] == 200
            assert (await w.request_at(w.admin_url, "/sleep", {}))[0] == 200
            assert (await w.request_at(w.admin_url, "/admin/config", b"", "GET", origin="https://evil.example"))[0] == 403
            assert (await w.request("/v1/models", b"", "GET"))[0] == 401

    run(scenario())


def test_a_tenant_sees_its_own_state_and_nothing_of_others() -> None:
    admission = {"tenant_policies": {"auth:acme": {"max_in_flight": 1, "max_queued": 1, "weight": 2.0, "max_class": "default"}}}

    async def scenario() -> dict[str, Any]:
        backend = Backend(gate := GatedAnswer(), models=("m", "n"))
        async with world(backend, slots=2, admission=admission, programs={"mode": "default"}, **KEYS) as w:
            acme, bolt = bearer("of-acme"), bearer("of-bolt")
            first = await w.start_request(body("mine"), **acme)
            await w.wait_until(lambda: w.state.in_flight == 1)
            second = await w.start_request(body("mine"), **acme)
            third = await w.start_request(body("theirs"), **bolt)
            await w.wait_until(lambda: (w.state.in_flight, w.state.waiting) == (2, 1))
            assert (await w.request(body=body("mine"), **acme))[0] == 429
            assert (await w.request(body={"model": "x"}, **acme))[0] == 404
            assert (await w.request(body=b"[]", **bolt))[0] == 400
            shown = await get(w, "/maitred/state", "of-acme")
            for secret in (b"bolt", b"theirs", b"http:", b"127.0.0.1", backend.url.encode()):
                assert secret not in shown
            assert msgspec.json.decode(await get(w, "/maitred/state", "next"))["tenant"] == "auth:bolt"
            assert msgspec.json.decode(await get(w, "/maitred/state", "shared"))["backends"][0]["url"] == backend.url
            gate.open.set()
            for client in (first, second, third):
                await client.read_response()
            found: dict[str, Any] = msgspec.json.decode(shown)
            return found

    shown = run(scenario())
    assert shown["classes"]["default"].pop("longest_wait_secs") >= 0
    assert (shown["tenant"], shown["ready"], shown["mode"]) == ("auth:acme", True, "priority")
    assert (shown["in_flight"], shown["waiting"]) == (1, 1)
    assert shown["classes"]["default"] == {"in_flight": 1, "waiting": 1}
    assert shown["classes"]["bulk"] == {"in_flight": 0, "waiting": 0, "longest_wait_secs": None}
    assert shown["models"].keys() == {"m"}
    assert shown["limits"] == {
        "max_class": "default", "max_in_flight": 1, "max_queued": 1, "weight": 2.0, "budget": None, "max_programs": 10_000
    }  # fmt: skip
    assert shown["refused"] == {"scheduler_tenant_queue_full": 1, "model_not_found": 1}
    assert shown["programs"].keys() == {"mine"}
    assert shown["programs"]["mine"]["backend"] == "backend-0"


def test_a_tenant_sees_the_rows_of_its_own_metrics() -> None:
    async def scenario() -> None:
        async with world(tenant_metric_top_n=1, **KEYS) as w:
            for key in ("of-bolt", "of-acme"):
                await w.request(x_smg_priority="nonsense", **bearer(key))
                await w.request(body={"model": "x"}, **bearer(key))
            bolt, acme, anyone, shared = [await get(w, "/metrics", key) for key in ("of-bolt", "of-acme", None, "shared")]
            rows = [line for line in bolt.decode().splitlines() if not line.startswith("#")]
            assert all('tenant="auth:bolt"' in row for row in rows)
            assert sorted(row for row in rows if "_tokens_total" not in row) == [
                'maitred_scheduler_unknown_priority_value_total{tenant="auth:bolt"} 1.0',
                'maitred_tenant_inflight{tenant="auth:bolt"} 0.0',
                'maitred_tenant_queue_depth{tenant="auth:bolt"} 0.0',
                'maitred_tenant_refused_total{code="model_not_found",tenant="auth:bolt"} 1.0',
            ]
            # It has no label of its own, so its counters are in the sums of `other`.
            rows = [line for line in acme.decode().splitlines() if not line.startswith("#")]
            assert rows == [
                'maitred_tenant_inflight{tenant="auth:acme"} 0.0',
                'maitred_tenant_queue_depth{tenant="auth:acme"} 0.0',
            ]
            assert b"auth:bolt" in shared
            assert b'tenant="other"' in shared
            assert w.backends[0].url.encode() in shared
            assert b"auth:" not in anyone
            assert b"tenant=" not in anyone
            assert b"127.0.0.1" not in anyone
            assert b"maitred_scheduler_arrivals_total" in anyone
            assert b'maitred_tenant_refused_total{code="model_not_found"} 2.0' in anyone
            assert msgspec.json.decode(await get(w, "/maitred/state", "of-acme"))["refused"] == {"model_not_found": 1}

    run(scenario())


def test_a_trusted_header_names_a_tenant_as_a_key_does() -> None:
    async def scenario() -> None:
        async with world(trust_tenant_header=True) as w:
            await w.request(body={"model": "x"}, x_smg_tenant_id="a")
            await w.request(body={"model": "x"}, x_smg_tenant_id="b")
            for path in ("/maitred/state", "/metrics"):
                _, _, shown = await w.request(path, b"", "GET", x_smg_tenant_id="a")
                assert b"header:a" in shown
                assert b"header:b" not in shown
            assert (await w.request("/admin/config", b"", "GET", x_smg_tenant_id="a"))[0] == 403
            assert b"header:b" in (await w.request("/metrics", b"", "GET"))[2]

    run(scenario())


def test_readiness_tells_who_is_no_operator_no_more_than_that() -> None:
    async def scenario() -> None:
        async with world(**KEYS) as w:
            assert msgspec.json.decode(await get(w, "/ready", None)) == {"ready": True}
            assert msgspec.json.decode(await get(w, "/ready", "of-acme")) == {"ready": True}
            assert msgspec.json.decode(await get(w, "/ready", "shared"))["backends"][0]["url"] == w.backends[0].url

    run(scenario())


class _Asking:
    """A request for a page from another machine."""

    memo, client, headers, path, target = None, ("10.0.0.7", 5), [(b"host", b"10.0.0.1:8080")], "/maitred/state", b"/"


@pytest.mark.parametrize(
    ("page", "shown"),
    [(Page.METRICS, Shown.ALL), (Page.STATE, Shown.ALL), (Page.PROGRAMS, Shown.OWN), (Page.ADMIN, 403), (Page.ENGINE, 404)],
)
def test_without_keys_other_machines_read_what_they_have_read(page: Page, shown: Shown | int) -> None:
    access = PageAccess(GatewayConfig(), ApiKeys(None, {}), HeadReader())
    asking: Any = _Asking()
    if isinstance(shown, Shown):
        viewer = access.viewer(page, asking, Port.ONLY)
        assert (viewer.shown, viewer.tenant) == (shown, "ip:10.0.0.7")
    else:
        with pytest.raises(ApiError) as refused:
            access.viewer(page, asking, Port.ONLY)
        assert refused.value.status == shown


def test_what_a_known_head_says_is_asked_once_and_the_address_of_each_connection() -> None:
    access = PageAccess(GatewayConfig(), ApiKeys(None, {}), HeadReader())
    asking: Any = _Asking()
    asking.memo = HeadMemo()
    shown = []
    for address in ("10.0.0.7", "127.0.0.1", "10.0.0.7"):
        asking.client = (address, 5)
        shown.append(access.viewer(Page.PROGRAMS, asking, Port.ONLY).shown)
    assert shown == [Shown.OWN, Shown.ALL, Shown.OWN]

    asking.memo, asking.headers, asking.client = HeadMemo(), [(b"host", b"evil.example")], ("127.0.0.1", 5)
    assert [access.viewer(Page.PROGRAMS, asking, Port.ONLY).shown for _ in range(2)] == [Shown.OWN, Shown.OWN]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"port": 8080, "admin_port": 8080}, "admin_port must differ from port"),
        ({"admin_port": 70_000}, "admin_port must be from 0 to 65535"),
        ({"admin_port": -1}, "admin_port must be from 0 to 65535"),
        ({"admin_host": "127.0.0.1"}, "admin_host needs admin_port"),
        ({"admin_auth": "none"}, "admin_auth needs admin_port"),
        ({"admin_tls_cert": "x"}, "admin_tls_cert needs admin_port"),
        ({"admin_port": 1, "admin_tls_key": "x"}, "admin_tls_key needs admin_tls_cert"),
        ({"admin_port": 1, "admin_tls": "none", "admin_tls_cert": "x"}, "admin_tls: none contradicts admin_tls_cert"),
    ],
)
def test_ports_that_cannot_be(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        GatewayConfig(**given)
    assert GatewayConfig(port=0, admin_port=0).admin_port == 0


def test_a_gateway_says_where_its_operator_finds_it_and_stops_on_both_ports() -> None:
    with Served("--backend", "http://127.0.0.1:9", "--admin-port", "0", "--log-level", "error") as served:
        line = served.wait_until(lambda line: line.startswith("maitred: the operator's pages on "))
        url = line.split(" ")[5].rstrip(",")
        assert line.rstrip().endswith("keys as for clients")
        urllib.request.urlopen(f"{url}/admin/config").close()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{served.url}/admin/config")
        refused.value.close()
        assert refused.value.code == 404
        port = url.rsplit(":", 1)[1]
        second = [sys.executable, "-c", "from maitred.cli import main; main()", "serve", "--port", "0", "--admin-port", port]
        refusal = subprocess.run([*second, "--backend", "http://127.0.0.1:9"], capture_output=True, text=True, check=False)
        assert refusal.returncode == 2
        assert f"port {port} is in use" in refusal.stderr
        assert "--admin-port" in refusal.stderr
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=20) == 0
        for at in (served.url, url):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.1", int(at.rsplit(":", 1)[1])))


def test_a_port_is_there_from_the_start_and_whether_it_needs_a_key_may_change() -> None:
    files = Files()

    async def scenario() -> None:
        async with world(admin_port=0, reload=files.read, api_key="shared") as w:
            asked = ("/admin/reload", b"", "POST")
            files.changed = {"admin_port": 9_000, "admin_host": "10.0.0.1", "admin_auth": "none"}
            status, _, answered = await w.request_at(w.admin_url, *asked, **bearer("shared"))
            told = msgspec.json.decode(answered)
            assert (status, told["ignored"]) == (200, ["gateway.admin_port", "gateway.admin_host"])
            assert any("gateway.admin_auth is none" in warning for warning in told["warnings"])
            assert (await w.request_at(w.admin_url, "/admin/config", b"", "GET"))[0] == 200
            files.changed = {"admin_port": None, "admin_auth": None}
            assert (await w.request_at(w.admin_url, *asked))[0] == 200
            assert (await w.request_at(w.admin_url, "/admin/config", b"", "GET"))[0] == 200  # the port is as it was
        files.changed = {"admin_port": 9_000, "admin_auth": "none"}
        async with world(reload=files.read) as w:
            status, told = await reload(w)
            assert (status, told["ignored"]) == (200, ["gateway.admin_port", "gateway.admin_auth"])

    run(scenario())
