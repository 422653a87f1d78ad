"""Request bodies: the schemas of OpenAI's endpoints, as far as an emulated engine needs them.

Fields that change only the words of an answer (temperature, stop, seed, ...) are ignored, as unknown fields are. Fields that
would change the shape of an answer and are not emulated are rejected with 400, so that an answer is never mistaken for
something else.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from maitred.core.request import PrefixKeys
from maitred.emulator import tokens
from maitred.kv import PromptTokenIds
from maitred.wire.exchange import ApiError, describe_body_error

MAX_PROMPTS = 2048
"""The most prompts or embedding inputs in one request; OpenAI's limit for embeddings."""

DEFAULT_COMPLETION_TOKENS = 16
"""The default `max_tokens` of a completion, as in OpenAI's API and in vLLM."""

_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
_NotNegative: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_PromptContent: TypeAlias = str | list[str | int | list[int]]
PromptItem: TypeAlias = str | list[int]
"""One prompt or embedding input: a text, or token ids."""


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class _BodyFields(msgspec.Struct, kw_only=True):
    """The fields that chat and text completions share. All lengths are in tokens."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: _Positive | None = None
    min_tokens: _NotNegative | None = 0
    ignore_eos: bool | None = False
    priority: float | None = 0
    """vLLM's priority: smaller is more urgent."""
    routing_key: str | None = None
    lora_path: str | None = None
    """The LoRA adapter, in SGLang's field: the routing key of a request that has no other."""
    n: int | None = 1
    best_of: int | None = 1
    logprobs: Any = None

    @property
    def token_limit(self) -> int | None:
        """The most output tokens that the client allows, or None for as many as fit the model."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def reject_unsupported(self) -> None:
        """Raise ApiError 400 if a field asks for something that is not emulated."""
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
    """One prompt, which gets one answer."""

    tokens: int
    prefix: PrefixKeys


class ChatMessage(msgspec.Struct):
    content: str | list[_MessagePart] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()
    role: Any = None

    def to_bytes(self) -> bytes:
        """Return the message as token bytes, with what a chat template adds: a head for its role, and an end. Raises ApiError
        400 for parts that are not text."""
        if isinstance(self.content, str):
            texts = [tokens.to_token_bytes(self.content)]
        else:
            texts = [self._part_to_bytes(part) for part in self.content or ()]
        return b"".join((_message_head(f"{self.role}"), *texts, _raw_to_bytes(self.tool_calls), _MESSAGE_END))

    @staticmethod
    def _part_to_bytes(part: _MessagePart) -> bytes:
        if part.text is None:
            raise bad_request(f"a message part of type {part.type!r} is not text, and only text is emulated", "messages")
        return tokens.to_token_bytes(part.text)


_MESSAGE_END = b"\1" * ((tokens.CHAT_TOKENS_PER_MESSAGE - tokens.CHAT_TOKENS_FOR_ANSWER) * tokens.BYTES_PER_TOKEN)
_HEAD_BYTES = tokens.CHAT_TOKENS_FOR_ANSWER * tokens.BYTES_PER_TOKEN


def _message_head(role: str) -> bytes:
    """Return the head of a message as token bytes. The head that opens the answer is that of the message which the answer
    becomes in later prompts, so these begin with the whole prompt and the answer."""
    return tokens.to_token_bytes(role.encode("utf-8", "surrogatepass")[:_HEAD_BYTES]).ljust(_HEAD_BYTES, b"\1")


_ANSWER_HEAD = _message_head("assistant")


class ChatBody(_BodyFields):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Positive | None = None
    tools: msgspec.Raw = msgspec.Raw()

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompts(self) -> list[EmulatedPrompt]:
        """Return the prompt of the chat. Tools come first, as in chat templates."""
        messages = [message.to_bytes() for message in self.messages]
        keys = tokens.PromptTextBytes(b"".join((_raw_to_bytes(self.tools), *messages, _ANSWER_HEAD)))
        return [EmulatedPrompt(keys.tokens, keys)]


class CompletionBody(_BodyFields):
    """The body of `/v1/completions`."""

    prompt: _PromptContent
    echo: bool | None = False
    suffix: str | None = None

    @property
    def token_limit(self) -> int | None:
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    def prompts(self) -> list[EmulatedPrompt]:
        """Return the prompts; each gets one answer."""
        return [EmulatedPrompt(count_item(item), _item_prefix(item)) for item in split_items(self.prompt, "prompt")]

    def reject_unsupported(self) -> None:
        super().reject_unsupported()
        if self.echo:
            raise bad_request("echo is not emulated", "echo")
        if self.suffix:
            raise bad_request("suffix is not emulated", "suffix")


GenerationBody: TypeAlias = ChatBody | CompletionBody
"""The body of a request that generates tokens."""


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """The body of `/v1/embeddings`."""

    input: _PromptContent
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None


Body = TypeVar("Body", ChatBody, CompletionBody, EmbeddingBody)


def parse_body(body: bytes, kind: type[Body]) -> Body:
    """Return the body as a struct. Raises ApiError 400 that names the wrong field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise bad_request(str(error), _field_of(str(error))) from error
    except RecursionError as error:
        raise bad_request("the body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not JSON: {describe_body_error(error, body)}") from error


def _field_of(message: str) -> str | None:
    """Return the field that a validation error names (`... - at `$.n``), or None."""
    _, found, path = message.rpartition("`$.")
    return path.rstrip("`") if found else None


def split_items(content: _PromptContent, param: str) -> list[PromptItem]:
    """Return the items of a text, a list of texts, a list of token ids, or a list of such lists. Raises ApiError 400."""
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
    """Return the number of tokens."""
    return tokens.count(item) if isinstance(item, str) else len(item)


def _item_prefix(item: PromptItem) -> PrefixKeys:
    return tokens.PromptTextBytes(tokens.to_token_bytes(item)) if isinstance(item, str) else PromptTokenIds(tuple(item))


def _raw_to_bytes(raw: msgspec.Raw) -> bytes:
    """Return a part of the body that is not parsed as the bytes of its tokens."""
    text = bytes(raw)
    return b"" if text == b"null" else tokens.to_token_bytes(text)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", param=param, code=code)
