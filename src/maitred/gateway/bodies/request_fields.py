"""Read from a request what decisions depend on: a few fields of its body.

Everything else passes through untouched. Headers are read as bytes; those of the request are sorted in `access.inbound_head`.
Which paths there are is in `routes`.

**Routing hints** are what a router may know of a request beside its model and class. They need a second pass over the body, so
they are read only if the router in use looks at them (`Signals`).

    program       header x-maitred-program-id or x-program-id, else the session that the headers of an agent
                  name (`agent_headers`), else `program_id` or `session_id` in the body
    routing key   header x-smg-routing-key
    prompt        tools, system, instructions, messages, prompt, input and text of the body (`prompt_text`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import msgspec

from maitred.admission.terms.tenants import MAX_NAME_CHARS
from maitred.core.errors import JSON_ERRORS
from maitred.core.request import PrefixKeys
from maitred.gateway.bodies.agent_headers import NO_SESSION, SessionReader
from maitred.gateway.bodies.large_body import LARGE_BYTES, LargeBody
from maitred.gateway.bodies.plain_runs import MARK, MIN_RUN_BYTES, shorten_plain_runs
from maitred.gateway.bodies.prompt_text import MAX_PROMPT_BYTES, PromptText
from maitred.gateway.routes import Route
from maitred.routing import Signals
from maitred.wire.exchange import ApiError, describe_body_error
from maitred.wire.messages import Headers

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
COMMON_CONNECTION_VALUES = (b"keep-alive,", b"close,")
"""The usual values of a `Connection` header, with a comma behind: they name no other header."""
REQUEST_ID_HEADER = b"x-request-id"
DECISION_HEADER = b"x-maitred-decision"
"""What was decided about a request, and why. A client that sends it, with any value, gets it in the answer."""
AUTHORIZATION_HEADER = b"authorization"
API_KEY_HEADER = b"x-api-key"
"""Where Anthropic's SDKs send a key; it counts if there is no `Authorization`."""

_Number: TypeAlias = int | float | str | None
"""A number of a body; the text of one too, since engines take it for a number."""


class BodyFields(msgspec.Struct, gc=False):
    """The fields of a body that the gateway reads. The backend validates them."""

    model: str | None = None
    """The model; "" if the body has something else there."""
    stream: bool | None = None
    service_tier: str | None = None
    max_completion_tokens: _Number = None
    max_tokens: _Number = None
    max_output_tokens: _Number = None
    n_predict: _Number = None
    """llama.cpp's name, which beats `max_tokens` there."""
    n: _Number = None
    best_of: _Number = None


class BatchFields(BodyFields, gc=False):
    """The fields of a body that may hold several prompts, and say in an object of its own how long answers may be. What is raw
    is empty if absent."""

    prompt: msgspec.Raw = msgspec.Raw()
    prompt_embeds: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()
    input_ids: msgspec.Raw = msgspec.Raw()
    input_embeds: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    queries: msgspec.Raw = msgspec.Raw()
    items: msgspec.Raw = msgspec.Raw()
    text_1: msgspec.Raw = msgspec.Raw()
    text_2: msgspec.Raw = msgspec.Raw()
    data_1: msgspec.Raw = msgspec.Raw()
    data_2: msgspec.Raw = msgspec.Raw()
    questions: msgspec.Raw = msgspec.Raw()
    texts: msgspec.Raw = msgspec.Raw()
    images: msgspec.Raw = msgspec.Raw()
    max_new_tokens: msgspec.Raw = msgspec.Raw()
    sampling_params: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


_decode_text = msgspec.json.Decoder(str).decode
_decode_flag = msgspec.json.Decoder(bool).decode
_decode_number = msgspec.json.Decoder(int | float | str).decode
_FIELD_DECODERS: Final[Mapping[str, Callable[[msgspec.Raw], object]]] = {
    "model": _decode_text,
    "stream": _decode_flag,
    "service_tier": _decode_text,
    **dict.fromkeys(("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict", "n", "best_of"), _decode_number),
}


class _Decoders:
    """How the fields of one kind are read."""

    def __init__(self, kind: type[BodyFields]) -> None:
        self.kind = kind
        self.typed: Callable[[bytes], BodyFields] = msgspec.json.Decoder(kind).decode
        raw_fields = [(name, msgspec.Raw, msgspec.Raw()) for name in kind.__struct_fields__]
        self.raw_kind: Any = msgspec.defstruct("_RawFields", raw_fields)
        """The same fields, as raw JSON; empty if absent."""
        self.raw: Callable[[bytes], Any] = msgspec.json.Decoder(self.raw_kind).decode


_ONE, _BATCH = _Decoders(BodyFields), _Decoders(BatchFields)


