"""Which program a request belongs to, and the body without what only the gateway needs.

The id of the program is, in this order,

    program_id in the body
    program_id in `extra_body` of the body, where clients of some SDKs put fields of their own
    the header x-maitred-program-id, or x-program-id
    the session that the headers of an agent name (`agent_headers`), or `programs.session_headers`
    session_id in the body, as vLLM has it, unless `programs.session_headers` says what names a session

and the id of the program that forked it is in `parent_program_id` or x-maitred-parent-program-id likewise, or what the headers
of the agent say. A request without an id is a program of its own. An id that is no text, or is empty, is an error of the
client: programs of two clients that make the same mistake must not become one.

A backend gets neither field nor header of ours; what other systems have named goes on as it is. A backend is asked for the
usage of a stream (`stream_options.include_usage`), unless the client has said whether it wants that; the event that answers it
is then kept from the client. Everything else in the body stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from maitred.gateway.bodies.agent_headers import SessionReader, is_last_request
from maitred.gateway.bodies.body_members import change_members
from maitred.gateway.bodies.large_body import LARGE_BYTES, LargeBody
from maitred.gateway.bodies.request_fields import PROGRAM_HEADERS
from maitred.gateway.routes import Route
from maitred.wire.exchange import ApiError
from maitred.wire.messages import Headers

PARENT_HEADER: Final = b"x-maitred-parent-program-id"
OWN_HEADERS: Final = frozenset((PROGRAM_HEADERS[0], PARENT_HEADER))
"""Headers that are meant for the gateway."""
MAX_ID_CHARS: Final = 512
"""Length of the longest id, in characters: ids are kept, logged and listed."""
STREAM_OPTIONS: Final = b"stream_options"
"""How the error of a backend names what asks for the usage of a stream."""
_PROGRAM_KEY, _PARENT_KEY, _EXTRA_KEY, _OPTIONS_KEY = "program_id", "parent_program_id", "extra_body", "stream_options"
_SESSION_KEY: Final = "session_id"
_CHANGED_OPTIONS: Final = b',"stream_options":'
_OWN_KEYS: Final = (_PROGRAM_KEY, _PARENT_KEY)
_MAX_OPTIONS_BYTES: Final = 256 * 1024
"""Size of the largest `extra_body` or `stream_options` that is taken apart, in bytes: each of its members becomes an object."""


class _ProgramFields(msgspec.Struct, gc=False):
    """The fields of a body that programs need, as raw JSON; empty if absent."""

    program_id: msgspec.Raw = msgspec.Raw()
    parent_program_id: msgspec.Raw = msgspec.Raw()
    session_id: msgspec.Raw = msgspec.Raw()
    extra_body: msgspec.Raw = msgspec.Raw()
    stream_options: msgspec.Raw = msgspec.Raw()


_decode_fields = msgspec.json.Decoder(_ProgramFields).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class ProgramOfRequest(msgspec.Struct, frozen=True, gc=False):
    """What a request says of its program."""

    program: str = ""
    """The id, or empty."""
    parent: str = ""
    """The id of the program that forked it, or empty."""
    is_last: bool = False
    """Whether the program is over when the request has ended."""
    body: bytes = b""
    """The body for the backend."""
    hides_usage: bool = False
    """Whether the backend was asked for a usage that the client has not asked for."""


NO_PROGRAM: Final = ProgramOfRequest()


class ProgramReader:
    """Reads from requests which program they belong to."""

    def __init__(self, sessions: SessionReader, *, asks_for_usage: bool = True) -> None:
        """`asks_for_usage`: the backend is asked for the usage of a stream where the client has not asked for it."""
        self._sessions, self._asks_for_usage = sessions, asks_for_usage

    def read(
        self, headers: Headers, body: bytes, route: Route, *, stream: bool, large: LargeBody | None = None
    ) -> ProgramOfRequest:
        """Return the program that a request names, and how it is forwarded. `body` is a JSON object, and a `large` one has been
        read. Raises ApiError 400 for an id that is none."""
        fields = _decode_fields(body) if large is None else large.fill(_ProgramFields)
        extra = _object_members(fields.extra_body)
        program, parent = self._read_ids(headers, fields, extra)
        changes: dict[str, object] = {}
        if fields.program_id or fields.parent_program_id:
            changes |= dict.fromkeys(_OWN_KEYS)
        if any(key in extra for key in _OWN_KEYS):
            changes[_EXTRA_KEY] = {key: value for key, value in extra.items() if key not in _OWN_KEYS} or None
        asks = self._asks_for_usage and stream and route.reports_usage_on_demand
        options = _with_usage(fields.stream_options) if asks else None
        if options is not None:
            changes[_OPTIONS_KEY] = options
        is_last = is_last_request(headers)
        changed = _change_members(body, changes, fields, large)
        return ProgramOfRequest(program, parent, is_last, changed, hides_usage=options is not None)

    def _read_ids(self, headers: Headers, fields: _ProgramFields, extra: Mapping[str, msgspec.Raw]) -> tuple[str, str]:
        """Return the ids of the program and of its parent, each empty if there is none."""
        program = _body_id(_PROGRAM_KEY, fields.program_id, extra) or _header_id(headers, PROGRAM_HEADERS)
        parent = _body_id(_PARENT_KEY, fields.parent_program_id, extra) or _header_id(headers, (PARENT_HEADER,))
        if program:
            return program, parent
        session = self._sessions.read(headers)
        if session.program:
            where = session.header.decode("latin-1")
            return _checked(where, session.program), parent or (session.parent and _checked(where, session.parent))
        return (_session_of_body(fields.session_id) if self._sessions.reads_body else ""), parent


def ask_for_usage(body: bytes, large: LargeBody | None = None) -> bytes | None:
    """Return the JSON object `body` with `stream_options.include_usage`, or None if the client has asked for the usage itself.
    A `large` body has been read. Raises ApiError 400 for options with a name that is no text."""
    fields = _decode_fields(body) if large is None else large.fill(_ProgramFields)
    options = _with_usage(fields.stream_options, overrules=True)
    return None if options is None else _change_members(body, {_OPTIONS_KEY: options}, fields, large)


def withdraw_usage(body: bytes) -> bytes:
    """Return the JSON object `body`, which asks for the usage, without `stream_options.include_usage`, and without options that
    have nothing else."""
    # What has been changed in a large body stands at its end, and only that is read again.
    begin = body.rindex(_CHANGED_OPTIONS) if len(body) > LARGE_BYTES else 0
    end = b"{" + body[begin + 1 :] if begin else body
    fields = _decode_fields(end)
    options = _object_members(fields.stream_options)
    kept = {key: value for key, value in options.items() if key != "include_usage"}
    without = _change_members(end, {_OPTIONS_KEY: kept or None}, fields)
    if not begin:
        return without
    return b"".join((memoryview(body)[:begin], b"," if without != b"{}" else b"", without[1:]))


def _object_members(raw: msgspec.Raw) -> Mapping[str, msgspec.Raw]:
    """Return the members of a JSON object; none if it is absent, or something else. Raises ApiError 400 for one that is larger
    than what is taken apart, or with a name that is no text, at which nothing else has looked."""
    if len(memoryview(raw)) > _MAX_OPTIONS_BYTES:
        raise ApiError(
            400,
            f"{_EXTRA_KEY} is larger than {_MAX_OPTIONS_BYTES} bytes: put the fields at the top of the body",
            kind="invalid_request_error",
            param=_EXTRA_KEY,
        )
    try:
        return _decode_object(raw) if raw else {}
    except msgspec.ValidationError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid_json(error) from error


def _body_id(key: str, raw: msgspec.Raw, extra: Mapping[str, msgspec.Raw]) -> str:
    """Return the id under `key` at the top of the body, else that in `extra_body`, else ""."""
    value = raw or extra.get(key)
    if not value:
        return ""
    if len(memoryview(value)) > LARGE_BYTES:
        raise _invalid_id(key, f"must have at most {MAX_ID_CHARS} characters")
    try:
        name = _decode_text(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _invalid_id(key) from None
    return _checked(key, name)


def _session_of_body(raw: msgspec.Raw) -> str:
    """Return the id of a session in the body, or "" for anything but a text: the field is the backend's to check."""
    try:
        name = _decode_text(raw) if raw and len(memoryview(raw)) <= LARGE_BYTES else ""
    except msgspec.ValidationError:
        return ""
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid_json(error) from error
    return _checked(_SESSION_KEY, name) if name.strip() else ""


