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
from array import array
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from maitred.core.steps import Steps, run_at_once
from maitred.kv.block_hashes import hash_text_blocks

MAX_PROMPT_BYTES: Final = 1024 * 1024
"""Size of the beginning of a prompt that is compared: enough to recognise a prompt, and images in prompts are large."""
LARGE_PROMPT_BYTES: Final = 256 * 1024
"""Size of a body from which on its prompt is looked through in steps."""
_IN_STRING: Final = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_REST: Final = re.compile(_IN_STRING, re.DOTALL)
_OPENING: Final = rb'"(?:role|text|content|name|arguments|output|url|image_url|data|file_id|file_data)"\s*:\s*"'
_BEGIN: Final = re.compile(_OPENING)
_MEMBERS: Final = re.compile(_OPENING + b"(" + _IN_STRING + rb')(?:"|\\?\Z)', re.DOTALL)
"""The strings that an engine computes; the last one may be cut off, also within an escape."""
_MARK_NAME: Final = b'"cache_control"'
_MARK: Final = re.compile(_MARK_NAME + rb"\s*:\s*(?:\{[^{}]*\}|null)")
_COMMA_BEHIND: Final = re.compile(rb"\s*,")
_MARKS_IN_STEP: Final = 2_048
"""Marks that are found in a step: a millisecond."""
_BYTES_IN_STEP: Final = 32 * 1024
"""Bytes in which strings are looked for in a step: a millisecond if there are none, or many."""
_BILLING: Final = b"x-anthropic-billing-header"
_BILLING_LINE: Final = re.compile(_BILLING + rb"[^\\]*+(?:\\n)*+")
"""That header, with the line ends behind it as JSON has them."""


class PromptText:
    """The `PrefixKeys` of a prompt, computed when they are asked for, and kept."""

    def __init__(self, model: bytes, tools: msgspec.Raw, parts: tuple[msgspec.Raw, ...], asked_sizes: set[int]) -> None:
        """`parts` are system prompt, messages and what else a body has as its prompt, in the order in which an engine puts
        them. `asked_sizes` are those for which keys were asked before, of any prompt."""
        self._model, self._tools, self._parts, self._asked_sizes = model, tools, parts, asked_sizes
        self._text: bytes | None = None
        self._keys: dict[int, Sequence[int]] = {}

    def block_keys(self, block_size: int) -> Sequence[int]:
        self._asked_sizes.add(block_size)
        return run_at_once(self._make_keys(block_size))

    def prepare(self, *, keeps_parts: bool) -> Steps[None]:
        """Compute in steps what a router is going to ask for, as it has asked for it of other prompts. What else it may ask for
        is found in the parts if they are kept, as they cost nothing where the whole body is kept; else in their text."""
        self._text = yield from self._make_text()
        for block_size in tuple(self._asked_sizes):
            yield from self._make_keys(block_size)
        if keeps_parts:
            self._text = None
        else:
            self._tools, self._parts = msgspec.Raw(), ()

    def forget(self) -> None:
        """Refer to the body no more: the request will not be sent."""
        self._text, self._tools, self._parts = b"", msgspec.Raw(), ()

    def _make_keys(self, block_size: int) -> Steps[Sequence[int]]:
        keys = self._keys.get(block_size)
        if keys is None:
            text = yield from self._make_text()
            made = yield from hash_text_blocks(text, block_size)
            keys = self._keys[block_size] = array("Q", made)  # A list of integers is five times as large.
        return keys

    def _make_text(self) -> Steps[bytes]:
        if self._text is not None:
            return self._text
        texts = [self._model, (yield from _without_marks(_beginning(self._tools)))]
        for part in self._parts:
            yield
            texts.append((yield from _text_of(part)))
        return b"\0".join(filter(None, texts))[:MAX_PROMPT_BYTES]


def _without_marks(tools: bytes) -> Steps[bytes]:
    """Return tools without the marks in them, each with one of the commas beside it."""
    kept, begin, at, num_seen = list[bytes](), 0, 0, 0
    while (found := tools.find(_MARK_NAME, at)) >= 0:
        mark = _MARK.match(tools, found)
        at = found + len(_MARK_NAME) if mark is None else mark.end()
        if mark is not None:
            before = tools[begin:found].rstrip()
            comma = None if before.endswith(b",") else _COMMA_BEHIND.match(tools, at)
            kept.append(before.removesuffix(b","))
            begin = at = at if comma is None else comma.end()
        num_seen += 1
        if not num_seen % _MARKS_IN_STEP:
            yield
    return b"".join((*kept, tools[begin:])) if kept else tools


def _text_of(part: msgspec.Raw) -> Steps[bytes]:
    """Return the strings that matter in a part of a prompt, or the part itself if it is no list of messages or blocks."""
    raw, found, at = _beginning(part), list[bytes](), 0
    while at < len(raw) and raw.startswith(b"["):
        # A comma is never between the name of a member and its string, but it may be in the string.
        comma = raw.find(b",", at + _BYTES_IN_STEP)
        stop = comma if comma >= 0 else len(raw)
        if stop - at > 2 * _BYTES_IN_STEP:  # hardly more than one string, which takes more than a step
            opening = _BEGIN.search(raw, at, stop)
            if opening is not None:
                end = yield from _end_of_string(raw, opening.end())
                found.append(_without_billing(raw[opening.end() : end]))
                at = end + 1
                continue
        else:
            for member in _MEMBERS.finditer(raw, at, stop):
                begin, at = member.start(1), member.end()
                if at == stop:
                    end = yield from _end_of_string(raw, member.end(1))
                    found.append(_without_billing(raw[begin:end]))
                    at = end + 1
                else:
                    found.append(_without_billing(member[1]))
        at = max(at, stop)
        yield
    return b"\0".join(filter(None, found)) if found else _without_billing(raw.strip(b'"'))


def _end_of_string(raw: bytes, at: int) -> Steps[int]:
    """Return where a string ends that is open at `at`: at its quote, or where `raw` is cut off, before half an escape."""
    while True:
        yield
        end = cast("re.Match[bytes]", _REST.match(raw, at, at + 1 + _BYTES_IN_STEP)).end()
        # A window has two bytes at least. What is left of it is a quote, or a backslash whose second byte is in the next window
        # or nowhere.
        if end == at or raw.startswith(b'"', end):
            return end
        at = end


def _without_billing(text: bytes) -> bytes:
    """Return a text without the header of a bill in front."""
    return _BILLING_LINE.sub(b"", text, count=1) if text.startswith(_BILLING) else text


def _beginning(raw: msgspec.Raw) -> bytes:
    # Cut before it is copied, because a part may hold many MiB of images.
    return bytes(memoryview(raw)[:MAX_PROMPT_BYTES])
