from __future__ import annotations

import pytest

from maitred.wire import sse


@pytest.mark.parametrize("stream", [b"data: x\n\n", b"data:x", b": c\n\ndata: x", b": c\r\n\r\ndata: x\r\n", b"event: a\n"])
def test_data(stream: bytes) -> None:
    assert sse.has_data(stream)


@pytest.mark.parametrize("stream", [b"", b"\n\n", b": ping\n\n", b":\r\n\r\n: data: x\n\n"])
def test_comments_are_no_data(stream: bytes) -> None:
    assert not sse.has_data(stream)


def test_an_event() -> None:
    assert sse.encode_event(b"{}") + sse.DONE == b"data: {}\n\ndata: [DONE]\n\n"
