"""An engine for the real SDKs: it speaks chats, responses and messages, whole and as streams, and does what the prompt says.

hello       answers "Hello, world!"
cut         sends two pieces of a stream, and is gone
slow        waits until `gate` is set, then says hello
broken      waits until `gate` is set, then answers 500
busy        answers 429 with `Retry-After: 600`
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from world import STREAM_HEAD, BackendRequest, chunk, whole

TEXT = "Hello, world!"
PIECES = ("Hello", ", ", "world", "!")
USAGE = {"input_tokens": 7, "output_tokens": 4}
_MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None, "usage": USAGE}
_PART = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}
_ITEM = {"id": "msg_1", "type": "message", "role": "assistant"}
_RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "error": None,
    "incomplete_details": None,
}


def last_text(body: dict[str, Any]) -> str:
    """Return the text of the last prompt of a body."""
    asked = body.get("messages") or body["input"]
    last = asked if isinstance(asked, str) else asked[-1]["content"]
    return str(last if isinstance(last, str) else last[-1]["text"])


def named(kind: str, **fields: Any) -> bytes:
    """Return a named event, whose data has its name as `type`."""
    return f"event: {kind}\n".encode() + plain({"type": kind, **fields})


def plain(data: object) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class Chat:
    """/v1/chat/completions."""

    def answer(self) -> dict[str, Any]:
        choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}

    def events(self) -> Iterator[bytes]:
        for piece in (*PIECES, None):
            delta = {} if piece is None else {"content": piece}
            choice = {"index": 0, "delta": delta, "finish_reason": None if piece else "stop"}
            yield plain({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})
        yield b"data: [DONE]\n\n"


class Responses:
    """/v1/responses."""

    def answer(self) -> dict[str, Any]:
        usage = {**USAGE, "total_tokens": 11, "input_tokens_details": {"cached_tokens": 0}}
        usage["output_tokens_details"] = {"reasoning_tokens": 0}
        output = [{**_ITEM, "status": "completed", "content": [_PART]}]
        return {**_RESPONSE, "status": "completed", "output": output, "usage": usage}

    def events(self) -> Iterator[bytes]:
        at: dict[str, Any] = {"output_index": 0}
        part = {**at, "item_id": "msg_1", "content_index": 0}
        steps: list[tuple[str, dict[str, Any]]] = [
            ("response.created", {"response": {**_RESPONSE, "status": "in_progress", "output": []}}),
            ("response.output_item.added", {**at, "item": {**_ITEM, "status": "in_progress", "content": []}}),
            ("response.content_part.added", {**part, "part": {**_PART, "text": ""}}),
            *(("response.output_text.delta", {**part, "delta": piece, "logprobs": []}) for piece in PIECES),
            ("response.output_text.done", {**part, "text": TEXT, "logprobs": []}),
            ("response.content_part.done", {**part, "part": _PART}),
            ("response.output_item.done", {**at, "item": {**_ITEM, "status": "completed", "content": [_PART]}}),
            ("response.completed", {"response": self.answer()}),
        ]
        for number, (kind, fields) in enumerate(steps):
            yield named(kind, sequence_number=number, **fields)


class Messages:
    """/v1/messages."""

    def answer(self) -> dict[str, Any]:
        return {**_MESSAGE, "stop_reason": "end_turn", "content": [{"type": "text", "text": TEXT}]}

    def events(self) -> Iterator[bytes]:
        yield named("message_start", message={**_MESSAGE, "stop_reason": None, "content": []})
        yield named("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for piece in PIECES:
            yield named("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        yield named("content_block_stop", index=0)
        yield named("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage=USAGE)
        yield named("message_stop")


APIS: dict[str, Chat | Responses | Messages] = {
    "/v1/chat/completions": Chat(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}


class SdkEngine:
    """The responder of a backend."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def __call__(self, received: BackendRequest) -> None:
        path = received.head.split(b" ")[1].decode().partition("?")[0]
        body: dict[str, Any] = msgspec.json.decode(received.body)
        does = last_text(body)
        if does in ("slow", "broken"):
            await self.gate.wait()
        if does == "broken":
            await received.send(whole(b'{"error":{"message":"out of memory"}}', b"500 Internal Server Error"))
        elif does == "busy":
            await received.send(whole(b'{"error":{"message":"busy"}}', b"429 Too Many Requests", b"retry-after: 600\r\n"))
        elif body.get("stream"):
            await self._stream(received, list(APIS[path].events()), cut=does == "cut")
        else:
            await received.send(whole(msgspec.json.encode(APIS[path].answer())))

    async def _stream(self, received: BackendRequest, events: Sequence[bytes], *, cut: bool) -> None:
        await received.send(STREAM_HEAD)
        for event in events[: 4 if cut else None]:
            await received.send(chunk(event))
        if cut:
            raise ConnectionError
        await received.send(b"0\r\n\r\n")