def _header_id(headers: Headers, names: Sequence[bytes]) -> str:
    """Return the id in the first of the headers `names` that the request has, or ""."""
    for name in names:
        value = next((value for header, value in headers if header == name), None)
        if value is not None:
            return _checked(name.decode("latin-1"), value.decode("utf-8", "replace").strip())
    return ""


def _checked(where: str, name: str) -> str:
    if not name.strip():
        raise _invalid_id(where)
    if len(name) > MAX_ID_CHARS:
        raise _invalid_id(where, f"must have at most {MAX_ID_CHARS} characters")
    return name


def _invalid_id(where: str, problem: str = "must be a string that is not empty") -> ApiError:
    return ApiError(400, f"{where} {problem}", kind="invalid_request_error", code="invalid_program_id", param=where)


def _invalid_json(error: Exception) -> ApiError:
    return ApiError(400, f"the request body is not valid JSON: {error}", kind="invalid_request_error")


def _with_usage(raw: msgspec.Raw, *, overrules: bool = False) -> dict[str, object] | None:
    """Return `stream_options` with `include_usage`, or None if the client has said whether it wants that (if `overrules`: that
    it wants that), or if they are no object, which the backend will refuse."""
    if not raw or bytes(memoryview(raw)[:5]) == b"null":
        return {"include_usage": True}
    if len(memoryview(raw)) > _MAX_OPTIONS_BYTES:
        return None
    try:
        options = _decode_object(raw)
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid_json(error) from error
    has_said = bytes(options.get("include_usage", b"")) not in _NOT_ASKED if overrules else "include_usage" in options
    return None if has_said else {**options, "include_usage": True}


_NOT_ASKED: Final = (b"", b"false", b"null")


def _change_members(
    body: bytes, changes: Mapping[str, object], fields: _ProgramFields, large: LargeBody | None = None
) -> bytes:
    """Return the JSON object `body`, which has these `fields`, with these members, and without those that are None. Raises
    ApiError 400 for a name of a member that is not UTF-8."""
    if not changes:
        return body
    try:
        return change_members(body, changes, {key: getattr(fields, key) for key in changes}, large)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid_json(error) from error


PROGRAM_MEMBER_NAMES: Final = frozenset(_ProgramFields.__struct_fields__)
"""The members of a body that are read here."""
