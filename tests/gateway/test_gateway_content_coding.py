"""Request bodies that clients have compressed."""

from __future__ import annotations

import gzip
import zlib

import msgspec
import pytest
from world import CHAT, run, world

BODY = msgspec.json.encode({"model": "m", "input": "hello " * 300_000})
RAW = zlib.compressobj(wbits=-15)


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        ("gzip", gzip.compress(BODY)),
        ("GZIP", gzip.compress(BODY, 0)),
        ("x-gzip", gzip.compress(BODY[:700_000]) + gzip.compress(BODY[700_000:])),
        ("deflate", zlib.compress(BODY)),
        ("deflate", RAW.compress(BODY) + RAW.flush()),
        ("identity", BODY),
    ],
)
def test_the_backend_gets_the_body_decoded(coding: str, sent: bytes) -> None:
    async def scenario() -> None:
        async with world() as w:
            assert (await w.request("/v1/responses", sent, content_encoding=coding))[0] == 200
            received = w.backends[0].received[0]
            assert received.body == BODY
            assert b"content-encoding" not in received.headers
            assert received.headers[b"content-length"] == b"%d" % len(BODY)
            await w.wait_until_idle()
            assert w.state.parked_body_bytes == 0

    run(scenario())


@pytest.mark.parametrize("coding", ["zstd", "br", "compress", "gzip, gzip", "gzip\r\ncontent-encoding: gzip", "nonsense"])
def test_other_codings_are_refused_with_those_that_are_taken(coding: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            status, headers, body = await w.request("/v1/responses", gzip.compress(BODY), content_encoding=coding)
            assert (status, headers["accept-encoding"]) == (415, "gzip, deflate")
            assert msgspec.json.decode(body)["error"]["code"] == "unsupported_content_encoding"
            assert w.backends[0].received == []

    run(scenario())


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        ("gzip", BODY[:100]),
        ("gzip", b""),
        ("gzip", gzip.compress(BODY)[:-9]),
        ("gzip", gzip.compress(BODY) + b"x"),
        ("deflate", zlib.compress(BODY) + b"x"),
        ("deflate", BODY[:100]),
    ],
)
def test_a_body_of_no_such_coding_is_told_so(coding: str, sent: bytes) -> None:
    async def scenario() -> None:
        async with world() as w:
            status, _, body = await w.request(CHAT, sent, content_encoding=coding)
            assert (status, msgspec.json.decode(body)["error"]["code"]) == (400, "invalid_content_encoding")
            assert w.state.parked_body_bytes == 0

    run(scenario())


@pytest.mark.parametrize(("budget", "expected"), [(64 << 20, 413), (2_000_000, 503)])
def test_a_bomb_is_refused_within_the_limits(budget: int, expected: int) -> None:
    bomb = gzip.compress(b" " * (64 << 20))

    async def scenario() -> None:
        async with world(max_body_bytes=min(budget, 4_000_000), max_parked_body_bytes=budget) as w:
            held = await w.connect()
            held.writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b" " * 600_000)
            await w.wait_until(lambda: w.state.parked_body_bytes >= 600_000)
            assert (await w.request(CHAT, bomb, content_encoding="gzip"))[0] == expected
            assert w.state.parked_body_bytes <= 1_000_000

    run(scenario())


def test_the_list_of_models_has_a_trailing_slash_too() -> None:
    async def scenario() -> None:
        async with world() as w:
            assert await w.request("/v1/models/", b"", "GET") == await w.request("/v1/models", b"", "GET")

    run(scenario())
