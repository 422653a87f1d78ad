"""Agent programs as clients of a gateway: each asks, runs a tool, asks again with everything so far, and releases itself.

A request that fails (no connection, a refusal, a stream that breaks off) is sent again after a moment, as agents do. So a
program is only lost if it cannot finish at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httptools

BYTES_PER_TOKEN = 4
"""Of an emulated engine."""
RETRY_SECS = 0.25
CHAT, RELEASE = "/v1/chat/completions", "/programs/release"


@dataclass(frozen=True)
class Turn:
    """One request, and the tool before it."""

    new_tokens: int
    """Tokens that it adds to the context."""
    output_tokens: int
    tool_secs: float
    """From the last response to it."""


@dataclass(frozen=True)
class Agent:
    """One program."""

    name: str
    starts_at: float
    """Seconds after the first one."""
    turns: Sequence[Turn]

    @property
    def start_tokens(self) -> int:
        return self.turns[0].new_tokens


@dataclass
class AgentRun:
    """What became of one program. Times are seconds on the clock of the loop."""

    agent: Agent
    began: float = 0.0
    first_token: float | None = None
    """Of its first response."""
    ended: float | None = None
    """When its last response was whole, or None if it never was."""
    retries: list[str] = field(default_factory=list)
    """Why each of the failed requests failed."""

    @property
    def first_response_secs(self) -> float:
        assert self.first_token is not None
        return self.first_token - self.began

    @property
    def makespan_secs(self) -> float:
        assert self.ended is not None
        return self.ended - self.began


def burst(num_agents: int, turns: int, over_secs: float, rng: Random, speed: float = 1.0) -> list[Agent]:
    """Return agents that start within `over_secs`. Their first prompts have 1,400 to 8,100 tokens, as in the burst that
    ThunderAgent's users reported; every later turn adds a few hundred. All times are divided by `speed`."""
    return [
        Agent(
            f"agent-{number}",
            over_secs * number / num_agents / speed,
            [
                Turn(
                    rng.randint(1_400, 8_100) if turn == 0 else rng.randint(100, 400),
                    rng.randint(40, 80),
                    0.0 if turn == 0 else rng.uniform(0.4, 1.2) / speed,
                )
                for turn in range(turns)
            ],
        )
        for number in range(num_agents)
    ]


async def run_agents(url: str, agents: Sequence[Agent], runs: list[AgentRun]) -> None:
    """Run all agents to their ends. `runs` gets one run for each, at once, to be observed."""
    loop = asyncio.get_running_loop()
    runs += [AgentRun(agent) for agent in agents]
    start = loop.time()
    await asyncio.gather(*(_run(url, run, start) for run in runs))


async def _run(url: str, run: AgentRun, start: float) -> None:
    loop, rng = asyncio.get_running_loop(), Random(run.agent.name)
    messages: list[dict[str, str]] = []
    await asyncio.sleep(start + run.agent.starts_at - loop.time())
    run.began = loop.time()
    for turn in run.agent.turns:
        await asyncio.sleep(turn.tool_secs)
        # Random text, so that programs share no prefix.
        text = rng.randbytes(turn.new_tokens * BYTES_PER_TOKEN // 2).hex()
        messages.append({"role": "user", "content": text})
        body = {
            "model": "emulated",
            "messages": messages,
            "max_tokens": turn.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "program_id": run.agent.name,
        }
        messages.append({"role": "assistant", "content": await _ask_until_answered(url, run, body)})
    run.ended = loop.time()
    while await _post(url, RELEASE, {"program_id": run.agent.name}) is None:
        await asyncio.sleep(RETRY_SECS)


async def _ask_until_answered(url: str, run: AgentRun, body: dict[str, Any]) -> str:
    while True:
        answer = await _post(url, CHAT, body)
        if answer is not None and answer.status == 200 and answer.is_whole_stream:
            if run.first_token is None:
                run.first_token = answer.first_body
            return answer.text
        run.retries.append("no connection" if answer is None else answer.failure)
        await asyncio.sleep(RETRY_SECS)


class _Answer:
    """One response. httptools tells it what it finds."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.first_body: float | None = None
        self.body = b""
        self.is_complete = False

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self.first_body is None:
            self.first_body = asyncio.get_running_loop().time()
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True

    @property
    def is_whole_stream(self) -> bool:
        return self.is_complete and self.body.rstrip().endswith(b"data: [DONE]")

    @property
    def failure(self) -> str:
        """What is wrong with it, in a few words."""
        if self.status == 200:
            return "a stream that broke off"
        if not self.status:
            return "a connection that broke off"
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return f"{self.status} {json.loads(self.body)['error']['code']}"
        return str(self.status)

    @property
    def text(self) -> str:
        """The words of a streamed chat."""
        events = [json.loads(line[6:]) for line in self.body.splitlines() if line.startswith(b"data: {")]
        return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def _post(url: str, path: str, body: dict[str, Any]) -> _Answer | None:
    """Return the response, whole or not, or None if there is no connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    content, answer = json.dumps(body).encode(), _Answer()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return None
    try:
        writer.write(head.encode() + content)
        while not answer.is_complete and (data := await reader.read(65_536)):
            answer.parser.feed_data(data)
    except OSError:  # Reset: an end like any other.
        pass
    finally:
        writer.close()
    return answer
