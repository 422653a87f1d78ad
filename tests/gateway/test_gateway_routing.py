"""What routers see through a gateway: sessions, prompts, and the load that backends report."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from world import Backend, BackendRequest, answer, run, world

from maitred.gateway.bodies.request_fields import RoutingHintReader
from maitred.gateway.config import GatewayConfig
from maitred.gateway.intake.intake_rules import IntakeRules
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig, Signals
from maitred.scheduler.backends.backend import Backend as BackendView
from maitred.scheduler.engines.polling import parse_reported_load
from maitred.scheduler.engines.report import EngineCounts, EngineReport, KvMemory

SESSION = RoutingHintReader(Signals.SESSION)


def body(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", **fields})


def turns(routing: RoutingConfig, bodies: Sequence[dict[str, Any]], **headers: str) -> list[int]:
    """Return to which of three backends each request goes, one after the other."""

    async def scenario() -> list[int]:
        async with world(Backend(), Backend(), Backend(), routing=routing) as w:
            went: list[int] = []
            for said in bodies:
                before = [len(backend.received) for backend in w.backends]
                await w.request(body={"model": "m", **said}, **headers)
                after = [len(backend.received) for backend in w.backends]
                went.append(next(place for place in range(3) if after[place] > before[place]))
            return went

    return run(scenario())


def test_a_session_stays_at_its_backend() -> None:
    routing = RoutingConfig(policy="session-affinity(round-robin)")
    assert turns(routing, [{"program_id": name} for name in "abcabcca"]) == [0, 1, 2, 0, 1, 2, 2, 0]
    assert turns(routing, [{"session_id": 7}] * 3, x_smg_routing_key="k") == [0, 0, 0]
    assert turns(routing, [{}] * 3, x_smg_routing_key="k") == [0, 0, 0]
    assert turns(RoutingConfig(policy="round-robin"), [{"program_id": "a"}] * 3) == [0, 1, 2]


def test_without_a_name_the_tenant_is_the_session() -> None:
    assert turns(RoutingConfig(policy="session-affinity(round-robin)"), [{}] * 3) == [0, 0, 0]


def test_prompts_that_begin_alike_go_to_the_same_backend() -> None:
    routing = RoutingConfig(policy="weighted", scorers="prefix-affinity:1, active-requests:0.01")
    chats = [[{"role": "system", "content": f"You are number {n}. " + "Be brief. " * 40}] for n in range(6)]
    first = turns(routing, [{"messages": chat} for chat in [*chats, *chats]])
    assert first[:6] == first[6:]
    assert len(set(first)) > 1


def test_the_routing_key_is_forwarded() -> None:
    async def scenario() -> bytes:
        async with world(Backend(), routing=RoutingConfig(policy="session-affinity")) as w:
            await w.request(x_smg_routing_key="k")
            return w.backends[0].received[0].headers[b"x-smg-routing-key"]

    assert run(scenario()) == b"k"


@pytest.mark.parametrize(
    ("headers", "said", "program", "key"),
    [
        ([], {}, "", ""),
        ([(b"x-session-id", b" s "), (b"x-session-id", b"later")], {"program_id": "p"}, "s", ""),
        ([(b"x-session-id", b"s"), (b"x-program-id", b"p")], {}, "p", ""),
        ([(b"x-smg-routing-key", b"k")], {"program_id": "p", "session_id": "s"}, "p", "k"),
        ([], {"program_id": None, "session_id": 12}, "12", ""),
        ([], {"program_id": {"a": 1}, "session_id": [2]}, "", ""),
    ],
)
def test_where_a_session_is_named(headers: list[tuple[bytes, bytes]], said: dict[str, Any], program: str, key: str) -> None:
    found = SESSION.read_hints(headers, body(**said), "m")
    assert (found.program, found.routing_key, found.prefix) == (program, key, None)


@pytest.mark.parametrize("number", ["1e400", "9" * 5000])
def test_a_session_that_cannot_be_read_is_none(number: str) -> None:
    assert SESSION.read_hints([], f'{{"model": "m", "program_id": {number}}}'.encode(), "m").program == ""


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        ({"routing": RoutingConfig(policy="session-affinity")}, b'{"model":"m","session_id":"a\xff"}'),
        ({"routing": RoutingConfig(policy="session-affinity")}, b'{"model":"m","program_id":"a\xff"}'),
        ({"record": "record.csv"}, b'{"model":"m","session_id":"a\xff"}'),
        ({"forward_priority": "vllm"}, b'{"model":"m","a\xff":1}'),
        ({"forward_priority": "sglang"}, b'{"model":"m","a\xff":1}'),
    ],
)
def test_what_is_read_and_is_no_utf8_is_an_error_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], sent: bytes
) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        async with world(**config) as w:
            status, _, answered = await w.request(body=sent)
            assert status == 400
            assert b"the request body is not valid JSON: 'utf-8' codec can't decode byte 0xff" in answered
            assert w.state.parked_body_bytes == 0
            # What the gateway does not read is left to the backend.
            assert (await w.request(body=b'{"model":"m","messages":"\xff"}'))[0] == 200

    run(scenario())


def test_of_long_names_a_digest_is_kept() -> None:
    one, other = (SESSION.read_hints([], body(program_id="x" * 1000 + end), "m").program for end in "ab")
    assert one != other
    assert len(one) == len(other) == 32


def test_nothing_is_read_for_routers_that_look_at_nothing() -> None:
    rules = IntakeRules(GatewayConfig(), ProgramsConfig(), Signals.LOAD | Signals.CACHES, reads_usage=False)
    assert rules.hints is None


def test_prompts_share_keys_as_far_as_they_are_alike() -> None:
    reader = RoutingHintReader(Signals.PROMPT)

    def keys(model: str, **said: Any) -> Sequence[int]:
        prefix = reader.read_hints([], body(**said), model).prefix
        assert prefix is not None
        return prefix.block_keys(4)  # 16 bytes

    received = [{"role": "user", "content": "x" * 100}]
    short, long = keys("m", messages=received), keys("m", messages=[*received, {"role": "assistant", "content": "y" * 100}])
    assert len(long) > len(short) > 5
    assert list(long[: len(short) - 1]) == list(short[:-1])
    assert keys("n", messages=received)[0] != short[0], "another model"
    assert keys("m", messages=received, tools=[{"name": "t"}])[0] != short[0], "tools come first"
    assert reader.read_hints([], body(temperature=0), "m").prefix is None

    picture = [*received, {"role": "user", "content": "z" * 2_000_000}]
    assert 2**20 // 16 - 8 < len(keys("m", messages=picture)) <= 2**20 // 16, "one MiB tells it from all others"
    assert list(keys("m", messages=picture)[: len(short) - 1]) == list(short[:-1])
    for number in range(4):  # the MiB ends within an escape, or between two
        quotes = [{"role": "user", "content": "x" * number + '"' * 600_000}]
        assert len(keys("m", messages=quotes)) > 60_000


MARK = {"cache_control": {"type": "ephemeral"}}
LONG = "Rule: be exact. " * 40
TURN = {"role": "assistant", "content": "fine, " * 40}


def block(text: str, **marks: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **marks}


def said(content: Any, *more: Any) -> list[Any]:
    return [{"role": "user", "content": content}, *more]


def picture(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{data}"}}


SAME_PROMPTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a mark that has moved on": (
        {"messages": said([block(LONG, **MARK)])},
        {"messages": said([block(LONG)], TURN, {"role": "user", "content": [block("more", **MARK)]})},
    ),
    "a string and a list of blocks": ({"messages": said(LONG)}, {"messages": said([block(LONG)], TURN)}),
    "the header of a bill": (
        {"system": [block("x-anthropic-billing-header: v=1; cch=00abc;"), block(LONG)], "messages": said("hi")},
        {"system": [block("x-anthropic-billing-header: v=1; cch=f00ba;"), block(LONG)], "messages": said("hi", TURN)},
    ),
    "the header of a bill as a string": (
        {"system": "x-anthropic-billing-header: v=1; cch=00abc;", "messages": said(LONG)},
        {"system": "x-anthropic-billing-header: v=1; cch=f00ba;", "messages": said(LONG, TURN)},
    ),
    "the header of a bill in front of a system prompt": (
        {"messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=00abc;\n\n" + LONG}, *said("hi")]},
        {"messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=f00ba;\n\n" + LONG}, *said("hi", TURN)]},
    ),
    "marks of tools": (
        {"tools": [{"name": "t", "description": LONG, **MARK}], "messages": said("hi")},
        {"tools": [{"name": "t", "description": LONG}], "messages": said("hi", TURN)},
    ),
    "mark first": (
        {"tools": [{**MARK, "name": "t", "description": LONG}], "messages": said("hi")},
        {"tools": [{"name": "t", "description": LONG}], "messages": said("hi", TURN)},
    ),
    "input of responses": (
        {"instructions": LONG, "input": said([{"type": "input_text", "text": LONG}])},
        {"instructions": LONG, "input": said(LONG, {"type": "function_call_output", "output": "o" * 99})},
    ),
}


def prompt_keys(fields: dict[str, Any]) -> list[int]:
    prefix = RoutingHintReader(Signals.PROMPT).read_hints([], body(**fields), "m").prefix
    assert prefix is not None
    return list(prefix.block_keys(4))


@pytest.mark.parametrize("what", SAME_PROMPTS)
def test_the_next_turn_begins_as_the_last_one_whatever_no_engine_computes(what: str) -> None:
    first, following = map(prompt_keys, SAME_PROMPTS[what])
    assert len(following) > len(first) > 30
    assert following[: len(first) - 1] == first[:-1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"messages": said(LONG)}, {"messages": [{"role": "system", "content": LONG}]}),
        ({"messages": said([picture("a"), block(LONG)])}, {"messages": said([picture("b"), block(LONG)])}),
        ({"prompt": [1, 2] * 200}, {"prompt": [1, 3] * 200}),
        ({"prompt": LONG}, {"prompt": "x" + LONG}),
        ({"messages": said(LONG.replace("exact", '\\"role\\": \\"x\\"'))}, {"messages": said(LONG)}),
        ({"system": f"x-anthropic-billing-header: v=1;\n{LONG}"}, {"system": f"x-anthropic-billing-header: v=1;\nx{LONG}"}),
    ],
    ids=["roles", "images", "token ids", "texts", "quotes", "behind the header of a bill"],
)
def test_prompts_that_an_engine_computes_differently_differ(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert prompt_keys(one)[0:9] != prompt_keys(other)[0:9]


VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m {x}"} 3.0
vllm:num_requests_running{engine="1",model_name="m {x}"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m {x}"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 100.0
vllm:kv_cache_usage_perc{engine="0",model_name="m {x}"} 5.2e-05
vllm:kv_cache_usage_perc{engine="1",model_name="m {x}"} 0.5
"""
SGLANG = b"""sglang:num_running_reqs{model_name="m",tp_rank="0"} 5.0
sglang:num_queue_reqs{model_name="m"} 7.0
sglang:token_usage{model_name="m"} 0.25
"""


