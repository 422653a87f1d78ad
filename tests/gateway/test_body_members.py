"""Members of a body are changed, and all others are what they were, in bodies of any size."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.gateway.bodies import body_members
from maitred.gateway.bodies.body_members import change_members, parts_of_changed
from maitred.gateway.bodies.large_body import LargeBody, read_large_body
from maitred.gateway.intake.engine_priority import set_body_priority

LARGE = "x" * (300 * 1024)


class Present(msgspec.Struct):
    priority: msgspec.Raw = msgspec.Raw()
    program_id: msgspec.Raw = msgspec.Raw()


def changed(body: bytes, **changes: Any) -> bytes:
    present = msgspec.json.decode(body, type=Present)
    return change_members(body, changes, {key: getattr(present, key) for key in changes})


@pytest.mark.parametrize(
    ("members", "result"),
    [
        ('"model":"m",%s', '"model":"m",%s,"priority":1'),
        ('"priority" : 9, "model":"m",%s', ' "model":"m",%s,"priority":1'),
        ('"model":"m", "priority":9 ,%s', '"model":"m" ,%s,"priority":1'),
        ('"model":"m",%s,"priority":9', '"model":"m",%s,"priority":1'),
        ('"a":{"priority":9},%s,"priority":9', '"a":{"priority":9},%s,"priority":1'),
        ('"a":{"priority":9,"b":1},%s,"priority":9', '"a":{"priority":9,"b":1},%s,"priority":1'),
        ('"priority":9,"a":{"priority":9,"b":1},%s', '"a":{"priority":9,"b":1},%s,"priority":1'),
        ('"priority":8,%s,"priority":9', '"priority":8,%s,"priority":9,"priority":1'),
        ('"priority":9,%s,"priority":9', '"priority":9,%s,"priority":9,"priority":1'),
        ('"prior\\u0069ty":9,%s', '"prior\\u0069ty":9,%s,"priority":1'),
        ('"a":{"b":1,"priority":9},"prior\\u0069ty":9,%s', '"a":{"b":1,"priority":9},"prior\\u0069ty":9,%s,"priority":1'),
    ],
)
def test_a_large_body_is_changed_as_text(members: str, result: str) -> None:
    text = f'"prompt":"{LARGE}"'
    body = "{%s}" % (members % text)
    assert changed(body.encode(), priority=1).decode() == "{%s}" % (result % text)
    assert json.loads(changed(body.encode(), priority=1))["priority"] == 1


def as_large(body: bytes, **changes: Any) -> bytes:
    """Change a body as one that is read in slices."""
    steps = read_large_body(body, sorted(changes), (), 0)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        large: LargeBody = end.value
    fields = large.fill(Present)
    assert change_members(body, changes, {key: getattr(fields, key) for key in changes}, large) is body
    return b"".join(parts_of_changed(body, large.cut_out, large.added, is_empty=large.is_empty))


@pytest.mark.parametrize("change", [changed, as_large])
@pytest.mark.parametrize("spaces", [" " * 300_000, "\n" * 1_300_000])
@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("{%s}", {"priority": 1}),
        ("%s{%s} ", {"priority": 1}),
        ('{%s"priority":9%s}', {"priority": 1}),
        ('{"a":{}%s}', {"a": {}, "priority": 1}),
        ('{"program_id":"p",%s"priority":9}', {"priority": 1}),
        ('{"program_id":"p","priority":9,%s"a":1}', {"priority": 1, "a": 1}),
    ],
)
def test_a_body_of_spaces_stays_json(change: Callable[..., bytes], body: str, spaces: str, result: dict[str, Any]) -> None:
    made = change(body.replace("%s", spaces).encode(), priority=1, program_id=None)
    assert {name: value for name, value in json.loads(made).items() if value is not None} == result


@pytest.mark.parametrize("distance", [0, 100, 65_400, 65_480, 65_500, 70_000])
@pytest.mark.parametrize("change", [changed, as_large])
def test_what_is_within_another_member_is_left_alone(change: Callable[..., bytes], distance: int) -> None:
    pad, text = "x" * distance, "y" * 1_100_000
    inner = {"b": 1, "priority": 9, "program_id": "p"}
    escaped = json.dumps({"pad": pad, "a": inner, "prioritY": 9, "text": text}).replace("prioritY", "prior\\u0069ty")
    assert json.loads(change(escaped.encode(), priority=1)) == {"pad": pad, "a": inner, "priority": 1, "text": text}
    both = json.dumps({"pad": pad, "a": inner, "priority": 9, "program_id": "p", "text": text}).encode()
    assert json.loads(change(both, priority=1, program_id=None)) == {"pad": pad, "a": inner, "priority": 1, "text": text}


def test_a_member_that_cannot_be_cut_out_is_null_in_the_end() -> None:
    twice = b'{"program_id":"q","program_id":"p","prompt":"%b"}' % LARGE.encode()
    assert json.loads(changed(twice, program_id=None))["program_id"] is None
    assert "program_id" not in json.loads(changed(json.dumps({"program_id": "p", "prompt": LARGE}).encode(), program_id=None))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["priority", "a", ""]), inner, max_size=2),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["priority", "program_id", "model", "a", 'b"c']), VALUES, min_size=1),
    st.sampled_from([None, (",", ":")]),
    st.sampled_from([None, 2]),
)
def test_any_body_changed_as_text_reads_as_one_that_was_taken_apart(
    members: dict[str, Any], separators: Any, indent: int | None
) -> None:
    body = json.dumps(members, separators=separators, indent=indent).encode()
    apart = json.loads(changed(body, priority=7, program_id=None))
    limit = body_members._MAX_TAKEN_APART
    try:
        body_members._MAX_TAKEN_APART = 0  # type: ignore[misc]
        as_text = json.loads(changed(body, priority=7, program_id=None))
    finally:
        body_members._MAX_TAKEN_APART = limit  # type: ignore[misc]
    for text in (as_text, json.loads(as_large(body, priority=7, program_id=None))):
        assert {key: value for key, value in text.items() if key != "program_id" or value is not None} == apart


def test_millions_of_members_are_not_made_objects_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_members, "_decode_object", None)  # what takes a body apart
    body = b'{"model":"m",' + b",".join(b'"%x":0' % number for number in range(50_000)) + b"}"
    assert len(body) > 300 * 1024
    assert set_body_priority(body, 1) == body[:-1] + b',"priority":1}'
