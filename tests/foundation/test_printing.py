"""Text from outside as it is shown: nothing that acts on a terminal, forges a line, or turns one around."""

from __future__ import annotations

import json
import unicodedata

import pytest

from maitred.core.printing import printable, printable_json

HARMFUL = {
    "a line separator": "\u2028",
    "a paragraph separator": "\u2029",
    "a right-to-left override": "\u202e",
    "a left-to-right isolate": "\u2066",
    "an Arabic letter mark": "\u061c",
    "a next line, of C1": "\x85",
    "a control sequence introducer, of C1": "\x9b",
    "ESC": "\x1b",
    "DEL": "\x7f",
    "a line end": "\n",
    "a space of no width": "\u200b",
    "a tag": "\U000e0041",
}


@pytest.mark.parametrize("character", HARMFUL.values(), ids=HARMFUL)
def test_what_cannot_be_printed_is_escaped(character: str) -> None:
    text = f"a {character} é"
    shown = printable(text)
    assert (shown.isprintable(), len(shown.splitlines())) == (True, 1)
    assert shown.encode("latin-1", "backslashreplace").decode("unicode_escape") == text
    encoded = printable_json(json.dumps(text, ensure_ascii=False).encode())
    assert encoded.decode().isprintable()
    assert json.loads(encoded) == text


def test_every_character_is_itself_in_the_end() -> None:
    text = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x20000), 0xE0041)))
    encoded = printable_json(json.dumps(text, ensure_ascii=False).encode())
    assert json.loads(encoded) == text
    assert {unicodedata.category(c)[0] for c in encoded.decode()} & {"C"} == set()


@pytest.mark.parametrize("text", ["plain", "größer 東京 🚀", 'a\\b "c"'])
def test_all_else_stays(text: str) -> None:
    assert printable(text) == text
    encoded = json.dumps(text, ensure_ascii=False).encode()
    assert printable_json(encoded) == encoded
