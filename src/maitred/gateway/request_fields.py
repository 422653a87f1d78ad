"""The routes that are sent on to a backend, and what each of them costs.

What makes an engine generate takes a slot, and can be told to wait or be turned away. What only reads its tokenizer is
proxied without one: it is over in a millisecond, and clients count tokens just when everything is busy.

What the gateway reads of a request: a few headers, a few fields of the body. Everything else passes through untouched.

Headers are gone through once, as bytes. Those of one hop (RFC 9110, 7.6.1) end here, as do the ones addressed to us.

To what a request belongs: the session and the prompt, for routers that keep together what belongs together.

    program        header x-program-id or x-session-id, else the body's `program_id` or `session_id`
    routing key    header x-smg-routing-key
    prompt         the text of the body's tools, system, messages, prompt or input, as JSON has it

Nothing of this is read unless the router in use looks at it (`Signals`): it takes a second pass over the body. What is read is
forwarded as it came. The text of a prompt is not what the engine makes of it, but two prompts that begin alike there do so
here.

The class, passed on to the engine's own queue.

vLLM and SGLang both take an integer `priority` in the body, and disagree about its sign. `default` is 0, which is what engines
take a request without the field for. The body's own `priority` is replaced: the queue of the engine is ordered by whoever
runs the gateway, and no client can jump it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from maitred.core.request import PrefixKeys, PriorityClass
from maitred.gateway.config import ForwardPriority
from maitred.kv.block_hashes import PromptTextBytes
from maitred.routing import Signals
from maitred.wire.asgi import ApiError, Headers, describe_json_error


class Route(msgspec.Struct, frozen=True, gc=False):
    """One path, under POST."""

    path: str
    needs_slot: bool = True
    needs_model: bool = True
    """Whether its body must name a model. Where not, none means the only one that is served."""
    generates: bool = True
    """Whether its answer is made token by token."""


ROUTES: Final[Mapping[str, Route]] = {
    route.path: route
    for route in (
        Route("/v1/chat/completions"),
        Route("/v1/completions"),
        Route("/v1/embeddings", generates=False),
        Route("/v1/responses"),
        Route("/v1/messages"),
        Route("/v1/rerank", generates=False),
        Route("/v1/classify", generates=False),
        Route("/generate", needs_model=False),
        Route("/rerank", needs_model=False, generates=False),
        Route("/v1/tokenize", needs_slot=False, needs_model=False, generates=False),
        Route("/v1/detokenize", needs_slot=False, needs_model=False, generates=False),
        Route("/tokenize", needs_slot=False, needs_model=False, generates=False),
        Route("/detokenize", needs_slot=False, needs_model=False, generates=False),
    )
}


HOP_BY_HOP_HEADERS = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_COMMON_CONNECTION_VALUES = (b"keep-alive,", b"close,")
"""The usual headers `UpstreamConnection`: they name no other header."""
PRIORITY_HEADERS = frozenset((b"x-smg-priority", b"x-maitred-priority"))
REQUEST_ID_HEADER = b"x-request-id"
AUTHORIZATION_HEADER = b"authorization"
_NOT_FORWARDED = HOP_BY_HOP_HEADERS | PRIORITY_HEADERS | {b"host", b"content-length", b"expect", REQUEST_ID_HEADER}


class BodyFields(msgspec.Struct, gc=False):
    """The body, as far as we look at it. What a value means beyond that is the backend's to judge."""

    model: Any = None
    stream: Any = None
    service_tier: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    max_output_tokens: Any = None

    @property
    def output_limit(self) -> int | None:
        """Tokens; None: the client sets no limit that we can read."""
        for limit in (self.max_completion_tokens, self.max_tokens, self.max_output_tokens):
            if isinstance(limit, int):
                return limit
        return None


_decode_body_fields = msgspec.json.Decoder(BodyFields).decode


class SortedHeaders(msgspec.Struct, gc=False):
    """The headers of a request, sorted. Of those that are given twice the first counts."""

    forwarded: Headers
    """For the backend; without x-request-id."""
    request_id: bytes | None = None
    priority: bytes | None = None
    """Of the headers that name a class."""
    authorization: bytes | None = None
    tenant: bytes | None = None

    @property
    def requested_class(self) -> str | None:
        """The class that is asked for. None: no header asks for one, or none that can be read as text."""
        named = (self.priority or b"").strip()
        return named.decode("latin-1") if named and named.isascii() and named.decode("ascii").isprintable() else None


class HeaderSorter:
    """Sorts headers. `tenant_header` names the caller, where that is to be believed; `kept_back` are further headers that the
    backend does not get."""

    def __init__(self, tenant_header: bytes | None = None, withheld: Collection[bytes] = ()) -> None:
        self._tenant = tenant_header
        self._withheld = _NOT_FORWARDED.union(withheld, [tenant_header] if tenant_header else [])

    def sort_headers(self, headers: Headers) -> SortedHeaders:
        inbound = SortedHeaders([])
        kept_back, forward = self._withheld, inbound.forwarded
        connection = b""
        for header in headers:
            name = header[0]
            if name not in kept_back:
                forward.append(header)
            elif name == b"connection":
                connection += header[1] + b","
            else:
                self._keep_own(inbound, name, header[1])
        if connection and connection.lower() not in _COMMON_CONNECTION_VALUES:
            inbound.forwarded = _drop_named_headers(forward, connection)
        return inbound

    def _keep_own(self, inbound: SortedHeaders, name: bytes, value: bytes) -> None:
        if name == AUTHORIZATION_HEADER:
            inbound.authorization = inbound.authorization or value
        elif name == REQUEST_ID_HEADER:
            inbound.request_id = inbound.request_id or value
        elif name == self._tenant:
            inbound.tenant = inbound.tenant or value
        elif name in PRIORITY_HEADERS and inbound.priority is None:
            inbound.priority = value