_BEGINS_NUMBER: Final = b"-0123456789"
_OBJECTS_READ: Final = frozenset(("sampling_params", "parameters"))
"""Fields that are read as a whole."""
_NULL_TEXT: Final = b"null"
_NULL: Final = msgspec.Raw(_NULL_TEXT)


def decode_body_fields(body: bytes, *, is_batch: bool = False, large: LargeBody | None = None) -> BodyFields:
    """Return the fields of a JSON object; of a field that is of another type than it should be, None, or "" of the model. With
    `is_batch` they are `BatchFields`. A `large` body has been read.

    No object is made of what is of another type, since a list of ten million items would be ten million objects. Raises what
    msgspec raises for a body that is no JSON object.
    """
    decoders = _BATCH if is_batch else _ONE
    if large is not None:
        return _decode_each(decoders, large.fill(decoders.raw_kind))
    try:
        return decoders.typed(body)
    except msgspec.ValidationError:
        return _decode_each(decoders, decoders.raw(body))


def _decode_each(decoders: _Decoders, raw: Any) -> BodyFields:
    """Return the fields of which `raw` has the JSON."""
    fields = decoders.kind()
    for name in decoders.kind.__struct_fields__:
        value: msgspec.Raw = getattr(raw, name)
        if name in _OBJECTS_READ and len(memoryview(value)) > LARGE_BYTES:
            raise msgspec.ValidationError(f"Expected at most {LARGE_BYTES} bytes - at `$.{name}`")
        decode = _FIELD_DECODERS.get(name)
        try:
            setattr(fields, name, value if decode is None else decode(of_usual_size(value)) if value else None)
        except msgspec.DecodeError as error:  # of another type, or null
            begin = bytes(memoryview(value)[: len(_NULL_TEXT) + 1])  # The value may have megabytes.
            if decode is _decode_number and begin[:1] in _BEGINS_NUMBER:
                raise msgspec.ValidationError(f"{error} - at `$.{name}`") from None
            setattr(fields, name, "" if name == "model" and begin != _NULL_TEXT else None)
    return fields


def of_usual_size(value: msgspec.Raw) -> msgspec.Raw:
    """Return the JSON of a field, or null for one that is longer than any name or number."""
    return value if len(memoryview(value)) <= LARGE_BYTES else _NULL


def read_credentials(headers: Headers) -> bytes | None:
    """Return the key of a request, as a value of `Authorization`, or None if it has none. The first of several
    headers counts that is not empty."""
    bearer = b""
    for name, value in headers:
        if name == AUTHORIZATION_HEADER and value:
            return value
        if name == API_KEY_HEADER:
            bearer = bearer or value
    return b"Bearer " + bearer if bearer else None


def end_to_end_headers(headers: Headers) -> Headers:
    """Return the headers of a response that are meant for the client."""
    kept: Headers = []
    connection = b""
    for header in headers:
        if header[0] not in HOP_BY_HOP_HEADERS:
            kept.append(header)
        elif header[0] == b"connection":
            connection += header[1] + b","
    if connection and connection.lower() not in COMMON_CONNECTION_VALUES:
        return drop_named_headers(kept, connection)
    return kept


def parse_body_fields(body: bytes, route: Route, large: LargeBody | None = None) -> BodyFields:
    """Return the fields of a JSON body. A `large` one has been read. Raises ApiError 400 for a body that is none, or that lacks
    a required model."""
    is_batch = bool(route.prompts_in)
    try:
        has_runs = large is None and len(body) >= 2 * MIN_RUN_BYTES
        fields = _decode_with_runs(body, is_batch) if has_runs else decode_body_fields(body, is_batch=is_batch, large=large)
    except JSON_ERRORS as error:
        raise invalid_body(error, body) from error
    if fields.model is None and not route.needs_model:
        return fields
    if not fields.model:
        raise model_required()
    return fields


def _decode_with_runs(body: bytes, is_batch: bool) -> BodyFields:
    """Decode as `decode_body_fields` does, with long plain strings shortened first (`plain_runs`)."""
    shorter = shorten_plain_runs(body)
    if shorter is not body:
        try:
            fields = decode_body_fields(shorter, is_batch=is_batch)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return decode_body_fields(body, is_batch=is_batch)
        if MARK not in (fields.model or "") and MARK not in (fields.service_tier or ""):
            return fields
    return decode_body_fields(body, is_batch=is_batch)


def invalid_body(error: Exception, body: bytes) -> ApiError:
    """Return the error for a body at which msgspec has raised `error`, one of `JSON_ERRORS`."""
    if isinstance(error, msgspec.ValidationError):
        return _invalid_request(f"the request body is not what it should be: {error}")
    if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):
        return _invalid_json(error, body)
    return _invalid_request("the request body is nested too deeply")