@pytest.mark.parametrize(
    ("page", "load"),
    [
        (VLLM, (2, 7, (5.2e-05 + 0.5) / 2)),
        (SGLANG, (7, 5, 0.25)),
        (b"vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.75", (0, 1, 0.75)),
        (b"vllm:num_requests_running NaN\nvllm:num_requests_running -3\nvllm:num_requests_running 2", (0, 2, None)),
        (b"python_info 1\n", None),
        (b"\xff\xfe", None),
    ],
)
def test_what_engines_say_of_their_load(page: bytes, load: tuple[int, int, float | None] | None) -> None:
    report = parse_reported_load(page)
    assert (None if report is None else (report.waiting, report.running, report.kv_usage)) == load


def loaded(waiting: int) -> bytes:
    return b"vllm:num_requests_running 1\nvllm:num_requests_waiting %d\n" % waiting


def test_a_router_that_looks_at_queues_sees_those_of_the_backends() -> None:
    async def scenario() -> None:
        backends = one, other = Backend(), Backend()
        one.metrics, other.metrics = loaded(5), loaded(0)
        async with world(*backends, routing=RoutingConfig(policy="weighted", scorers="queue-depth:1")) as w:
            views = w.gateway.scheduler.fleet.backends
            await w.wait_until(lambda: [view.waiting for view in views] == [5, 0])
            for _ in range(4):
                await w.request()
            one.metrics, other.metrics = loaded(0), loaded(3)
            await w.wait_until(lambda: [view.waiting for view in views] == [0, 3])
            for _ in range(2):
                await w.request()
            assert [len(backend.received) for backend in backends] == [2, 4]
            one.status = b"500 Oh"
            await w.wait_until(lambda: not views[0].healthy)
            assert (views[0].load, views[0].waiting, views[0].kv_usage, views[1].running) == (None, None, None, 1)

    run(scenario())


