"""The headers of agents name sessions: programs with their parents, and the sessions of routers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_gateway_programs import driver, program, small
from world import Backend, run, world

from maitred.gateway.bodies.agent_headers import SessionReader, is_last_request
from maitred.gateway.bodies.request_fields import RoutingHintReader
from maitred.routing import Signals

CLAUDE = "x-claude-code-session-id"
AGENT = "x-claude-code-agent-id"
PARENT = "x-claude-code-parent-agent-id"
SESSIONS = [
    ({CLAUDE: "S"}, "S", ""),
    ({CLAUDE: "S", AGENT: "A"}, "S/A", "S"),
    ({CLAUDE: "S", AGENT: "A", PARENT: "B"}, "S/A", "S/B"),
    ({CLAUDE: "S", AGENT: "A", PARENT: "main"}, "S/A", "S"),
    ({CLAUDE: "S", AGENT: "A", PARENT: "S"}, "S/A", "S"),
    ({CLAUDE: "S", AGENT: "A", PARENT: "A"}, "S/A", "S"),
    ({CLAUDE: "S", AGENT: "A", PARENT: "  "}, "S/A", "S"),
    ({CLAUDE: "S", AGENT: ""}, "S", ""),
    ({CLAUDE: "S", AGENT: "main"}, "S", ""),
    ({CLAUDE: "S", PARENT: "B"}, "S", ""),
    ({AGENT: "A", PARENT: "B"}, "", ""),
    ({"session-id": "S", "session_id": "S", "conversation_id": "S"}, "S", ""),
    ({"session_id": "S"}, "S", ""),
    ({"conversation_id": "S"}, "S", ""),
    ({"x-session-id": "S"}, "S", ""),
    ({"x-session-id": "T", "x-parent-session-id": "S"}, "T", "S"),
    ({"x-session-id": "T", "x-parent-session-id": "T"}, "T", ""),
    ({"x-parent-session-id": "S"}, "", ""),
    ({"x-dynamo-session-id": "T", "x-dynamo-parent-session-id": "S"}, "T", "S"),
    ({"x-dynamo-session-id": "T", CLAUDE: "S", AGENT: "A"}, "T", ""),
    ({"x-session-id": "R", CLAUDE: "S", AGENT: "A"}, "S/A", "S"),
    ({"x-session-id": " ", "session-id": "S"}, "S", ""),
    ({"x-other": "S"}, "", ""),
]


def as_sent(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize(("headers", "name", "parent"), SESSIONS)
def test_programs_and_routers_read_one_table(headers: dict[str, str], name: str, parent: str) -> None:
    found = SessionReader().read(as_sent(headers))
    assert (found.program, found.parent) == (name, parent)
    hints = RoutingHintReader(Signals.SESSION).read_hints(as_sent(headers), b"{}", "m")
    assert (hints.program, hints.parent_program) == (name, parent)


def test_of_a_repeated_header_the_first_counts() -> None:
    assert SessionReader().read([(b"x-session-id", b"S"), (b"x-session-id", b"T")]).program == "S"


def test_the_configured_headers_replace_the_table() -> None:
    reader = SessionReader(["X-Agent", CLAUDE])
    assert reader.read(as_sent({CLAUDE: "S", AGENT: "A", "x-agent": "me"})).program == "me"
    assert reader.read(as_sent({CLAUDE: "S", AGENT: "A"})).program == "S"
    assert reader.read(as_sent({"x-session-id": "S"})).program == ""
    hints = RoutingHintReader(Signals.SESSION, reader).read_hints(as_sent({"x-agent": "me", CLAUDE: "S"}), b"{}", "m")
    assert hints.program == "me"


@pytest.mark.parametrize(
    ("headers", "is_last"),
    [
        ({"x-dynamo-session-final": "true"}, True),
        ({"x-dynamo-trajectory-final": " True "}, True),
        ({"x-dynamo-session-final": "1"}, True),
        ({"x-dynamo-session-final": "false"}, False),
        ({"x-dynamo-session-final": ""}, False),
        ({}, False),
    ],
)
def test_dynamo_says_which_request_is_the_last(headers: dict[str, str], is_last: bool) -> None:
    assert is_last_request(as_sent(headers)) is is_last


def under(headers: dict[str, str]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in headers.items()}


def test_sub_agents_are_children_of_their_main_agent() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={}) as w:
            for headers in ({CLAUDE: "S"}, {CLAUDE: "S", AGENT: "A"}, {CLAUDE: "S", AGENT: "B", PARENT: "A"}):
                await w.request(body={"model": "m"}, **under(headers))
            assert [p.key.name for p in driver(w).core.programs] == ["S", "S/A", "S/B"]
            assert program(w, "S/A").parent is program(w, "S")
            assert program(w, "S/B").parent is program(w, "S/A")
            sent = dict(w.backends[0].received[2].headers)
            assert (sent[CLAUDE.encode()], sent[AGENT.encode()], sent[PARENT.encode()]) == (b"S", b"B", b"A")

    run(scenario())


@pytest.mark.parametrize(
    ("body", "wanted"),
    [({"session_id": "s"}, ["s"]), ({"session_id": 7}, [""]), ({"session_id": "s", "program_id": "p"}, ["p"])],
)
def test_the_session_of_vllm_is_in_the_body_and_stays_there(body: dict[str, Any], wanted: list[str]) -> None:
    async def scenario() -> None:
        waiting = Backend(hold)
        async with world(waiting, programs={}) as w:
            asked = asyncio.create_task(w.request(body={"model": "m", **body}))
            await began.wait()
            assert [p.key.name for p in driver(w).core.programs] == wanted
            assert (b'"session_id"' in waiting.received[0].body) is ("session_id" in body)
            go.set()
            await asked

    began, go = asyncio.Event(), asyncio.Event()

    async def hold(request: Any) -> Any:
        began.set()
        await go.wait()
        return await small(request)

    run(scenario())


def test_the_last_request_of_a_session_releases_its_program() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={}) as w:
            await w.request(body={"model": "m"}, x_dynamo_session_id="D")
            await w.request(body={"model": "m"}, x_dynamo_session_id="E")
            await w.request(body={"model": "m"}, x_dynamo_session_id="D", x_dynamo_session_final="true")
            assert [p.key.name for p in driver(w).core.programs] == ["E"]

    run(scenario())
