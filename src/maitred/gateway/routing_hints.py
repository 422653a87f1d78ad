"""Routing hints: what a router may know of a request beside its model and class.

    program       header x-maitred-program-id or x-program-id, else the session that the headers of an agent
                  name (`agent_headers`), else `program_id` or `session_id` in the body
    routing key   header x-smg-routing-key
    prompt        tools, system, instructions, messages, prompt, input and text of the body (`prompt_text`)

Routing hints need a second pass over the body, so they are read only if the router in use looks at them (`Signals`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from maitred.core.request import PrefixKeys
from maitred.gateway.agent_headers import NO_SESSION, SessionReader
from maitred.gateway.large_body import LargeBody
from maitred.gateway.prompt_text import MAX_PROMPT_BYTES, PromptText
from maitred.gateway.request_fields import PROGRAM_HEADERS, invalid_body, of_usual_size, shorten_name
from maitred.routing import Signals
from maitred.wire.messages import Headers

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

    def read_hints(self, headers: Headers, body: bytes, model: str, large: LargeBody | None = None) -> RoutingHints:
        """Return the hints of one request; `body` is a JSON object, and a `large` one has been read. Prompts of different
        models are different.

        Raises ApiError 400 for a session id that is not UTF-8: such a text was skipped when the body was first parsed.
        """
        fields = _decode_hint_fields(body) if large is None else large.fill(_HintFields, MAX_PROMPT_BYTES)
        parts = (fields.system, fields.instructions, fields.messages, fields.prompt, fields.input, fields.text)
        has_prompt = bool(fields.tools) or any(parts)
        prefix = PromptText(model.encode(), fields.tools, parts) if self._prompt and has_prompt else None
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