def in_flight_at_each(*backends: Backend, routing: RoutingConfig, bodies: Sequence[dict[str, Any]]) -> list[int]:
    """Return how many of these requests go to each backend, if all are sent before one is answered."""

    async def scenario() -> list[int]:
        may_answer = asyncio.Event()

        async def answer_late(received: BackendRequest) -> None:
            await may_answer.wait()
            await answer(received)

        async with world(*backends, slots=100, routing=routing) as w:
            for backend in backends:
                backend.respond = answer_late
            views = w.gateway.scheduler.fleet.backends
            await w.wait_until(lambda: all(view.healthy and view.has_been_polled for view in views))
            sent = [asyncio.ensure_future(w.request(body=body)) for body in bodies]
            await w.wait_until(lambda: sum(len(backend.received) for backend in backends) == len(bodies))
            may_answer.set()
            await asyncio.gather(*sent)
            return [len(backend.received) for backend in backends]

    return run(scenario())


@pytest.mark.parametrize("policy", ["cache-aware", "weighted", "cache-aware(most=100)"])
def test_a_router_that_remembers_prompts_is_told_how_much_a_backend_holds(policy: str) -> None:
    async def scenario() -> None:
        backend = Backend()
        backend.metrics = loaded(0) + b'vllm:cache_config_info{block_size="16",num_gpu_blocks="27000"} 1.0\n'
        scorers = ("prefix-affinity:1",) if policy == "weighted" else ()
        async with world(backend, routing=RoutingConfig(policy=policy, scorers=scorers)) as w:
            view = w.gateway.scheduler.fleet.backends[0]
            if "most" in policy:
                await w.request()
                assert view.kv_tokens is None, "nobody asked"
                return
            await w.wait_until(lambda: view.kv_tokens == 27_000 * 16)
            backend.metrics = None
            await w.wait_until(lambda: view.load is None)
            assert view.kv_tokens == 27_000 * 16, "a memory does not shrink because a page was not read"

    run(scenario())


