"""Authentication: valid keys, what is open without a key, and which headers reach the backend."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from world import ClientConnection, GatewayWorld, run, world

from maitred.gateway.access.auth import ApiKeys, Caller, KeyRights
from maitred.gateway.access.local_access import LocalAccess, address_problem
from maitred.gateway.config import hash_api_key
from maitred.wire.exchange import ApiError

SHARED, ACME = "s3cret", "acme-key"
LOCKED = {"api_key": SHARED, "tenant_api_keys": {"acme": hash_api_key(ACME)}}
FROM_HERE = ("127.0.0.1", 5)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def code(body: bytes) -> str:
    found: str = msgspec.json.decode(body)["error"]["code"]
    return found


def test_a_key_names_its_caller() -> None:
    keys = ApiKeys(hash_api_key(SHARED), {"acme": hash_api_key(ACME), "b": hash_api_key("k-b")})

    digest = hashlib.sha256(SHARED.encode()).hexdigest()
    assert keys.authenticate(b"Bearer s3cret") == Caller(f"auth:{digest}", KeyRights.ALL)
    assert keys.authenticate(b"bEARER   acme-key ") == Caller("auth:acme", KeyRights.TENANT)
    assert keys.authenticate(b"Bearer k-b") == Caller("auth:b", KeyRights.TENANT)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, "missing_api_key"),
        (b"", "missing_api_key"),
        (b"Basic s3cret", "missing_api_key"),
        (b"s3cret", "missing_api_key"),
        (b"Bearer", "invalid_api_key"),
        (b"Bearer S3CRET", "invalid_api_key"),
        (b"Bearer s3cret2", "invalid_api_key"),
        (b"Bearer \xff", "invalid_api_key"),
        (b"Bearer " + hash_api_key(SHARED).encode(), "invalid_api_key"),  # a reader of the file does not have the key
    ],
)
def test_anything_else_is_refused(shown: bytes | None, expected: str) -> None:
    with pytest.raises(ApiError) as caught:
        ApiKeys(hash_api_key(SHARED), {"acme": hash_api_key(ACME)}).authenticate(shown)
    assert (caught.value.status, caught.value.code) == (401, expected)
    assert (b"www-authenticate", b"Bearer") in caught.value.headers


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        (None, None, True),
        ("127.0.0.1:8080", None, True),
        ("127.0.0.1", None, True),
        ("[::1]:8080", None, True),
        ("10.0.0.7:8080", None, True),  # through a tunnel: an address cannot be bound to another machine by a name server
        ("localhost:8080", None, True),
        ("LOCALHOST", None, True),
        ("a.localhost:8080", None, True),
        ("gateway.example:80", None, True),
        ("evil.example:8080", None, False),
        ("localhost.evil.example", None, False),
        ("127.0.0.1.evil.example", None, False),
        ("", None, False),
        ("localhost:8080", "http://localhost:8080", True),
        ("localhost:8080", "http://localhost:3000", False),
        ("localhost:8080", "https://evil.example", False),
        ("localhost:8080", "null", False),
        (None, "https://evil.example", False),
    ],
)
def test_a_page_in_a_browser_of_this_machine_is_no_operator(host: str | None, origin: str | None, allowed: bool) -> None:
    given = {b"host": host, b"origin": origin}
    headers = [(name, value.encode()) for name, value in given.items() if value is not None]
    problem = LocalAccess(["gateway.example"]).page_problem(headers)
    assert (problem is None) is allowed


def test_only_this_machine_is_local() -> None:
    assert address_problem(FROM_HERE) is address_problem(("::1", 5)) is None
    for client in (("10.0.0.7", 5), ("testclient", 5), None):
        assert "from the gateway's own machine only" in (address_problem(client) or "")


def test_dns_rebinding_and_plain_posts_change_nothing() -> None:
    async def scenario() -> None:
        async with world(admin_hosts=("ours.example",)) as w:

            async def post(head: str) -> int:
                connection = await w.connect()
                connection.writer.write(
                    f"POST /admin/drain HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body
                )
                return (await connection.read_response())[0]

            body = msgspec.json.encode({"backend": w.backends[0].url})
            assert await post("host: evil.example:8080\r\n") == 403
            assert await post("host: localhost:8080\r\norigin: https://evil.example\r\n") == 403
            assert not w.state.backends[0].draining
            assert await post("host: ours.example\r\n") == 200
            assert w.state.backends[0].draining

    run(scenario())


def forwarded(w: GatewayWorld) -> list[bytes | None]:
    return [received.headers.get(b"authorization") for received in w.backends[0].received]


@pytest.mark.parametrize(
    ("config", "seen"),
    [
        ({}, b"Bearer s3cret"),
        (LOCKED, None),
        ({"upstream_api_key": "engine-key"}, b"Bearer engine-key"),
        ({**LOCKED, "upstream_api_key": "engine-key"}, b"Bearer engine-key"),
    ],
)
def test_what_the_backend_gets_to_see(config: dict[str, Any], seen: bytes | None) -> None:
    async def scenario() -> list[bytes | None]:
        async with world(**config) as w:
            assert (await w.request(**bearer(SHARED)))[0] == 200
            return forwarded(w)

    assert run(scenario()) == [seen]


def test_a_request_without_a_valid_key_is_refused_and_admission_never_hears_of_it() -> None:
    async def scenario() -> None:
        async with world(**LOCKED) as w:
            for headers in ({}, bearer("wrong"), {"authorization": "Basic x"}):
                status, answered, body = await w.request(**headers)
                assert (status, answered["www-authenticate"]) == (401, "Bearer")
                assert answered["x-smg-error-code"] == code(body)
            assert w.gateway.counters.refused_before_admission == {"missing_api_key": 2, "invalid_api_key": 1}
            assert sum(c.arrived for c in w.state.classes.values()) == 0
            assert w.backends[0].received == []

    run(scenario())


def test_smg_says_no_more_than_the_status() -> None:
    async def scenario() -> tuple[int, bytes]:
        async with world(admission={"flavour": "smg"}, **LOCKED) as w:
            status, _, body = await w.request()
            return status, body

    assert run(scenario()) == (401, b"")


def test_it_is_refused_before_its_body_is_read() -> None:
    async def scenario() -> int:
        async with world(**LOCKED) as w:
            connection: ClientConnection = await w.connect()
            connection.writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
            return (await connection.read_response())[0]

    assert run(scenario()) == 401


def test_a_key_comes_as_x_api_key_where_there_is_no_authorization() -> None:
    async def scenario() -> None:
        async with world(**LOCKED, upstream_api_key="engine-key") as w:
            assert (await w.request("/v1/messages", x_api_key=ACME))[0] == 200
            assert (await w.request("/v1/models", b"", "GET", x_api_key=ACME))[0] == 200
            assert (await w.request("/admin/config", b"", "GET", x_api_key=ACME))[0] == 403
            assert (await w.request("/admin/config", b"", "GET", x_api_key=SHARED))[0] == 200
            assert (await w.request("/admin/config", b"", "GET", authorization="", x_api_key=SHARED))[0] == 200
            assert (await w.request("/nowhere", b"", "GET", x_api_key=SHARED))[0] == 200  # for the operator alone
            assert (await w.request(x_api_key="wrong"))[0] == 401
            assert (await w.request(authorization="Bearer wrong", x_api_key=ACME))[0] == 401
            for received in w.backends[0].received:
                assert received.headers[b"authorization"] == b"Bearer engine-key"
                assert b"x-api-key" not in received.headers

    run(scenario())


def test_a_gateway_without_keys_passes_x_api_key_on() -> None:
    async def scenario() -> bytes | None:
        async with world() as w:
            await w.request("/v1/messages", x_api_key="of-the-engine")
            return w.backends[0].received[0].headers.get(b"x-api-key")

    assert run(scenario()) == b"of-the-engine"


def test_a_tenant_may_have_two_keys_while_its_clients_change() -> None:
    both = {"tenant_api_keys": {"acme": [ACME, hash_api_key("next")], "bolt": "other"}}

    async def scenario() -> None:
        async with world(**both) as w:
            assert [(await w.request(**bearer(key)))[0] for key in (ACME, "next", "other", "third")] == [200, 200, 200, 401]
            assert w.gateway.config.tenant_api_keys["acme"] == (hash_api_key(ACME), hash_api_key("next"))

    run(scenario())
    keys = ApiKeys(None, {"acme": (hash_api_key(ACME), hash_api_key("next"))})
    assert keys.authenticate(b"Bearer acme-key") == keys.authenticate(b"Bearer next") == Caller("auth:acme", KeyRights.TENANT)


def test_the_configuration_in_force_shows_no_secret() -> None:
    async def scenario() -> tuple[dict[str, Any], bytes]:
        async with world(**LOCKED, upstream_api_key="engine-key") as w:
            status, _, body = await w.request("/admin/config", b"", "GET", **bearer(SHARED))
            assert status == 200
            return msgspec.json.decode(body), body

    shown, body = run(scenario())
    assert shown["gateway"]["api_key"] == hash_api_key(SHARED)
    assert shown["gateway"]["tenant_api_keys"] == {"acme": hash_api_key(ACME)}
    assert shown["gateway"]["upstream_api_key"] == "***"
    assert shown["admission"]["mode"] == "priority"
    assert shown["admission"]["classes"]["bulk"]["queue_size"] == 1024
    for secret in (SHARED, ACME, "engine-key"):
        assert secret.encode() not in body
