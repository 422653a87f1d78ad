from __future__ import annotations

import pytest

from maitred.wire import sse


@pytest.mark.parametrize(
    "stream",
    [
        *(b"data: x\n\n", b"data:x\n", b"data: x\r", b": c\n\ndata: x\n", b": c\r\n\r\ndata: x\r\n"),
        *(b"event: a\ndata: x\n", b"data: x\nda", b"error: x\n"),
    ],
)
def test_data(stream: bytes) -> None:
    assert sse.has_data(stream)


@pytest.mark.parametrize("stream", [b"", b"\n\n", b": ping\n\n", b":\r\n\r\n: data: x\n\n"])
def test_comments_are_no_data(stream: bytes) -> None:
    assert not sse.has_data(stream)


@pytest.mark.parametrize("stream", [b"data: x", b": c\n\ndata: x", b"event: a\n", b"event: a\nid: 1\nretry: 5\ndata: {"])
def test_a_part_of_a_line_and_a_name_are_no_data(stream: bytes) -> None:
    assert not sse.has_data(stream)


def test_an_event() -> None:
    assert sse.encode_event(b"{}") + sse.DONE == b"data: {}\n\ndata: [DONE]\n\n"
