"""The tenant and the class of a request, and what the engine is told of the class."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from world import Backend, BackendRequest, GatewayWorld, answer, run, whole, world

from maitred import is_compiled
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros
from maitred.gateway.access.auth import Caller, KeyRights, resolve_tenant
from maitred.gateway.access.inbound_head import HeadReader
from maitred.gateway.intake.engine_priority import engine_priority, set_body_priority
from maitred.scheduler.drivers.admission import RealTimeAdmission, SlotLease
from maitred.wire.exchange import ClientAddress

PEER = ("10.0.0.7", 4711)
ACME = Caller("auth:acme", KeyRights.TENANT)


@pytest.mark.parametrize(
    ("caller", "named", "client", "tenant"),
    [
        (ACME, b"team-red", PEER, "auth:acme"),
        (None, b"team-red", PEER, "header:team-red"),
        (None, b" \tTeam-Red ", PEER, "header:Team-Red"),
        (None, "Köln".encode(), PEER, "header:Köln"),
        (None, b"\xff", PEER, "header:\\xff"),
        (None, b"a" * 128, PEER, "header:" + "a" * 128),
        (None, b"a" * 60_000, PEER, "header:" + blake2b(b"a" * 60_000, digest_size=16).hexdigest()),
        (None, b"   ", PEER, "ip:10.0.0.7"),
        (None, None, PEER, "ip:10.0.0.7"),
        (None, None, ("2001:db8::1", 1), "ip:2001:db8::1"),
        (None, None, None, "anonymous"),
    ],
)
def test_the_first_that_is_known(caller: Caller | None, named: bytes | None, client: ClientAddress, tenant: str) -> None:
    assert resolve_tenant(caller, named, client) == tenant


POLICIES = {
    "auth:acme": {"max_class": "interactive"},
    "header:red": {"max_class": "system"},
    "ip:127.0.0.1": {"max_class": "bulk"},
}
CALLERS = {"tenant_api_keys": {"acme": "k-acme", "other": "k-other"}, "trust_tenant_header": True}
AS_ACME = {"authorization": "Bearer k-acme"}


def clamps(w: GatewayWorld) -> dict[tuple[str, str, str], int]:
    return dict(w.gateway.counters.clamped_classes)


def admitted(w: GatewayWorld) -> dict[str, int]:
    return {name: c.admitted for name, c in w.state.classes.items() if c.admitted}


@pytest.mark.parametrize(
    ("headers", "effective", "clamped"),
    [
        ({"x_smg_priority": "system"}, "interactive", {("auth:acme", "system", "interactive"): 1}),
        ({"x_smg_priority": "interactive"}, "interactive", {}),
        ({"x_smg_priority": "bulk"}, "bulk", {}),
        ({}, "default", {}),
        ({"x_smg_tenant_id": "red", "x_smg_priority": "system"}, "interactive", {("auth:acme", "system", "interactive"): 1}),
    ],
)
def test_a_header_can_lower_and_never_raise(headers: dict[str, str], effective: str, clamped: dict[Any, int]) -> None:
    async def scenario() -> None:
        async with world(admission={"tenant_policies": POLICIES, "default_max_class": "default"}, **CALLERS) as w:
            assert (await w.request(**AS_ACME, **headers))[0] == 200
            assert admitted(w) == {effective: 1}
            assert clamps(w) == clamped

    run(scenario())


def test_a_tenant_without_a_policy_has_the_default_cap() -> None:
    async def scenario() -> None:
        async with world(admission={"tenant_policies": POLICIES, "default_max_class": "default"}, **CALLERS) as w:
            await w.request(authorization="Bearer k-other", x_smg_priority="interactive")
            assert clamps(w) == {("auth:other", "interactive", "default"): 1}

    run(scenario())


def test_of_several_headers_that_name_a_tenant_the_last_counts_which_the_proxy_has_added() -> None:
    head = HeadReader(b"x-team").sort_headers([(b"x-team", b"forged"), (b"a", b"b"), (b"x-team", b"red")])
    assert (head.tenant, head.forwarded.headers) == (b"red", [(b"a", b"b")])


@pytest.mark.parametrize(
    ("trusted", "effective", "tenant"),
    [({"trust_tenant_header": True}, "system", "header:red"), ({}, "bulk", "ip:127.0.0.1")],
)
def test_the_header_that_names_a_tenant_counts_where_it_is_trusted(
    trusted: dict[str, Any], effective: str, tenant: str
) -> None:
    """Untrusted, it is a header like any other. A tenant capped below `default` is clamped without any header as well."""

    async def scenario() -> None:
        async with world(admission={"tenant_policies": POLICIES}, tenant_header_name="X-Team", **trusted) as w:
            await w.request(x_team=" red", x_smg_priority="system")
            assert admitted(w) == {effective: 1}
            assert (b"x-team" in w.backends[0].received[0].headers) is not bool(trusted)
            assert w.state.in_flight == 0
            await w.request()
            assert clamps(w)["ip:127.0.0.1", "default", "bulk"] == 1

    run(scenario())


@pytest.mark.parametrize(
    ("headers", "effective", "unknown"),
    [
        ([b"x-smg-priority: bulk", b"x-smg-priority: system"], "bulk", {}),
        ([b"x-maitred-priority: bulk", b"x-smg-priority: system"], "bulk", {}),
        ([b"x-smg-priority:  ", b"x-smg-priority: system"], "default", {}),
        ([b"X-SMG-PRIORITY: \tsYsTeM "], "system", {}),
        ([b"x-smg-priority: bulk\xa0"], "default", {}),
        ([b"x-smg-priority: syst\xc3\xa9m"], "default", {}),
        ([b"x-smg-priority: urgent"], "default", {"ip:127.0.0.1": 1}),
        ([b"x-smg-priority: 3"], "default", {"ip:127.0.0.1": 1}),
        ([b"x-smg-priority: bulk,interactive"], "default", {"ip:127.0.0.1": 1}),
    ],
)
def test_the_header_as_smg_reads_it(headers: list[bytes], effective: str, unknown: dict[str, int]) -> None:
    async def scenario() -> None:
        async with world() as w:
            connection = await w.connect()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 13\r\n"
            connection.writer.write(head + b"\r\n".join(headers) + b'\r\n\r\n{"model":"m"}')
            assert (await connection.read_response())[0] == 200
            assert admitted(w) == {effective: 1}
            assert w.gateway.counters.unknown_class == unknown
            assert not {b"x-smg-priority", b"x-maitred-priority"} & w.backends[0].received[0].headers.keys()

    run(scenario())


@pytest.mark.parametrize(
    ("tier", "header", "effective"),
    [
        ("priority", {}, "interactive"),
        ("flex", {}, "bulk"),
        ("auto", {}, "default"),
        (7, {}, "default"),
        ("priority", {"x_smg_priority": "bulk"}, "bulk"),
        ("priority", {"x_smg_priority": " "}, "interactive"),
        ("priority", {"x_smg_priority": "urgent"}, "default"),
    ],
)
def test_a_service_tier_stands_for_a_class_where_there_is_no_header(
    tier: object, header: dict[str, str], effective: str
) -> None:
    async def scenario() -> None:
        async with world(admission={"service_tiers": {"priority": "interactive", "flex": "bulk"}}) as w:
            await w.request(body={"model": "m", "service_tier": tier}, **header)
            assert admitted(w) == {effective: 1}
            assert msgspec.json.decode(w.backends[0].received[0].body)["service_tier"] == tier

    run(scenario())


@pytest.mark.parametrize(
    ("objective", "header", "effective"),
    [
        ("chat", {}, "interactive"),
        ("night", {}, "bulk"),
        ("unknown", {}, "default"),
        ("chat", {"x_smg_priority": "bulk"}, "bulk"),
        (None, {}, "default"),
    ],
)
def test_an_objective_stands_for_a_class_where_there_is_no_header(
    objective: str | None, header: dict[str, str], effective: str
) -> None:
    async def scenario() -> None:
        async with world(admission={"objectives": {"chat": "interactive", "night": "bulk"}}) as w:
            named = {} if objective is None else {"x_gateway_inference_objective": objective}
            await w.request(body={"model": "m"}, **named, **header)
            assert admitted(w) == {effective: 1}
            assert b"x-gateway-inference-objective" not in dict(w.backends[0].received[0].headers)

    run(scenario())


def test_an_objective_goes_by_the_priority_that_discovery_knows() -> None:
    async def scenario() -> None:
        async with world(admission={"objective_priorities": {"interactive": 10, "default": 0, "bulk": -100}}) as w:
            w.gateway.scheduler.discovery.objectives.update(high=12, low=-1, lower=-200)
            for name in ("high", "low", "lower", "unknown"):
                await w.request(body={"model": "m"}, x_gateway_inference_objective=name)
            assert admitted(w) == {"interactive": 1, "bulk": 1, "default": 2}

    run(scenario())


def test_an_objective_that_says_no_class_goes_on_to_the_backend() -> None:
    async def scenario() -> None:
        async with world(admission={}) as w:
            await w.request(body={"model": "m"}, x_gateway_inference_objective="chat")
            assert admitted(w) == {"default": 1}
            assert dict(w.backends[0].received[0].headers)[b"x-gateway-inference-objective"] == b"chat"

    run(scenario())


def test_without_classes_nothing_is_counted_of_them() -> None:
    async def scenario() -> None:
        async with world(admission={"mode": "legacy", "default_max_class": "bulk"}) as w:
            await w.request(x_smg_priority="urgent")
            assert (clamps(w), w.gateway.counters.unknown_class) == ({}, {})

    run(scenario())


@pytest.mark.parametrize(
    ("engine", "priorities"),
    [("vllm", {"system": -2, "interactive": -1, "default": 0, "bulk": 1}),
     ("sglang", {"system": 2, "interactive": 1, "default": 0, "bulk": -1})],
)  # fmt: skip
def test_engines_disagree_about_what_is_urgent(engine: Any, priorities: dict[str, int]) -> None:
    assert {c.label: engine_priority(c, engine) for c in PriorityClass} == priorities


def test_the_priority_of_a_body_is_replaced_and_nothing_else() -> None:
    rest = b'"messages":[{"content":"\xc3\xa9 \\u00e9"}],"seed":12345678901234567890'

    body = b'{ "model":"m", "priority": -99, %b, "priority":-98}' % rest
    assert set_body_priority(body, 1) == b'{"model":"m",%b,"priority":1}' % rest
    assert set_body_priority(b'{"model":"m","prior\\u0069ty":-9}', 0) == b'{"model":"m","priority":0}'


def test_the_effective_class_reaches_the_engine_if_that_is_wanted() -> None:
    async def scenario(forward: str) -> list[int]:
        policies = {"ip:127.0.0.1": {"max_class": "interactive"}}
        async with world(admission={"tenant_policies": policies}, forward_priority=forward) as w:
            for name in ("system", "bulk"):
                await w.request(body={"model": "m", "priority": -99}, x_smg_priority=name)
            return [msgspec.json.decode(received.body)["priority"] for received in w.backends[0].received]

    assert run(scenario("off")) == [-99, -99]
    assert run(scenario("vllm")) == [-1, 1]
    assert run(scenario("sglang")) == [1, -1]


async def tokens(received: BackendRequest) -> None:
    if b"okenize" in received.head.split(b"\r\n")[0]:
        await received.send(whole(b'{"count":1}'))
    else:
        await received.wait_until_disconnected()


@pytest.mark.parametrize("path", ["/v1/tokenize", "/v1/detokenize", "/tokenize", "/detokenize"])
def test_cheap_reads_take_no_slot(path: str) -> None:
    async def scenario() -> None:
        admission = {"classes": {"default": {"queue_size": 0}}}
        async with world(Backend(tokens), slots=1, admission=admission, forward_priority="vllm") as w:
            await w.start_request()
            await w.wait_until(lambda: w.state.in_flight == 1)
            assert (await w.request())[0] == 429
            for body in ({"model": "m", "prompt": "hi"}, {"prompt": "hi"}):
                assert (await w.request(path, body))[::2] == (200, b'{"count":1}')
            assert b"priority" not in w.backends[0].received[-1].body
            assert (w.state.classes["default"].arrived, w.state.in_flight) == (2, 1)

    run(scenario())


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/v1/classify", "/generate", "/rerank"]
)
def test_whatever_makes_an_engine_generate_takes_one(path: str) -> None:
    async def scenario() -> None:
        async with world(Backend(answer)) as w:
            assert (await w.request(path))[0] == 200
            assert w.state.classes["default"].admitted == 1
            assert w.backends[0].received[0].head.startswith(f"POST {path} ".encode())

    run(scenario())


def test_a_body_that_need_not_name_a_model_means_the_only_one() -> None:
    async def scenario(*models: str) -> tuple[int, bytes]:
        async with world(Backend(models=models)) as w:
            status, _, body = await w.request("/generate", {"text": "hi"})
            return status, body

    assert run(scenario("m"))[0] == 200
    status, body = run(scenario("m", "n"))
    assert (status, msgspec.json.decode(body)["error"]["param"]) == (400, "model")


@pytest.mark.skipif(is_compiled(), reason="watches a method, which a compiled class does not allow")
@pytest.mark.parametrize(
    ("limit", "cost"),
    [
        ({}, 25 + 512),
        ({"max_tokens": 100}, 125),
        ({"max_completion_tokens": 1, "max_tokens": 100}, 125),
        ({"max_output_tokens": 8}, 33),
        ({"max_tokens": 100.0}, 125),
        ({"max_tokens": "100"}, 125),
        ({"max_tokens": 100, "n": 4}, 425),
        ({"max_tokens": 100, "n": 2, "best_of": "4"}, 425),
        ({"max_tokens": -1}, 25 + 512),
        ({"max_tokens": "many"}, 25 + 512),
        ({"max_tokens": 10**30}, 25 + 10_000_000),
    ],
)
def test_what_a_request_costs_where_slots_are_tokens(
    limit: dict[str, object], cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost is a quarter of the bytes of the body, plus the largest limit of the client for each answer."""
    asked: list[int] = []
    submit = RealTimeAdmission.submit

    def watched(self: RealTimeAdmission, request: Request, cost: int, task: asyncio.Task[None], now: Micros) -> SlotLease:
        asked.append(cost)
        return submit(self, request, cost, task, now)

    monkeypatch.setattr(RealTimeAdmission, "submit", watched)

    async def scenario() -> None:
        async with world() as w:
            body = msgspec.json.encode({"model": "m", **limit, "pad": ""})
            padded = msgspec.json.encode({"model": "m", **limit, "pad": "x" * (100 - len(body))})
            assert len(padded) == 100
            assert (await w.request(body=padded))[0] == 200

    run(scenario())
    assert asked == [cost]
