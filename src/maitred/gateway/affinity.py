"""To what a request belongs: the session and the prompt, for routers that keep together what belongs together.

    program        header x-program-id or x-session-id, else the body's `program_id` or `session_id`
    routing key    header x-smg-routing-key
    prompt         the text of the body's tools, system, messages, prompt or input, as JSON has it

Nothing of this is read unless the router in use looks at it (`Reads`): it takes a second pass over the body. What is read is
forwarded as it came. The text of a prompt is not what the engine makes of it, but two prompts that begin alike there do so
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from maitred.kv.keys import TextKeys
from maitred.request import PrefixKeys
from maitred.routing import Reads
from maitred.wire.asgi import Headers

ROUTING_KEY: Final = b"x-smg-routing-key"
_PROGRAM: Final = (b"x-program-id", b"x-session-id")
_LONGEST: Final = 128
"""Characters of a name that is kept as it is: routers remember many."""
_MOST_COMPARED: Final = 1024 * 1024
"""Bytes of a prompt: a router needs no more to tell where it was, and pictures in it are large."""


class Belonging(msgspec.Struct, frozen=True, gc=False):
    """What is known of it; empty where nothing is."""

    program: str = ""
    routing_key: str = ""
    prefix: PrefixKeys | None = None


UNREAD: Final = Belonging()


class PromptText(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of raw JSON, laid out when somebody asks; of its first MiB."""

    parts: tuple[bytes | msgspec.Raw, ...]

    def keys(self, block_size: int) -> Sequence[int]:
        text = b"".join(memoryview(part)[:_MOST_COMPARED] for part in self.parts)
        return TextKeys(text[:_MOST_COMPARED]).keys(block_size)


class _Body(msgspec.Struct, gc=False):
    """What may be there. Tools and system prompts come first, as chat templates have it."""

    program_id: msgspec.Raw = msgspec.Raw()
    session_id: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Body).decode
_decode_name = msgspec.json.Decoder(str | int).decode


class AffinityReader:
    """Reads what `reads` asks for."""

    def __init__(self, reads: Reads) -> None:
        self._session = Reads.SESSION in reads
        self._prompt = Reads.PROMPT in reads

    def read(self, headers: Headers, body: bytes, model: str) -> Belonging:
        """`body` is a JSON object. The same text for another model is another prompt."""
        if not (self._session or self._prompt):
            return UNREAD
        fields = _decode(body)
        parts = (fields.tools, fields.system, fields.messages, fields.prompt, fields.input, fields.text)
        prefix = PromptText((f"{model}\0".encode(), *parts)) if self._prompt and any(map(bytes, parts)) else None
        if not self._session:
            return Belonging(prefix=prefix)
        named = {name: value for name, value in reversed(headers) if name in _PROGRAM or name == ROUTING_KEY}
        program = next((named[name].decode("latin-1") for name in _PROGRAM if name in named), "")
        program = program or _text(fields.program_id) or _text(fields.session_id)
        return Belonging(_short(program), _short(named.get(ROUTING_KEY, b"").decode("latin-1")), prefix)


def _text(said: msgspec.Raw) -> str:
    """A text or a number, as text; empty for anything else."""
    try:
        return str(_decode_name(said)) if bytes(said) else ""
    except msgspec.DecodeError:
        return ""


def _short(name: str) -> str:
    name = name.strip()
    if len(name) <= _LONGEST:
        return name
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
