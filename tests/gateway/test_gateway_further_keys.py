"""Keys outside of the configuration: a file that is reloaded, and tokens of an issuer."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from world import Backend, GatewayWorld, run, whole, world

from maitred.core.errors import ConfigError
from maitred.gateway.access import keys_file
from maitred.gateway.access.keys_file import read_keys
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.config import GatewayConfig, JwtConfig, hash_api_key

RSA, OTHER = (rsa.generate_private_key(65_537, 2048) for _ in range(2))
CURVE = ec.generate_private_key(ec.SECP256R1())
CLASSES = {"default_max_class": "default"}
NOON = int(datetime(2027, 1, 31, 12, tzinfo=UTC).timestamp()) * 1_000_000


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def answer_of(w: GatewayWorld, key: str, **headers: str) -> str:
    """Return "" for a request that is answered, else the code of its error."""
    status, _, body = await w.request(**bearer(key), **headers)
    return "" if status == 200 else str(msgspec.json.decode(body)["error"]["code"])


def test_keys_of_a_file_have_tenants_classes_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_file, "LOOK_SECS", 0.05)
    path = tmp_path / "keys.yaml"
    path.write_text(f"""
keys:
  - {{api_key: k-acme, tenant: acme}}
  - {{api_key: "{hash_api_key("k-vip")}", tenant: acme, class: interactive, expires: 2999-01-01}}
  - {{api_key: k-bulk, tenant: beta, class: bulk}}
  - {{api_key: k-old, tenant: beta, expires: "2020-01-31T18:00:00Z"}}
