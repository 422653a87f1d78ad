"""Reading a JSON object in slices gives what reading it at once gives, whatever the object and wherever the cuts are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.errors import JSON_ERRORS
from maitred.gateway.bodies import json_slices
from maitred.gateway.bodies.json_slices import SLICE_BYTES, JsonSlices

NAMES = ("model", "stream", "messages", "text")
Whole = msgspec.defstruct("Whole", [(name, msgspec.Raw, msgspec.Raw()) for name in NAMES])
decode_whole = msgspec.json.Decoder(Whole).decode


def read_at_once(body: bytes) -> dict[str, bytes] | None:
    """Return the members of `body`, or None if it is no JSON object."""
    try:
        whole = decode_whole(body)
    except JSON_ERRORS:
        return None
    return {name: bytes(getattr(whole, name)) for name in NAMES if getattr(whole, name)}


def fed(body: bytes, sizes: Iterator[int], **settings: Any) -> JsonSlices:
    slices, at = JsonSlices(NAMES, **settings), 0
    while at < len(body):
        size = next(sizes)
        slices.feed(body[at : at + size])
        at += size
    slices.close()
    return slices


def read_in_slices(body: bytes, sizes: Iterator[int]) -> dict[str, bytes] | None:
    try:
        members = fed(body, sizes).members
    except JSON_ERRORS:
        return None
    return {name: body[m.begin : m.end] if m.raw is None else m.raw for name, m in members.items()}


TEXT = st.text(st.sampled_from('a"\\/{}[]:,\n\x7f é中\U0001f600'), max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-99, 10**20) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*NAMES, "a", 'b"c']), inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from([*NAMES, "x", "a longer name", ""]), VALUES)
SIZES = st.lists(st.integers(1, 9), min_size=1).map(lambda sizes: chain(sizes, repeat(sizes[-1])))


@given(OBJECTS, SIZES, st.booleans(), st.sampled_from([None, 1]))
def test_any_object_reads_as_at_once(value: dict[str, Any], sizes: Iterator[int], ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert read_in_slices(body, sizes) == read_at_once(body)


@given(OBJECTS, SIZES, st.data())
def test_what_is_no_object_is_refused_and_nothing_else(
    value: dict[str, Any], sizes: Iterator[int], data: st.DataObject
) -> None:
    body = json.dumps(value).encode()
    at = data.draw(st.integers(0, len(body)))
    length = data.draw(st.integers(0, 3))
    put = data.draw(
        st.sampled_from([b"", b'"', b",", b"{", b"}", b"[", b"]", b":", b"\\", b"1", b" ", b"\n", b"\\u", b"-", b".5"])
    )
    broken = body[:at] + put + body[at + length :]
    assert read_in_slices(broken, sizes) == read_at_once(broken)


@given(st.lists(VALUES, min_size=1), SIZES)
def test_the_items_of_a_list_are_counted(items: list[Any], sizes: Iterator[int]) -> None:
    body = json.dumps({"model": "m", "text": items}).encode()
    member = fed(body, sizes, counted=["text"], max_items=1_000).members["text"]
    assert member.raw is not None or member.num_items == len(items)


@given(OBJECTS, SIZES)
def test_values_that_were_cut_are_kept_if_asked_for(value: dict[str, Any], sizes: Iterator[int]) -> None:
    body = json.dumps(value).encode()
    members = fed(body, sizes, max_kept_bytes=10_000).members
    assert {name: member.raw for name, member in members.items()} == read_at_once(body)


@given(OBJECTS, SIZES)
def test_name_and_value_of_a_member_are_in_its_piece(value: dict[str, Any], sizes: Iterator[int]) -> None:
    body = json.dumps(value).encode()
    for name, member in fed(body, sizes).members.items():
        assert (member.piece is None) == (member.raw is None)
        if member.piece is None:
            continue
        text = body[member.piece.begin : member.piece.end]
        assert json.dumps(name).encode() in text
        assert (member.raw or b"") in text
        assert name in json.loads(member.piece.document(body, without=(member.piece.end, member.piece.end)))


def test_a_client_cannot_write_the_mark() -> None:
    # The mark of another process; with the one of this process the value would be taken for one that goes on.
    body = b'{"model":["\\u007f0123456789abcdef"],"text":"\x7f"}'
    assert read_in_slices(body, repeat(5)) == {"model": b'["\\u007f0123456789abcdef"]', "text": b'"\x7f"'}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model":' + b"9" * 200_000 + b"}", "a name, a number or a word has more than 65536 bytes"),
        (b'{"' + b"x" * 200_000 + b'":1}', "a name, a number or a word has more than 65536 bytes"),
        (b'{"text":[' + b"{}," * 100_000 + b"}", r"JSON is malformed: .* \(byte 300009\)"),
        (b'{"text":"' + b"x" * 200_000, "Input data was truncated"),
        (b'{"text":' + b"[" * 5_000, "recursion"),
        (b"[" + b"1," * 100_000, "Expected `object`, got `array`"),
        (b"", "truncated"),
        (b" " * 200_000, "truncated"),
    ],
)
def test_errors_say_where_in_the_whole_they_are(body: bytes, message: str) -> None:
    with pytest.raises(JSON_ERRORS, match=message):
        fed(body, repeat(SLICE_BYTES))


MIB = 1024 * 1024
UNITS = [
    b"{},",
    b"[],",
    b"1,",
    b'"",',
    b'"a",',
    b"[" * 16 + b"]" * 16 + b",",
    b'{"":' * 16 + b"1" + b"}" * 16 + b",",
    b"[[[],[[],[[],[]]]]],",
    b'{"role":"user","content":"hi"},',
    b" ",
    b"1,\n",
    b'"\\\\",',
    b'"\\ud83d\\ude00",',
    b'[{"":[{"":[]}]}],',
]


@pytest.mark.parametrize("unit", UNITS)
def test_work_and_memory_are_linear_whatever_the_shape(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    worked = [0]
    stack_behind, find_cut = json_slices._stack_behind, JsonSlices._find_cut

    def count_runs(stack: bytes, brackets: bytes) -> bytes:
        worked[0] += len(brackets)
        assert len(stack) < 100
        return stack_behind(stack, brackets)

    def count_bytes(self: JsonSlices, text: bytes) -> Any:
        worked[0] += len(text)
        return find_cut(self, text)

    monkeypatch.setattr(json_slices, "_stack_behind", count_runs)
    monkeypatch.setattr(JsonSlices, "_find_cut", count_bytes)
    body = b'{"model":"m","text":[' + unit * (2 * MIB // len(unit)) + b'1],"stream":true}'
    slices = fed(body, repeat(SLICE_BYTES), counted=["text"], max_items=2048)
    assert worked[0] <= 2.1 * len(body)  # Each byte once, and each bracket once more: nothing is carried over for long.
    assert slices.members["model"].raw == b'"m"'
    assert slices.members["stream"].raw == b"true"
    assert body[slices.members["text"].begin :].startswith(b"[" + unit[:1])
    assert slices.members["text"].end == len(body) - len(b',"stream":true}')
