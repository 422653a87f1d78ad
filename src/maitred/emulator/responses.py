"""Response bodies: the chunks of an event stream, one JSON object at the end, or embeddings, in OpenAI's shapes.

The pacer says how many tokens of each choice exist; the words follow from the count (`tokens.piece`).

    ResponsePlan        what is known before the first token, and the bodies that follow from it
    BufferedResponse    waits until every choice is complete
    StreamedResponse    sends tokens as they come
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Protocol, TypeAlias

import msgspec
import numpy as np

from maitred.emulator import tokens
from maitred.emulator.schemas import EmbeddingBody, PromptItem, count_item, split_items
from maitred.emulator.tokens import PlannedFinish
from maitred.wire import sse
from maitred.wire.exchange import ResponseWriter

DIMENSIONS = 256
"""Default dimensions of an embedding."""

Json: TypeAlias = dict[str, object]

_encode = msgspec.json.Encoder().encode


class EndpointFormat(Protocol):
    """The shape of an endpoint's responses."""

    id_prefix: str
    response_object: str
    chunk_object: str

    def opening_delta(self) -> Json | None:
        """Return the fields of a choice in a stream before its first token, or None."""
        ...

    def delta(self, text: str | None) -> Json:
        """Return the fields of a choice in a stream with more text, or at its end if `text` is None."""
        ...

    def complete(self, text: str) -> Json:
        """Return the fields of a choice in a response that does not stream."""
        ...


class ChatFormat:
    """The shape of `/v1/chat/completions`."""

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
    """The shape of `/v1/completions`."""

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
    """What is known of a response before its first token."""

    endpoint_format: EndpointFormat
    id: str
    created: int
    """Unix time in seconds."""
    model: str
    prompt_tokens: int
    finishes: tuple[PlannedFinish, ...]
    """One for each choice."""
    include_usage: bool = False
    """Whether the last chunk of a stream has the usage."""

    def usage(self) -> Json:
        """Return the token counts of the response."""
        completion_tokens = sum(finish.output_tokens for finish in self.finishes)
        total = self.prompt_tokens + completion_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}

    def complete(self) -> Json:
        """Return the whole body of a response that does not stream."""
        choices = [
            self._choice(index, self.endpoint_format.complete(tokens.filler(finish.output_tokens)), finish.reason)
            for index, finish in enumerate(self.finishes)
        ]
        return {**self._head(self.endpoint_format.response_object), "choices": choices, "usage": self.usage()}

    def choice_events(self, index: int, num_sent: int, num_output_tokens: int) -> bytes:
        """Return the events of one choice for the tokens from `num_sent` to before `num_output_tokens`, with its opening before
        the first token and its end after the last one."""
        events = []
        if num_sent == 0 and (opening := self.endpoint_format.opening_delta()) is not None:
            events.append(self._chunk(index, opening))
        for position in range(num_sent, num_output_tokens):
            events.append(self._chunk(index, self.endpoint_format.delta(tokens.piece(position))))
        if num_output_tokens == self.finishes[index].output_tokens:
            events.append(self._chunk(index, self.endpoint_format.delta(None), self.finishes[index].reason))
        return b"".join(events)

    def closing_events(self) -> bytes:
        """Return the events after those of all choices."""
        usage = {**self._head(self.endpoint_format.chunk_object), "choices": [], "usage": self.usage()}
        return (sse.encode_event(_encode(usage)) if self.include_usage else b"") + sse.DONE

    def _chunk(self, index: int, delta: Json, finish_reason: str | None = None) -> bytes:
        chunk: Json = {
            **self._head(self.endpoint_format.chunk_object),
            "choices": [self._choice(index, delta, finish_reason)],
        }
        if self.include_usage:
            chunk["usage"] = None
        return sse.encode_event(_encode(chunk))

    @staticmethod
    def _choice(index: int, content: Json, finish_reason: str | None) -> Json:
        return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ResponseProgress(Protocol):
    """A response that is being generated."""

    done: asyncio.Future[None]
    """Completes when the last part has been handed to the server."""

    def on_progress(self, index: int, num_output_tokens: int) -> None:
        """Note that the choice `index` has `num_output_tokens` tokens now."""
        ...


class BufferedResponse:
    """Waits until every choice is complete. The body to send then is `ResponsePlan.complete`."""

    def __init__(self, plan: ResponsePlan) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finishes = plan.finishes
        self._num_open_choices = len(plan.finishes)

    def on_progress(self, index: int, num_output_tokens: int) -> None:
        if num_output_tokens == self._finishes[index].output_tokens:
            self._num_open_choices -= 1
            if not self._num_open_choices and not self.done.done():
                self.done.set_result(None)


class StreamedResponse:
    """Sends tokens as they come. While the client is too slow to take them they are only counted: an engine does not wait."""

    def __init__(self, plan: ResponsePlan, writer: ResponseWriter) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._plan = plan
        self._writer = writer
        self._num_output_tokens = [0] * len(plan.finishes)
        self._num_sent_tokens = [0] * len(plan.finishes)
        self._num_unsent_tokens = sum(finish.output_tokens for finish in plan.finishes)
        """Tokens of all choices that are still to be sent, those that do not exist yet included."""
        self._busy: asyncio.Future[None] | None = None
        """Done when the client has taken what was sent last; None if it can be sent more."""

    def on_progress(self, index: int, num_output_tokens: int) -> None:
        self._num_output_tokens[index] = num_output_tokens
        if self._busy is None:
            self._send_choice(index)

    def _send_choice(self, index: int) -> None:
        num_sent, num_output_tokens = self._num_sent_tokens[index], self._num_output_tokens[index]
        self._num_sent_tokens[index] = num_output_tokens
        self._num_unsent_tokens -= num_output_tokens - num_sent
        events = self._plan.choice_events(index, num_sent, num_output_tokens)
        if not self._num_unsent_tokens:
            events += self._plan.closing_events()
        self._busy = self._writer.send_piece(events, self._num_unsent_tokens > 0)
        if self._busy is not None:
            self._busy.add_done_callback(self._on_taken)
        elif not self._num_unsent_tokens:
            self._finish()

    def _on_taken(self, _busy: asyncio.Future[None]) -> None:
        self._busy = None
        for index, num_output_tokens in enumerate(self._num_output_tokens):
            if num_output_tokens > self._num_sent_tokens[index] and self._busy is None:
                self._send_choice(index)
        if not self._num_unsent_tokens and self._busy is None:
            self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


def embedding_vector(item: PromptItem, dimensions: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return a unit vector of shape (dimensions,) made from a hash of the text. Equal texts have equal vectors."""
    text = item.encode("utf-8", "surrogatepass") if isinstance(item, str) else _encode(item)
    noise = np.frombuffer(hashlib.shake_128(text).digest(2 * dimensions), dtype="<i2") + 0.5
    unit: np.ndarray[tuple[int], np.dtype[np.float32]] = (noise / np.linalg.norm(noise)).astype(np.float32)
    return unit


def embedding_response(body: EmbeddingBody, model: str) -> tuple[Json, int]:
    """Return the body of the response and its prompt tokens. Raises ApiError 400."""
    inputs = split_items(body.input, "input")
    dimensions = body.dimensions or DIMENSIONS
    prompt_tokens = sum(map(count_item, inputs))
    vectors = (_encode_vector(embedding_vector(item, dimensions), body.encoding_format) for item in inputs)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}, prompt_tokens


def _encode_vector(unit: np.ndarray[tuple[int], np.dtype[np.float32]], encoding: str | None) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(unit.astype("<f4").tobytes()).decode()
    floats: list[float] = unit.tolist()
    return floats