""")

    async def scenario() -> None:
        async with world(Backend(), keys_file=str(path), api_key="shared", admission=CLASSES) as w:
            seen = list[tuple[str, str]]()
            submit = w.gateway.core.submit

            def note(ticket: Any, *rest: Any) -> Any:
                seen.append((ticket.tenant, ticket.priority_class.label))
                return submit(ticket, *rest)

            monkeypatch.setattr(w.gateway.core, "submit", note)
            assert [await answer_of(w, key) for key in ("k-acme", "k-vip", "k-bulk", "shared")] == [""] * 4
            assert seen[:3] == [("auth:acme", "default"), ("auth:acme", "interactive"), ("auth:beta", "bulk")]
            seen.clear()
            for key in ("k-acme", "k-vip", "k-bulk"):
                await answer_of(w, key, x_smg_priority="interactive")
            assert [label for _, label in seen] == ["default", "interactive", "bulk"]
            assert await answer_of(w, "k-old") == "expired_api_key"
            assert await answer_of(w, "k-none") == "invalid_api_key"
            path.write_text('{"keys": [{"api_key": "k-new", "tenant": "acme"}]}')  # JSON is YAML
            await asyncio.sleep(0.2)
            assert (await answer_of(w, "k-acme"), await answer_of(w, "k-new")) == ("invalid_api_key", "")

    run(scenario())


def test_keys_that_end_are_told_by_their_tenants(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def warning(*ends: str) -> str | None:
        keys = [{"api_key": f"k-{number}", "tenant": f"t{number}", "expires": end} for number, end in enumerate(ends)]
        (tmp_path / "keys").write_bytes(msgspec.json.encode({"keys": [*keys, {"api_key": "k-for-ever", "tenant": "t"}]}))
        return keys_file.expiry_warning(read_keys(tmp_path / "keys").values(), NOON)

    assert warning() is None
    assert (
        warning("2027-01-31T12:00:01", "2027-02-07T12:00:01") == "keys that expire within a week: auth:t0 (2027-01-31T12:00Z)"
    )
    told = (
        "keys that have expired: auth:t1 (2026-01-31T00:00Z), auth:t0 (2027-01-31T12:00Z); that expire within a week: auth:t2 ("
    )
    assert str(warning("2027-01-31T12:00", "2026-01-31", "2027-02-07T12:00")).startswith(told)
    assert "auth:t0 (" in str(warning("0001-01-01T00:00+01:00", "9999-12-31T23:00-01:00"))
    assert str(warning(*["2026-01-31"] * 30)).endswith("auth:t15 (2026-01-31T00:00Z) and 22 more")

    async def scenario() -> None:
        async with world(Backend(), keys_file=str(tmp_path / "keys")):
            warning("2020-01-31")
            await asyncio.sleep(2 * keys_file.LOOK_SECS)

    run(scenario())
    assert [text for text in caplog.messages if "expired" in text] == [
        f"{tmp_path}/keys has keys that have expired: auth:t0 (2020-01-31T00:00Z)"
    ]


def test_a_file_that_is_broken_or_gone_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys_file, "LOOK_SECS", 0.05)
    path = tmp_path / "keys.yaml"
    path.write_text("keys: [{api_key: k-acme, tenant: acme}]")
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with world(Backend(), keys_file=str(path)) as w:
            path.write_text("keys: [{api_key: k-secret")
            await asyncio.sleep(0.5)
            path.unlink()
            await asyncio.sleep(0.5)
            assert await answer_of(w, "k-acme") == ""

    run(scenario())
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "the keys file has been read" not in caplog.messages  # while it stays broken
    assert all("the keys before it stay" in line and "k-secret" not in line for line in warnings)


@pytest.mark.parametrize("is_worker", [False, True])
def test_a_reload_reads_the_keys_at_once(is_worker: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A worker follows what its parent has read."""
    path = tmp_path / "keys.yaml"
    path.write_text("keys: [{api_key: k-old, tenant: acme}]")
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with world(Backend(), keys_file=str(path), reload=lambda start: GatewaySettings(gateway=start)) as w:

            async def reload() -> None:
                reloader = w.gateway._reloader
                await (reloader.follow(w.gateway.settings) if is_worker else reloader.reload())

            path.write_text("keys: [{api_key: k-new, tenant: acme}]")
            await reload()
            assert (await answer_of(w, "k-old"), await answer_of(w, "k-new")) == ("invalid_api_key", "")
            path.write_text("keys: [{api_key: k-broken")
            caplog.clear()
            await reload()
            await reload()
            assert await answer_of(w, "k-new") == ""

    run(scenario())
    assert sum("the keys before it stay" in line for line in caplog.messages) == 2  # Who reloads again is told again.
    assert "the keys file has been read" not in caplog.messages


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("keys: [{api_key: hunter2}]", "tenant"),
        ("keys: [{api_key: hun ter2, tenant: a}]", "without spaces"),
        ("keys: [{api_key: hunter2, tenant: a, class: urgent}]", "urgent"),
        ("keys: [{api_key: hunter2, tenant: a, expires: soon}]", "expires must be as 2027-01-31"),
        ("keys: [{api_key: hunter2, tenant: a, expirse: 2027-01-01}]", "expires"),
        ("keys: [{api_key: hunter2, tenant: a}, {api_key: hunter2, tenant: b}]", "same key"),
        ("keys: [{api_key: [hunter2], tenant: a}]", "api_key"),
        ("- hunter2", "there should be keys with values"),
        ("", "there is nothing"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_without_its_keys(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_keys(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)
    assert "hunter2" not in str(caught.value).replace("hun ter2", "")


def test_a_gateway_with_keys_outside_is_never_open(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="auth: none contradicts keys_file"):
        GatewayConfig(backends=("http://a:1",), keys_file="k", auth="none")
    (tmp_path / "keys").write_text("keys: []")

    async def scenario() -> None:
        async with world(Backend(), keys_file=str(tmp_path / "keys")) as w:
            assert (await w.request())[0] == 401
            assert (await w.request("/admin/config", method="GET"))[0] == 401

    run(scenario())


def public(key: Any, name: str | None, algorithm: str = "RS256") -> dict[str, Any]:
    made = (jwt.algorithms.ECAlgorithm if algorithm == "ES256" else jwt.algorithms.RSAAlgorithm).to_jwk(key.public_key())
    return {**json.loads(made), "alg": algorithm, "use": "sig", **({} if name is None else {"kid": name})}


SET = {"keys": [public(RSA, "one"), public(CURVE, "two", "ES256")]}
CLAIMS = {"sub": "acme", "iss": "https://issuer", "aud": ["maitred", "other"], "exp": 9_000_000_000, "cls": "interactive"}
TOKENS = {"issuer": "https://issuer", "audience": "maitred", "class_claim": "cls"}


def token(key: Any = RSA, name: str | None = "one", algorithm: str = "RS256", **claims: Any) -> str:
    given = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(given, key, algorithm=algorithm, headers={} if name is None else {"kid": name})


def unsigned() -> str:
    parts = ({"alg": "none", "kid": "one"}, CLAIMS)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def test_tokens_are_checked_and_name_tenant_and_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(SET))
    by_secret = jwt.encode(CLAIMS, "x" * 32, algorithm="HS256", headers={"kid": "one"})
    refused = {
        token(exp=1_000): "it has expired",
        token(exp=None): "it lacks the claim exp",
        token(exp="soon"): "its exp or nbf is no time",
        token(nbf=8_000_000_000): "it is not valid yet",
        token(aud="other"): "it is for another audience",
        token(aud=None): "it lacks the claim aud",
        token(iss="https://evil"): "it is of another issuer",
        token(OTHER): "its signature is wrong",
        token(sub=None): "its claim sub names no tenant",
        token(sub=7): "it cannot be read",
        token(algorithm="RS512"): "its algorithm is not allowed",
        by_secret: "its algorithm is not allowed",
        unsigned(): "its algorithm is not allowed",
        "a.b.c": "it cannot be read",
    }

    async def scenario() -> None:
        async with world(Backend(), jwt=JwtConfig(jwks=str(path), **TOKENS), admission=CLASSES) as w:
            seen = list[tuple[str, str]]()
            submit = w.gateway.core.submit

            def note(ticket: Any, *rest: Any) -> Any:
                seen.append((ticket.tenant, ticket.priority_class.label))
                return submit(ticket, *rest)

            monkeypatch.setattr(w.gateway.core, "submit", note)
            for good in (token(), token(), token(CURVE, "two", "ES256"), token(cls=None), token(cls="nonsense")):
                assert await answer_of(w, good) == ""
            assert seen == [("auth:acme", "interactive")] * 3 + [("auth:acme", "default")] * 2
            for bad, problem in refused.items():
                status, _, body = await w.request(**bearer(bad))
                error = msgspec.json.decode(body)["error"]
                assert (status, error["code"], error["message"]) == (
                    401,
                    "invalid_token",
                    f"this token is not valid: {problem}",
                )
            assert await answer_of(w, "no-token") == "invalid_api_key"

    run(scenario())


class Issuer:
    """An HTTP server with a JWKS, which may hang."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = SET
        self.hangs = False
        self.num_asked = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            self.num_asked += 1
            if self.hangs:
                await asyncio.sleep(1_000)
            writer.write(whole(json.dumps(self.keys).encode()))

    async def play(self, scenario: Callable[[GatewayWorld], Any]) -> None:
        server = await asyncio.start_server(self, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/.well-known/jwks.json?v=1"
        async with world(Backend(), jwt=JwtConfig(jwks=url, **TOKENS), health_interval_secs=5.0) as w:
            await scenario(w)
        server.close()


def test_an_issuer_changes_its_keys() -> None:
    issuer = Issuer()

    async def scenario(w: GatewayWorld) -> None:
        await asyncio.sleep(0.5)
        assert await answer_of(w, token()) == ""
        issuer.keys = {"keys": [public(OTHER, "three")]}
        assert await answer_of(w, token(OTHER, "three")) == "invalid_token"  # read a moment ago
        await asyncio.sleep(11)
        status, headers, body = await w.request(**bearer(token(OTHER, "three")))
        assert (status, headers["retry-after"], msgspec.json.decode(body)["error"]["code"]) == (503, "1", "token_keys_unknown")
        await asyncio.sleep(0.5)
        assert await answer_of(w, token(OTHER, "three")) == ""
        assert await answer_of(w, token()) == "invalid_token"  # also one that was known to be valid
        assert issuer.num_asked == 2

    run(issuer.play(scenario))


def test_an_issuer_that_hangs_holds_up_no_request(caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer()
    issuer.hangs = True

    async def scenario(w: GatewayWorld) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await answer_of(w, token()) == "token_keys_unknown"
        assert await answer_of(w, "no-token") == "invalid_api_key"
        assert loop.time() - began < 0.5
        await asyncio.sleep(25)
        issuer.hangs = False
        await asyncio.sleep(20)
        assert await answer_of(w, token()) == ""
        issuer.hangs = True
        await asyncio.sleep(1)
        assert await answer_of(w, token()) == ""

    run(issuer.play(scenario))
    warnings = [record.getMessage() for record in caplog.records if "the JWKS cannot be read" in record.getMessage()]
    assert len(warnings) == 1
    assert "no answer within 10 s" in warnings[0]


@pytest.mark.parametrize(
    "text", ["no json", "[]", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}']
)
def test_a_wrong_set_is_an_error_of_the_start(text: str, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(text)

    async def scenario() -> None:
        async with world(Backend(), jwt=JwtConfig(jwks=str(path))):
            pass

    with pytest.raises(ConfigError, match=r"gateway\.jwt\.jwks"):
        run(scenario())
