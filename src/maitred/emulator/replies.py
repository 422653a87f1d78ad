"""Answers as OpenAI's clients read them: chunks of an event stream, or one JSON object at the end.

A pacer says how many tokens of each choice are out; the words follow from the count (`tokens.piece`).
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

import msgspec

from maitred.emulator import tokens
from maitred.emulator.endings import Ending
from maitred.wire import sse
from maitred.wire.asgi import Send, send_now

Json: TypeAlias = dict[str, object]

_encode = msgspec.json.Encoder().encode


class Dialect(Protocol):
    """The shape of an endpoint's answers. `None` in place of a text: there is nothing more to say."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def opening(self) -> Json | None:
        """What a stream says of a choice before its first token."""
        ...

    def fresh(self, text: str | None) -> Json: ...

    def whole(self, text: str) -> Json: ...


class ChatDialect:
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> Json | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def fresh(self, text: str | None) -> Json:
        return {"delta": {} if text is None else {"content": text}}

    def whole(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}


class TextDialect:
    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self) -> Json | None:
        return None

    def fresh(self, text: str | None) -> Json:
        return {"text": text or ""}

    def whole(self, text: str) -> Json:
        return {"text": text}


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer before its first token; one ending per choice."""

    dialect: Dialect
    id: str
    created: int
    """Unix time in seconds."""
    model: str
    prompt_tokens: int
    endings: tuple[Ending, ...]
    usage_wanted: bool = False
    """As a last chunk of the stream."""

    def usage(self) -> Json:
        completion_tokens = sum(ending.tokens for ending in self.endings)
        total = self.prompt_tokens + completion_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}

    def whole(self) -> Json:
        """The complete answer of a request that does not stream."""
        choices = [
            self._choice(index, self.dialect.whole(tokens.filler(ending.tokens)), ending.reason)
            for index, ending in enumerate(self.endings)
        ]
        return {**self._head(self.dialect.whole_object), "choices": choices, "usage": self.usage()}

    def events(self, index: int, sent: int, emitted: int) -> bytes:
        """The events of one choice from after its token `sent` to `emitted`, with what opens and closes it."""
        events = []
        if sent == 0 and (opening := self.dialect.opening()) is not None:
            events.append(self._chunk(index, opening))
        events += [self._chunk(index, self.dialect.fresh(tokens.piece(position))) for position in range(sent, emitted)]
        if emitted == self.endings[index].tokens:
            events.append(self._chunk(index, self.dialect.fresh(None), self.endings[index].reason))
        return b"".join(events)

    def closing(self) -> bytes:
        """The events after those of all choices."""
        usage = {**self._head(self.dialect.chunk_object), "choices": [], "usage": self.usage()}
        return (sse.event(_encode(usage)) if self.usage_wanted else b"") + sse.DONE

    def _chunk(self, index: int, said: Json, finish_reason: str | None = None) -> bytes:
        chunk: Json = {**self._head(self.dialect.chunk_object), "choices": [self._choice(index, said, finish_reason)]}
        if self.usage_wanted:
            chunk["usage"] = None
        return sse.event(_encode(chunk))

    @staticmethod
    def _choice(index: int, said: Json, finish_reason: str | None) -> Json:
        return {"index": index, **said, "logprobs": None, "finish_reason": finish_reason}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class Answering(Protocol):
    """An answer in the making. `done` ends when the last of it has been handed to the server."""

    done: asyncio.Future[None]

    def progress(self, index: int, emitted: int) -> None:
        """So many tokens of the choice `index` are out."""
        ...


class Whole:
    """Waits until every choice is complete; what to send is `Reply.whole`."""

    def __init__(self, reply: Reply) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._endings = reply.endings
        self._open = len(reply.endings)

    def progress(self, index: int, emitted: int) -> None:
        if emitted == self._endings[index].tokens:
            self._open -= 1
            if not self._open and not self.done.done():
                self.done.set_result(None)


class Streamed:
    """Sends tokens as they come. While the client is too slow to take them they are only counted: an engine does not wait."""

    def __init__(self, reply: Reply, send: Send) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reply = reply
        self._send = send
        self._emitted = [0] * len(reply.endings)
        self._sent = [0] * len(reply.endings)
        self._open = sum(ending.tokens for ending in reply.endings)
        """Tokens not sent yet, of all choices."""
        self._sending: asyncio.Task[None] | None = None

    def progress(self, index: int, emitted: int) -> None:
        self._emitted[index] = emitted
        if self._sending is None:
            self._send_choice(index)

    def _send_choice(self, index: int) -> None:
        sent, emitted = self._sent[index], self._emitted[index]
        self._sent[index] = emitted
        self._open -= emitted - sent
        events = self._reply.events(index, sent, emitted)
        if not self._open:
            events += self._reply.closing()
        message = {"type": "http.response.body", "body": events, "more_body": self._open > 0}
        self._sending = send_now(self._send, message)
        if self._sending is not None:
            self._sending.add_done_callback(self._taken)
        elif not self._open:
            self._end()

    def _taken(self, sending: asyncio.Task[None]) -> None:
        self._sending = None
        if sending.cancelled() or sending.exception() is not None:
            self._end()
            return
        for index, emitted in enumerate(self._emitted):
            if emitted > self._sent[index] and self._sending is None:
                self._send_choice(index)
        if not self._open and self._sending is None:
            self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