def test_a_backend_whose_load_cannot_be_read_draws_its_share() -> None:
    busy, unread = Backend(), Backend()
    busy.metrics, unread.metrics = loaded(5), None
    routing = RoutingConfig(policy="weighted", scorers="queue-depth:1")
    assert in_flight_at_each(busy, unread, routing=routing, bodies=[{"model": "m"}] * 20) == [10, 10]


@pytest.mark.parametrize(
    ("policy", "scorers"),
    [
        ("cache-aware", ""),
        ("prefix-hash", ""),
        ("consistent-hashing", ""),
        ("session-affinity", ""),
        ("weighted", "prefix-affinity:2, load-balance:1"),
    ],
)
def test_conversations_with_one_system_prompt_use_all_backends(policy: str, scorers: str) -> None:
    system = {"role": "system", "content": "Rule: be exact and kind. " * 400}
    bodies = [{"model": "m", "messages": [system, {"role": "user", "content": f"{n} " * 50}]} for n in range(32)]
    went = in_flight_at_each(Backend(), Backend(), routing=RoutingConfig(policy=policy, scorers=scorers), bodies=bodies)
    assert min(went) >= 10


def loaded_report() -> EngineReport:
    counts = EngineCounts(num_requests_waiting=5, num_requests_running=8, kv_cache_usage_perc=0.5)
    return EngineReport(engine="vllm", memories=(KvMemory(),), counts=counts)


def test_a_report_of_a_load_is_used_for_three_looks() -> None:
    backend, report = BackendView(0, "http://a:1"), loaded_report()
    backend.note_load(report)
    for _ in range(2):
        backend.note_load(report)
        assert (backend.waiting, backend.running, backend.kv_usage) == (5, 8, 0.5)
    for _ in range(2):
        backend.note_load(report)
        assert (backend.waiting, backend.running, backend.kv_usage) == (None, None, None)
    backend.note_load(loaded_report())
    assert (backend.waiting, backend.running, backend.kv_usage) == (5, 8, 0.5)
    backend.note_load(None)
    assert backend.waiting is None


def polls(policy: str, metrics: bytes | None) -> int:
    """Return how often a backend is asked for its load in 20 polls of its health."""

    async def scenario() -> int:
        backend = Backend()
        backend.metrics = metrics
        async with world(backend, routing=RoutingConfig(policy=policy), health_interval_secs=0.002) as w:
            await w.wait_until(lambda: backend.health_polls > 20)
            return backend.metrics_polls

    return run(scenario())


def test_backends_are_asked_for_their_load_only_if_a_policy_reads_it_and_if_they_report_it() -> None:
    assert polls("least-loaded", loaded(0)) == 0
    assert polls("least-loaded(load=effective)", loaded(0)) > 3
    assert polls("least-loaded(load=effective)", None) == 1