def model_required() -> ApiError:
    return _invalid_request("you must name a model", param="model")


def drop_named_headers(headers: Headers, connection: bytes) -> Headers:
    """Return `headers` without those that the values of a `Connection` header name."""
    named = {token.strip().lower() for token in connection.split(b",")}
    return [header for header in headers if header[0] not in named]


def _invalid_json(error: msgspec.DecodeError | UnicodeDecodeError, body: bytes) -> ApiError:
    return _invalid_request(f"the request body is not valid JSON: {describe_body_error(error, body)}")


def _invalid_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, kind="invalid_request_error", param=param)


PROGRAM_HEADERS: Final = (b"x-maitred-program-id", b"x-program-id")
"""Headers that name the program of a request, whatever agent has sent it; the first one counts."""


def shorten_name(name: str) -> str:
    """Return a name that a client has chosen, without spaces around it; instead of a long one its hash."""
    name = name.strip()
    if len(name) <= MAX_NAME_CHARS:
        return name
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


MEMBER_NAMES: Final = frozenset(BatchFields.__struct_fields__)
"""The members of a body that are read here."""


ROUTING_KEY_HEADER: Final = b"x-smg-routing-key"
_HINT_HEADERS: Final = frozenset((*PROGRAM_HEADERS, ROUTING_KEY_HEADER))


class RoutingHints(msgspec.Struct, frozen=True, gc=False):
    """What the router may know of a request beside its model and class; empty where nothing is known."""

    program: str = ""
    routing_key: str = ""
    prefix: PrefixKeys | None = None
    parent_program: str = ""


NO_HINTS: Final = RoutingHints()


class _HintFields(msgspec.Struct, gc=False):
    """The fields of a body that hints come from. Tools and system prompts are first, as in chat templates."""

    program_id: msgspec.Raw = msgspec.Raw()
    session_id: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()


_decode_hint_fields = msgspec.json.Decoder(_HintFields).decode
_decode_text_or_int = msgspec.json.Decoder(str | int).decode


class RoutingHintReader:
    """Reads the hints that `signals` include."""

    def __init__(self, signals: Signals, sessions: SessionReader | None = None) -> None:
        """`sessions` reads the headers of agents; by default those that are known."""
        self._sessions = SessionReader() if sessions is None else sessions
        self._session = Signals.SESSION in signals
        self._prompt = Signals.PROMPT in signals
        self._asked_block_sizes: set[int] = set()

    def read_hints(self, headers: Headers, body: bytes, model: str, large: LargeBody | None = None) -> RoutingHints:
        """Return the hints of one request; `body` is a JSON object, and a `large` one has been read. Prompts of different
        models are different.

        Raises ApiError 400 for a session id that is not UTF-8: such a text was skipped when the body was first parsed.
        """
        fields = _decode_hint_fields(body) if large is None else large.fill(_HintFields, MAX_PROMPT_BYTES)
        parts = (fields.system, fields.instructions, fields.messages, fields.prompt, fields.input, fields.text)
        has_prompt = bool(fields.tools) or any(parts)
        prefix = None
        if self._prompt and has_prompt:
            prefix = PromptText(model.encode(), fields.tools, parts, self._asked_block_sizes)
        if not self._session:
            return RoutingHints(prefix=prefix)
        # In reverse, so that the first of repeated headers is the one that stays.
        named = {name: value for name, value in reversed(headers) if name in _HINT_HEADERS}
        routing_key = shorten_name(named.get(ROUTING_KEY_HEADER, b"").decode("latin-1"))
        program, parent = self._read_program(headers, named, fields)
        return RoutingHints(shorten_name(program), routing_key, prefix, shorten_name(parent))

    def _read_program(self, headers: Headers, named: Mapping[bytes, bytes], fields: _HintFields) -> tuple[str, str]:
        """Return the program of a request and the one that has forked it, each empty if there is none."""
        program = next((named[name].decode("latin-1") for name in PROGRAM_HEADERS if name in named), "")
        session = NO_SESSION if program else self._sessions.read(headers)
        if session.program:
            return session.program, session.parent
        in_body = _as_text(fields.program_id) or (_as_text(fields.session_id) if self._sessions.reads_body else "")
        return program or in_body, ""


def _as_text(value: msgspec.Raw) -> str:
    """Return a JSON string or integer as text, "" for anything else. Raises ApiError 400 for text that is not UTF-8."""
    try:
        return str(_decode_text_or_int(of_usual_size(value))) if value else ""
    except msgspec.DecodeError:
        return ""
    except UnicodeDecodeError as error:
        raise invalid_body(error, bytes(value)) from error


HINT_MEMBER_NAMES: Final = frozenset(_HintFields.__struct_fields__)
"""The members of a body that are read here."""
