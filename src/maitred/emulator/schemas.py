"""What clients ask for: the bodies of OpenAI's endpoints, as far as an emulated engine cares.

Fields that change only the words of an answer (temperature, stop, seed, ...) are ignored like any unknown one; those that
would change its shape and are not emulated are refused, so that nobody takes the answer for what it is not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from maitred.core.request import PrefixKeys
from maitred.emulator import tokens
from maitred.kv import PromptTokenIds
from maitred.wire.asgi import ApiError, describe_json_error

MAX_PROMPTS = 2048
"""Prompts or embedding inputs in one request; OpenAI's own limit for embeddings."""

DEFAULT_COMPLETION_TOKENS = 16
"""The `max_tokens` of a completion that names none, as in OpenAI's API and in vLLM."""

_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
_NotNegative: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_PromptContent: TypeAlias = str | list[str | int | list[int]]
PromptItem: TypeAlias = str | list[int]
"""One text to read: as text, or as token ids."""


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class _GenerationBody(msgspec.Struct, kw_only=True):
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
    def token_limit(self) -> int | None:
        """The most output tokens that the client allows; None: what fits the model."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def reject_unsupported(self) -> None:
        """Raises ApiError 400."""
        for name in ("n", "best_of"):
            if getattr(self, name) not in (None, 1):
                raise bad_request(f"{name} must be 1: an emulated engine gives one answer per prompt", name)
        if self.logprobs not in (None, False):
            raise bad_request("logprobs are not emulated", "logprobs")
        if self.token_limit is not None and (self.min_tokens or 0) > self.token_limit:
            raise bad_request(f"min_tokens {self.min_tokens} is more than max_tokens {self.token_limit}", "min_tokens")


class _MessagePart(msgspec.Struct):
    type: str
    text: str | None = None


class EmulatedPrompt(msgspec.Struct, frozen=True):
    """One prompt, to be answered once."""

    tokens: int
    prefix: PrefixKeys


class ChatMessage(msgspec.Struct):
    content: str | list[_MessagePart] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()
    role: Any = None

    def to_bytes(self) -> bytes:
        """As it is in memory, behind what the chat template says of its role. Raises ApiError 400 for what is not text."""
        head = tokens.to_token_bytes(f"{self.role}".encode("utf-8", "surrogatepass")[:_MESSAGE_HEAD_BYTES]).ljust(
            _MESSAGE_HEAD_BYTES, b"\1"
        )
        if isinstance(self.content, str):
            return head + tokens.to_token_bytes(self.content) + _raw_to_bytes(self.tool_calls)
        for part in self.content or ():
            if part.text is None:
                raise bad_request(f"a message part of type {part.type!r} is not text, and only text is emulated", "messages")
        texts = [tokens.to_token_bytes(part.text or "") for part in self.content or ()]
        return b"".join((head, *texts, _raw_to_bytes(self.tool_calls)))


_MESSAGE_HEAD_BYTES = tokens.CHAT_TOKENS_PER_MESSAGE * tokens.BYTES_PER_TOKEN
_ANSWER_HEAD = b"\1" * (tokens.CHAT_TOKENS_FOR_ANSWER * tokens.BYTES_PER_TOKEN)


class ChatBody(_GenerationBody):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Positive | None = None
    tools: msgspec.Raw = msgspec.Raw()

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompts(self) -> list[EmulatedPrompt]:
        """One answer each: a chat is a single one. Tools come first, as chat templates have it."""
        keys = tokens.PromptTextBytes(
            b"".join((_raw_to_bytes(self.tools), *(m.to_bytes() for m in self.messages), _ANSWER_HEAD))
        )
        return [EmulatedPrompt(keys.tokens, keys)]


class CompletionBody(_GenerationBody):
    """The body of /v1/completions."""

    prompt: _PromptContent
    echo: bool | None = False
    suffix: str | None = None

    @property
    def token_limit(self) -> int | None:
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    def prompts(self) -> list[EmulatedPrompt]:
        """One answer each."""
        return [EmulatedPrompt(count_item(item), _item_prefix(item)) for item in split_items(self.prompt, "prompt")]

    def reject_unsupported(self) -> None:
        super().reject_unsupported()
        if self.echo:
            raise bad_request("echo is not emulated", "echo")
        if self.suffix:
            raise bad_request("suffix is not emulated", "suffix")


GenerationBody: TypeAlias = ChatBody | CompletionBody
"""The body of a request that is answered with tokens."""


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """The body of /v1/embeddings."""

    input: _PromptContent
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None


A = TypeVar("A", ChatBody, CompletionBody, EmbeddingBody)


def parse_body(body: bytes, kind: type[A]) -> A:
    """Raises ApiError 400 that says which field is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise bad_request(str(error), _field_of(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not JSON: {describe_json_error(error, body)}") from error


def _field_of(message: str) -> str | None:
    """The field that a validation error is about, where it says so (`... - at `$.n``)."""
    _, found, path = message.rpartition("`$.")
    return path.rstrip("`") if found else None


def split_items(content: _PromptContent, param: str) -> list[PromptItem]:
    """The texts in a text, a list of texts, a list of token ids, or a list of such lists. Raises ApiError 400."""
    if isinstance(content, str):
        return [content]
    kinds = set(map(type, content))
    if kinds == {int}:
        return [cast(list[int], content)]
    if kinds not in ({str}, {list}):
        raise bad_request(f"{param} must be a text, a list of texts, a list of token ids or a list of such lists", param)
    if len(content) > MAX_PROMPTS:
        raise bad_request(f"{param} has {len(content)} items; {MAX_PROMPTS} are allowed", param)
    return cast(list[PromptItem], content)


def count_item(item: PromptItem) -> int:
    """In tokens."""
    return tokens.count(item) if isinstance(item, str) else len(item)


def _item_prefix(item: PromptItem) -> PrefixKeys:
    return tokens.PromptTextBytes(tokens.to_token_bytes(item)) if isinstance(item, str) else PromptTokenIds(tuple(item))


def _raw_to_bytes(raw: msgspec.Raw) -> bytes:
    """A part of the body that is read as the text it is."""
    text = bytes(raw)
    return b"" if text == b"null" else tokens.to_token_bytes(text)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", param=param, code=code)
