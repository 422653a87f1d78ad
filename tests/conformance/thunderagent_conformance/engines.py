"""Mock vLLM engines: they report their KV memory as vLLM does, and do with each request what the timeline says.

The numbers of the metrics page do not change, but for the capacity; they are those that the recorded system was shown. A
request is found again by the tag that its first message begins with, so that its body needs no field of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ..smg_conformance.engines import Asked, Journal, MockServer, Visit, event_chunk, whole_answer
from .scenario import Send

MODEL = "m"
UP_APART_SECS = 0.005
"""Engines come up in their order, which is the recorded system's where they are alike."""
_TAG = re.compile(r"#(\d+) ")
_COUNTS = """\
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 800.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1500.0
vllm:generation_tokens_total{engine="0",model_name="m"} 300.0
vllm:num_preemptions_total{engine="0",model_name="m"} 0.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 0.0
"""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is to do with one request."""

    gate: str | None = None
    delay_s: float = 0.0
    chunks: int = 1
    chunk_gate: str | None = None
    chunks_before_gate: int = 0
    status: int = 200
    usage: dict[str, Any] | None = None


def orders_of(send: Send) -> Orders:
    """What a step of the timeline says."""
    usage = send.answer_usage if isinstance(send.answer_usage, dict) else None
    if send.answer_usage is True:
        output = max(0, send.total_tokens - send.prompt_tokens)
        usage = {"prompt_tokens": send.prompt_tokens, "completion_tokens": output, "total_tokens": send.total_tokens}
        if send.answer_cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": send.answer_cached_tokens}
    gate = send.chunk_gate
    return Orders(
        gate=send.gate,
        delay_s=send.answer_delay_s,
        chunks=send.answer_chunks,
        chunk_gate=None if gate is None else gate.gate,
        chunks_before_gate=0 if gate is None else gate.after_chunks,
        status=send.answer_status,
        usage=usage,
    )


class EngineJournal(Journal):
    """What the engines of one world have seen, and what they are to do."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: dict[str, Orders] = {}
        """By the tag of the request; a request without orders is answered at once."""
        self.open_gates: set[str] = set()
        self.on_visit: Callable[[Visit], Awaitable[object]] | None = None
        """Awaited before a request is answered."""

    def open_gate(self, name: str) -> None:
        self.open_gates.add(name)
        self.change()

    async def passed(self, gate: str | None) -> None:
        """Wait until a gate is open; None stands for no gate."""
        if gate is not None:
            await self.until(lambda: gate in self.open_gates)


def tag_of(body: object) -> str:
    """The tag that the first message of a request begins with, or "?"."""
    match body:
        case {"messages": [{"content": str(content)}, *_]} if found := _TAG.match(content):
            return found[1]
    return "?"


class MockVllm(MockServer):
    """One mock engine."""

    def __init__(self, index: int, capacity: int | None, journal: EngineJournal) -> None:
        super().__init__()
        self.index = index
        self.capacity = capacity
        self._journal = journal
        self._is_up = False

    async def respond(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        if asked.path == "/metrics":
            page = self._metrics().encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: %d\r\n\r\n" % len(page)
            writer.write(head + page)
        elif asked.path == "/health":
            if not self._is_up:
                self._is_up = True
                await asyncio.sleep(self.index * UP_APART_SECS)
            writer.write(whole_answer(200, {}))
        elif asked.path == "/v1/models":
            listed = [{"id": MODEL, "object": "model", "created": 1, "owned_by": "mock"}]
            writer.write(whole_answer(200, {"object": "list", "data": listed}))
        elif asked.path == "/v1/chat/completions":
            await self._chat(asked, writer)
        else:
            writer.write(whole_answer(404, {"detail": "Not Found"}))

    def _metrics(self) -> str:
        if self.capacity is None:
            return _COUNTS
        return f'vllm:cache_config_info{{block_size="1",engine="0",num_gpu_blocks="{self.capacity}"}} 1.0\n{_COUNTS}'

    async def _chat(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = msgspec.json.decode(asked.body)
        now = asyncio.get_running_loop().time
        visit = Visit(tag_of(body), self.index, now(), asked.headers, body)
        self._journal.visits.append(visit)
        self._journal.change()
        visit.end = "disconnected"
        try:
            if self._journal.on_visit is not None:
                await self._journal.on_visit(visit)
            await self._obey(self._journal.orders.get(visit.name, Orders()), body, writer)
            visit.end = "answered"
        finally:
            visit.ended_at = now()
            self._journal.change()

    async def _obey(self, orders: Orders, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await self._journal.passed(orders.gate)
        await asyncio.sleep(orders.delay_s)
        if orders.status != 200:
            writer.write(whole_answer(orders.status, {"error": {"message": "as asked", "type": "mock"}}))
        elif not body.get("stream"):
            writer.write(whole_answer(200, _answer("chat.completion", orders.usage, message="a")))
        else:
            await self._stream(orders, body, writer)

    async def _stream(self, orders: Orders, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(orders.chunks):
            if number == orders.chunks_before_gate:
                await self._journal.passed(orders.chunk_gate)
            writer.write(event_chunk(msgspec.json.encode(_answer("chat.completion.chunk", None, delta="a"))))
        options = body.get("stream_options")
        if orders.usage is not None and isinstance(options, dict) and options.get("include_usage") is True:
            last = {**_answer("chat.completion.chunk", orders.usage), "choices": []}
            writer.write(event_chunk(msgspec.json.encode(last)))
        writer.write(event_chunk(b"[DONE]") + b"0\r\n\r\n")


def _answer(kind: str, usage: object, **text: str) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": None, **{key: {"role": "assistant", "content": said} for key, said in text.items()}}
    answer: dict[str, Any] = {"id": "mock", "object": kind, "created": 1, "model": MODEL, "choices": [choice]}
    return answer if usage is None else {**answer, "usage": usage}
