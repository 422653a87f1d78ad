"""Answers as OpenAI's clients read them: chunks of an event stream, or one JSON object at the end.

A pacer says how many tokens of each choice are out; the words follow from the count (`tokens.piece`).
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

import msgspec

from maitred.emulator import tokens
from maitred.emulator.finish_reasons import PlannedFinish
from maitred.wire import sse
from maitred.wire.asgi import Send, send_eagerly

Json: TypeAlias = dict[str, object]

_encode = msgspec.json.Encoder().encode


class EndpointFormat(Protocol):
    """The shape of an endpoint's answers. `None` in place of a text: there is nothing more to say."""

    id_prefix: str
    response_object: str
    chunk_object: str

    def opening_delta(self) -> Json | None:
        """What a stream says of a choice before its first token."""
        ...

    def delta(self, text: str | None) -> Json: ...

    def complete(self, text: str) -> Json: ...


class ChatFormat:
    id_prefix = "chatcmpl-"
    response_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening_delta(self) -> Json | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def delta(self, text: str | None) -> Json:
        return {"delta": {} if text is None else {"content": text}}

    def complete(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}


class CompletionFormat:
    id_prefix = "cmpl-"
    response_object = "text_completion"
    chunk_object = "text_completion"

    def opening_delta(self) -> Json | None:
        return None

    def delta(self, text: str | None) -> Json:
        return {"text": text or ""}

    def complete(self, text: str) -> Json:
        return {"text": text}


class ResponsePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an answer before its first token; one ending per choice."""

    endpoint_format: EndpointFormat
    id: str
    created: int
    """Unix time in seconds."""
    model: str
    prompt_tokens: int
    finishes: tuple[PlannedFinish, ...]
    include_usage: bool = False
    """As a last chunk of the stream."""

    def usage(self) -> Json:
        completion_tokens = sum(ending.output_tokens for ending in self.finishes)
        total = self.prompt_tokens + completion_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}

    def complete(self) -> Json:
        """The complete answer of a request that does not stream."""
        choices = [
            self._choice(index, self.endpoint_format.complete(tokens.filler(ending.output_tokens)), ending.reason)
            for index, ending in enumerate(self.finishes)
        ]
        return {**self._head(self.endpoint_format.response_object), "choices": choices, "usage": self.usage()}

    def choice_events(self, index: int, num_sent: int, num_output_tokens: int) -> bytes:
        """The events of one choice from after its token `sent` to `emitted`, with what opens and closes it."""
        events = []
        if num_sent == 0 and (opening := self.endpoint_format.opening_delta()) is not None:
            events.append(self._chunk(index, opening))
        events += [
            self._chunk(index, self.endpoint_format.delta(tokens.piece(position)))
            for position in range(num_sent, num_output_tokens)
        ]
        if num_output_tokens == self.finishes[index].output_tokens:
            events.append(self._chunk(index, self.endpoint_format.delta(None), self.finishes[index].reason))
        return b"".join(events)

    def closing_events(self) -> bytes:
        """The events after those of all choices."""
        usage = {**self._head(self.endpoint_format.chunk_object), "choices": [], "usage": self.usage()}
        return (sse.encode_event(_encode(usage)) if self.include_usage else b"") + sse.DONE

    def _chunk(self, index: int, said: Json, finish_reason: str | None = None) -> bytes:
        chunk: Json = {**self._head(self.endpoint_format.chunk_object), "choices": [self._choice(index, said, finish_reason)]}
        if self.include_usage:
            chunk["usage"] = None
        return sse.encode_event(_encode(chunk))

    @staticmethod
    def _choice(index: int, said: Json, finish_reason: str | None) -> Json:
        return {"index": index, **said, "logprobs": None, "finish_reason": finish_reason}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ResponseProgress(Protocol):
    """An answer in the making. `done` ends when the last of it has been handed to the server."""

    done: asyncio.Future[None]

    def on_progress(self, index: int, num_output_tokens: int) -> None:
        """So many tokens of the choice `index` are out."""
        ...


class BufferedResponse:
    """Waits until every choice is complete; what to send is `ResponsePlan.complete`."""

    def __init__(self, reply: ResponsePlan) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finishes = reply.finishes
        self._num_open_choices = len(reply.finishes)

    def on_progress(self, index: int, num_output_tokens: int) -> None:
        if num_output_tokens == self._finishes[index].output_tokens:
            self._num_open_choices -= 1
            if not self._num_open_choices and not self.done.done():
                self.done.set_result(None)


class StreamedResponse:
    """Sends tokens as they come. While the client is too slow to take them they are only counted: an engine does not wait."""

    def __init__(self, reply: ResponsePlan, send: Send) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._plan = reply
        self._send = send
        self._num_output_tokens = [0] * len(reply.finishes)
        self._num_sent_tokens = [0] * len(reply.finishes)
        self._num_unsent_tokens = sum(ending.output_tokens for ending in reply.finishes)
        """Tokens not sent yet, of all choices."""
        self._send_task: asyncio.Task[None] | None = None

    def on_progress(self, index: int, num_output_tokens: int) -> None:
        self._num_output_tokens[index] = num_output_tokens
        if self._send_task is None:
            self._send_choice(index)

    def _send_choice(self, index: int) -> None:
        sent, emitted = self._num_sent_tokens[index], self._num_output_tokens[index]
        self._num_sent_tokens[index] = emitted
        self._num_unsent_tokens -= emitted - sent
        events = self._plan.choice_events(index, sent, emitted)
        if not self._num_unsent_tokens:
            events += self._plan.closing_events()
        message = {"type": "http.response.body", "body": events, "more_body": self._num_unsent_tokens > 0}
        self._send_task = send_eagerly(self._send, message)
        if self._send_task is not None:
            self._send_task.add_done_callback(self._on_sent)
        elif not self._num_unsent_tokens:
            self._finish()

    def _on_sent(self, sending: asyncio.Task[None]) -> None:
        self._send_task = None
        if sending.cancelled() or sending.exception() is not None:
            self._finish()
            return
        for index, emitted in enumerate(self._num_output_tokens):
            if emitted > self._num_sent_tokens[index] and self._send_task is None:
                self._send_choice(index)
        if not self._num_unsent_tokens and self._send_task is None:
            self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