def end_to_end_headers(headers: Headers) -> Headers:
    """The headers of a response that are meant for the client."""
    kept: Headers = []
    connection = b""
    for header in headers:
        if header[0] not in HOP_BY_HOP_HEADERS:
            kept.append(header)
        elif header[0] == b"connection":
            connection += header[1] + b","
    if connection and connection.lower() not in _COMMON_CONNECTION_VALUES:
        return _drop_named_headers(kept, connection)
    return kept


def parse_body_fields(body: bytes, route: Route) -> BodyFields:
    """Raises ApiError 400."""
    try:
        fields = _decode_body_fields(body)
    except msgspec.ValidationError as error:
        raise _invalid_request(f"the request body is not what it should be: {error}") from error
    except RecursionError as error:
        raise _invalid_request("the request body is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid_request(f"the request body is not valid JSON: {describe_json_error(error, body)}") from error
    if fields.model is None and not route.needs_model:
        return fields
    if not isinstance(fields.model, str) or not fields.model:
        raise model_required()
    return fields


def model_required() -> ApiError:
    return _invalid_request("you must name a model", param="model")


def _drop_named_headers(headers: Headers, connection: bytes) -> Headers:
    named = {token.strip().lower() for token in connection.split(b",")}
    return [header for header in headers if header[0] not in named]


def _invalid_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", param=param)


ROUTING_KEY_HEADER: Final = b"x-smg-routing-key"
_PROGRAM_HEADERS: Final = (b"x-program-id", b"x-session-id")
_MAX_NAME_CHARS: Final = 128
"""Characters of a name that is kept as it is: routers remember many."""
_MAX_PROMPT_BYTES: Final = 1024 * 1024
"""Bytes of a prompt: a router needs no more to tell where it was, and pictures in it are large."""


class RoutingHints(msgspec.Struct, frozen=True, gc=False):
    """What is known of it; empty where nothing is."""

    program: str = ""
    routing_key: str = ""
    prefix: PrefixKeys | None = None


NO_HINTS: Final = RoutingHints()


class PromptText(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of raw JSON, laid out when somebody asks; of its first MiB."""

    parts: tuple[bytes | msgspec.Raw, ...]

    def block_keys(self, block_size: int) -> Sequence[int]:
        text = b"".join(memoryview(part)[:_MAX_PROMPT_BYTES] for part in self.parts)
        return PromptTextBytes(text[:_MAX_PROMPT_BYTES]).block_keys(block_size)


class _HintFields(msgspec.Struct, gc=False):
    """What may be there. Tools and system prompts come first, as chat templates have it."""

    program_id: msgspec.Raw = msgspec.Raw()
    session_id: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()


_decode_hint_fields = msgspec.json.Decoder(_HintFields).decode
_decode_text_or_int = msgspec.json.Decoder(str | int).decode


class RoutingHintReader:
    """Reads what `reads` asks for."""

    def __init__(self, reads: Signals) -> None:
        self._session = Signals.SESSION in reads
        self._prompt = Signals.PROMPT in reads

    def read_hints(self, headers: Headers, body: bytes, model: str) -> RoutingHints:
        """`body` is a JSON object. The same text for another model is another prompt."""
        if not (self._session or self._prompt):
            return NO_HINTS
        fields = _decode_hint_fields(body)
        parts = (fields.tools, fields.system, fields.messages, fields.prompt, fields.input, fields.text)
        prefix = PromptText((f"{model}\0".encode(), *parts)) if self._prompt and any(map(bytes, parts)) else None
        if not self._session:
            return RoutingHints(prefix=prefix)
        named = {name: value for name, value in reversed(headers) if name in _PROGRAM_HEADERS or name == ROUTING_KEY_HEADER}
        program = next((named[name].decode("latin-1") for name in _PROGRAM_HEADERS if name in named), "")
        program = program or _as_text(fields.program_id) or _as_text(fields.session_id)
        return RoutingHints(_shorten(program), _shorten(named.get(ROUTING_KEY_HEADER, b"").decode("latin-1")), prefix)


def _as_text(value: msgspec.Raw) -> str:
    """A text or a number, as text; empty for anything else."""
    try:
        return str(_decode_text_or_int(value)) if bytes(value) else ""
    except msgspec.DecodeError:
        return ""


def _shorten(name: str) -> str:
    name = name.strip()
    if len(name) <= _MAX_NAME_CHARS:
        return name
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_PRIORITY_SIGN: Final[Mapping[ForwardPriority, int]] = {"vllm": -1, "sglang": +1}
"""The sign of what is served first."""
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode_members = msgspec.json.encode


def engine_priority(c: PriorityClass, engine: ForwardPriority) -> int:
    """How `engine` calls the class `c`. Raises KeyError for `off`."""
    return _PRIORITY_SIGN[engine] * (c - PriorityClass.DEFAULT)


def set_body_priority(body: bytes, priority: int) -> bytes:
    """A JSON object with this `priority`, everything else as it was."""
    members: dict[str, object] = dict(_decode_members(body))
    members["priority"] = priority
    return _encode_members(members)
