"""What clients ask for: the bodies of OpenAI's endpoints, as far as an emulated engine cares.

Fields that change only the words of an answer (temperature, stop, seed, ...) are ignored like any unknown one; those that
would change its shape and are not emulated are refused, so that nobody takes the answer for what it is not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from maitred.emulator import tokens
from maitred.kv import TokenIds
from maitred.request import PrefixKeys
from maitred.wire.asgi import ApiError, not_json

MOST_PROMPTS = 2048
"""Prompts or embedding inputs in one request; OpenAI's own limit for embeddings."""

COMPLETION_TOKENS = 16
"""The `max_tokens` of a completion that names none, as in OpenAI's API and in vLLM."""

_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
_NotNegative: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Content: TypeAlias = str | list[str | int | list[int]]
Item: TypeAlias = str | list[int]
"""One text to read: as text, or as token ids."""


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class _Common(msgspec.Struct, kw_only=True):
    """What chat and text completions have in common. Tokens throughout."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: _Positive | None = None
    min_tokens: _NotNegative | None = 0
    ignore_eos: bool | None = False
    priority: float | None = 0
    """As vLLM has it: smaller is sooner."""
    routing_key: str | None = None
    lora_path: str | None = None
    """The adapter it wants, as SGLang has it: the routing key of those that name none."""
    n: int | None = 1
    best_of: int | None = 1
    logprobs: Any = None

    @property
    def limit(self) -> int | None:
        """The most output tokens that the client allows; None: what fits the model."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def refuse_what_is_not_emulated(self) -> None:
        """Raises ApiError 400."""
        for name in ("n", "best_of"):
            if getattr(self, name) not in (None, 1):
                raise bad_request(f"{name} must be 1: an emulated engine gives one answer per prompt", name)
        if self.logprobs not in (None, False):
            raise bad_request("logprobs are not emulated", "logprobs")
        if self.limit is not None and (self.min_tokens or 0) > self.limit:
            raise bad_request(f"min_tokens {self.min_tokens} is more than max_tokens {self.limit}", "min_tokens")


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class Prompt(msgspec.Struct, frozen=True):
    """One prompt, to be answered once."""

    tokens: int
    content: PrefixKeys


class Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()
    role: Any = None

    def laid_out(self) -> bytes:
        """As it is in memory, behind what the chat template says of its role. Raises ApiError 400 for what is not text."""
        head = tokens.laid_out(f"{self.role}".encode("utf-8", "surrogatepass")[:_HEAD]).ljust(_HEAD, b"\1")
        if isinstance(self.content, str):
            return head + tokens.laid_out(self.content) + _laid_out_raw(self.tool_calls)
        for part in self.content or ():
            if part.text is None:
                raise bad_request(f"a message part of type {part.type!r} is not text, and only text is emulated", "messages")
        texts = [tokens.laid_out(part.text or "") for part in self.content or ()]
        return b"".join((head, *texts, _laid_out_raw(self.tool_calls)))


_HEAD = tokens.CHAT_TOKENS_PER_MESSAGE * tokens.BYTES_PER_TOKEN
_OPENING = b"\1" * (tokens.CHAT_TOKENS_FOR_ANSWER * tokens.BYTES_PER_TOKEN)


class ChatAsk(_Common):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Positive | None = None
    tools: msgspec.Raw = msgspec.Raw()

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompts(self) -> list[Prompt]:
        """One answer each: a chat is a single one. Tools come first, as chat templates have it."""
        keys = tokens.TextKeys(b"".join((_laid_out_raw(self.tools), *(m.laid_out() for m in self.messages), _OPENING)))
        return [Prompt(keys.tokens, keys)]


class CompletionAsk(_Common):
    """The body of /v1/completions."""

    prompt: _Content
    echo: bool | None = False
    suffix: str | None = None

    @property
    def limit(self) -> int | None:
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    def prompts(self) -> list[Prompt]:
        """One answer each."""
        return [Prompt(size(item), _content(item)) for item in items(self.prompt, "prompt")]

    def refuse_what_is_not_emulated(self) -> None:
        super().refuse_what_is_not_emulated()
        if self.echo:
            raise bad_request("echo is not emulated", "echo")
        if self.suffix:
            raise bad_request("suffix is not emulated", "suffix")


Ask: TypeAlias = ChatAsk | CompletionAsk
"""The body of a request that is answered with tokens."""


class EmbeddingAsk(msgspec.Struct, kw_only=True):
    """The body of /v1/embeddings."""

    input: _Content
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None


A = TypeVar("A", ChatAsk, CompletionAsk, EmbeddingAsk)


def parse(body: bytes, kind: type[A]) -> A:
    """Raises ApiError 400 that says which field is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise bad_request(str(error), _place(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not JSON: {not_json(error, body)}") from error


def _place(message: str) -> str | None:
    """The field that a validation error is about, where it says so (`... - at `$.n``)."""
    _, found, path = message.rpartition("`$.")
    return path.rstrip("`") if found else None


def items(content: _Content, param: str) -> list[Item]:
    """The texts in a text, a list of texts, a list of token ids, or a list of such lists. Raises ApiError 400."""
    if isinstance(content, str):
        return [content]
    kinds = set(map(type, content))
    if kinds == {int}:
        return [cast(list[int], content)]
    if kinds not in ({str}, {list}):
        raise bad_request(f"{param} must be a text, a list of texts, a list of token ids or a list of such lists", param)
    if len(content) > MOST_PROMPTS:
        raise bad_request(f"{param} has {len(content)} items; {MOST_PROMPTS} are allowed", param)
    return cast(list[Item], content)


def size(item: Item) -> int:
    """In tokens."""
    return tokens.count(item) if isinstance(item, str) else len(item)


def _content(item: Item) -> PrefixKeys:
    return tokens.TextKeys(tokens.laid_out(item)) if isinstance(item, str) else TokenIds(tuple(item))


def _laid_out_raw(raw: msgspec.Raw) -> bytes:
    """A part of the body that is read as the text it is."""
    text = bytes(raw)
    return b"" if text == b"null" else tokens.laid_out(text)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", param=param, code=code)
