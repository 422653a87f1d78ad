r"""The text of a prompt, for comparing prompts: what an engine computes of a body, and not how a client has written it.

A router that sends a conversation where its beginning is cached compares the bytes of prompts. Two bodies of one conversation
differ in bytes that no engine computes, and some by design in each request:

    x-anthropic-billing-header: ...; cch=1a2b3;     the first system block of Claude Code, which engines strip, or its first
                                                    line where a proxy has joined the blocks
    "cache_control": {"type": "ephemeral"}          a mark that moves to the newest message with each turn
    "content": "hi" or [{"type": "text", ...}]      the same text, as a string or as a list of blocks

So of messages, system prompt and input the strings that matter are taken in their order: roles, texts, names and arguments of
tool calls, and images. Tools stay as they are but for the marks, since a client writes them once. A prompt that is a string or
token ids is taken as it is.

    [{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}]   becomes   user \0 hi
    [{"role":"user","content":"hi"}]                                                                 becomes   user \0 hi

The strings are found by one regular expression, in time that is linear in the first MiB of each part; a quote in a string is
escaped in JSON, so the name of a member is never found inside one. Prompts that begin alike here begin alike there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from maitred.kv.block_hashes import PromptTextBytes

MAX_PROMPT_BYTES: Final = 1024 * 1024
"""Size of the beginning of a prompt that is compared: enough to recognise a prompt, and images in prompts are large."""
_STRING: Final = rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)(?:"|\\?\Z)'
_MEMBERS: Final = re.compile(
    rb'"(?:role|text|content|name|arguments|output|url|image_url|data|file_id|file_data)"\s*:\s*' + _STRING, re.DOTALL
)
"""The strings that an engine computes; the last one may be cut off, also within an escape."""
_MARK: Final = rb'"cache_control"\s*:\s*(?:\{[^{}]*\}|null)'
_MARKS: Final = re.compile(rb",\s*" + _MARK + rb"|" + _MARK + rb"\s*,?")
_BILLING: Final = b"x-anthropic-billing-header"
_BILLING_LINE: Final = re.compile(_BILLING + rb"[^\\]*+(?:\\n)*+")
"""That header, with the line ends behind it as JSON has them."""


class PromptText(msgspec.Struct, frozen=True, gc=False):
    """The `PrefixKeys` of a prompt, computed when they are asked for."""

    model: bytes
    tools: msgspec.Raw
    parts: tuple[msgspec.Raw, ...]
    """System prompt, messages and what else a body has as its prompt, in the order in which an engine puts them."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        texts = [self.model, _MARKS.sub(b"", _beginning(self.tools)), *map(_text_of, self.parts)]
        return PromptTextBytes(b"\0".join(filter(None, texts))[:MAX_PROMPT_BYTES]).block_keys(block_size)


def _text_of(part: msgspec.Raw) -> bytes:
    """Return the strings that matter in a part of a prompt, or the part itself if it is no list of messages or blocks."""
    raw = _beginning(part)
    found = _MEMBERS.findall(raw) if raw.startswith(b"[") else []
    if not found:
        return _without_billing(raw.strip(b'"'))
    return b"\0".join(text for text in map(_without_billing, found) if text)


def _without_billing(text: bytes) -> bytes:
    """Return a text without the header of a bill in front."""
    return _BILLING_LINE.sub(b"", text, count=1) if text.startswith(_BILLING) else text


def _beginning(raw: msgspec.Raw) -> bytes:
    # Cut before it is copied, because a part may hold many MiB of images.
    return bytes(memoryview(raw)[:MAX_PROMPT_BYTES])
