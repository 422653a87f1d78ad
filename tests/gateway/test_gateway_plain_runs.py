import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.gateway.bodies.plain_runs import MIN_RUN_BYTES, shorten_plain_runs
from maitred.gateway.bodies.request_fields import BodyFields, parse_body_fields
from maitred.gateway.routes import ROUTES
from maitred.wire.exchange import ApiError

ROUTE = ROUTES["/v1/chat/completions"]
WHOLE = msgspec.json.Decoder(BodyFields).decode
RUN = "a" * (2 * MIN_RUN_BYTES)


def body_of(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def fields_of(body: bytes) -> object:
    """The fields that the gateway reads from a body, or the message of the refusal."""
    try:
        return parse_body_fields(body, ROUTE)
    except ApiError as error:
        return error.message


@pytest.mark.parametrize("text", ["x" * 200_000, "日本語" * 20_000, "\\n" + "x" * 50_000 + '\\"' + "y" * 50_000])
def test_the_plain_runs_of_a_string_are_left_out(text):
    body = b'{"model": "m", "prompt": "%b", "stream": true}' % text.encode()
    assert len(shorten_plain_runs(body)) < 2.2 * MIN_RUN_BYTES < len(body)
    fields = parse_body_fields(body, ROUTE)
    assert (fields.model, fields.stream) == ("m", True)


def test_a_small_body_and_one_of_short_lines_stay_as_they_are():
    for body in (body_of(), body_of(prompt="x" * 8_000), body_of(prompt="a line\n" * 20_000)):
        assert shorten_plain_runs(body) is body


def test_what_is_read_is_never_shortened():
    assert parse_body_fields(body_of(model=RUN), ROUTE).model == RUN
    assert parse_body_fields(body_of(model="\x7f", prompt=RUN), ROUTE).model == "\x7f"
    assert parse_body_fields(body_of(service_tier=RUN), ROUTE).service_tier == RUN


def test_a_long_name_of_a_member_does_not_become_that_of_a_field():
    body = b'{"model": "m", "mod%bel": "other", "prompt": "%b"}' % (RUN.encode(), RUN.encode())
    assert parse_body_fields(body, ROUTE).model == "m"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "prompt": "%b' % RUN.encode(),
        b'{"model": "m", "prompt": %b}' % RUN.encode(),
        b'{"model": "m" %b "prompt": ""}' % RUN.encode(),
        b'{"model": "m", "prompt": "%b\n%b"}' % (RUN.encode(), RUN.encode()),
        b'{"model": "m", "prompt": "%b"}}' % RUN.encode(),
        b'{"model": "m", "prompt": %b}' % (b"[" * len(RUN)),
        b'{"model": "m", "prompt": [%b 1e]}' % (b"1, " * len(RUN)),
    ],
)
def test_a_large_body_that_is_no_json_is_refused_as_before(body):
    with pytest.raises((msgspec.DecodeError, RecursionError)) as fault:
        WHOLE(body)
    with pytest.raises(ApiError) as refused:
        parse_body_fields(body, ROUTE)
    assert refused.value.status == 400
    assert ("nested too deeply" if fault.type is RecursionError else str(fault.value)) in refused.value.message


@pytest.mark.parametrize("place", range(-7, 2))
def test_an_escape_where_a_run_may_begin(place):
    for escape, is_valid in ((b"\\u00e9", True), (b"\\u00g9", False), (b"\\n", True), (b"\\q", False)):
        before = b'{"model": "m", "prompt": "'
        filled = before + b"x" * (MIN_RUN_BYTES + place - len(before)) + escape
        assert isinstance(fields_of(filled + b'%b"}' % RUN.encode()), BodyFields) is is_valid


PIECES = st.sampled_from(
    [
        *(RUN, RUN + "\n", "é" * MIN_RUN_BYTES, "7" * len(RUN), "1, " * MIN_RUN_BYTES, '"', "\\", '\\"', *"{}[]:, \x7fa"),
        *('"model": "m"', '"stream": true', '"prompt": "', '", '),
    ]
)


@given(st.lists(PIECES, max_size=12), st.booleans())
def test_any_bytes_are_read_as_without_shortening(pieces, as_object):
    body = "".join(['{"model": "m", "prompt": "' if as_object else "", *pieces, '"}' if as_object else ""]).encode()
    found = fields_of(body)
    try:
        expected = WHOLE(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        assert isinstance(found, str)
    else:
        assert found == expected or expected.model is None or not isinstance(expected.model, str)


class CountedBody(bytes):
    """A body that counts the bytes over which it is searched."""

    searched = 0

    def find(self, sub, start=0, end=None):
        found = bytes.find(self, sub, start, len(self) if end is None else end)
        self.searched += (found if found >= 0 else len(self) if end is None else end) - start
        return found


@pytest.mark.parametrize(
    "unit", [b"x" * 98 + b"\\n", b"x" * 8_190 + b"\\n", b"1,\n", b'"', b'\\"', b'x\n"' + b"y" * 9_000], ids=len
)
def test_a_body_is_searched_in_linear_time_whatever_breaks_its_runs(unit):
    body = CountedBody(b'{"model": "m", "prompt": "' + unit * (2_000_000 // len(unit)))
    shorten_plain_runs(body)
    assert body.searched <= 3 * len(body)


@pytest.mark.parametrize("field", ["stream", "max_tokens", "service_tier", "max_completion_tokens", "max_output_tokens"])
@pytest.mark.parametrize("value", ["[{},{}]", "[[]]", '{"a":1}', "null"])
def test_a_field_of_another_type_is_as_if_it_was_not_there(field, value):
    body = b'{"model":"m","%b":%b}' % (field.encode(), value.encode())
    assert parse_body_fields(body, ROUTE) == BodyFields(model="m")


@pytest.mark.parametrize("value", ["[]", "5", "true", '""', "null"])
def test_a_model_that_is_no_text_is_none(value):
    assert fields_of(b'{"stream":[1],"model":%b}' % value.encode()) == "you must name a model"
