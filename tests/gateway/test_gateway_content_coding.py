"""Request bodies that clients have compressed."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import msgspec
import pytest
from world import CHAT, run, world

from maitred.gateway.bodies import content_coding
from maitred.gateway.bodies.content_coding import CODINGS, PIECE_BYTES, _find_library

BODY = msgspec.json.encode({"model": "m", "input": "hello " * 300_000})
RAW = zlib.compressobj(wbits=-15)
ZSTD: Any = _find_library("compression.zstd", "backports.zstd")
BROTLI: Any = _find_library("brotli")
needs_extra = pytest.mark.skipif({"br", "zstd"} - CODINGS.keys() != set(), reason="needs the extra `encodings`")


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        ("gzip", gzip.compress(BODY)),
        ("GZIP", gzip.compress(BODY, 0)),
        ("x-gzip", gzip.compress(BODY[:700_000]) + gzip.compress(BODY[700_000:])),
        ("gzip", b"".join(gzip.compress(BODY[at : at + 1_000], 0) for at in range(0, len(BODY), 1_000))),
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


def packed(coding: str, body: bytes) -> bytes:
    return bytes(ZSTD.compress(body) if coding == "zstd" else BROTLI.compress(body, quality=5))


@needs_extra
@pytest.mark.parametrize("coding", ["zstd", "br", "ZSTD", "two frames"])
def test_the_codings_of_the_extra(coding: str) -> None:
    halves = b"" if ZSTD is None else ZSTD.compress(BODY[:700_000]) + ZSTD.compress(BODY[700_000:])
    name = "zstd" if coding == "two frames" else coding

    async def scenario() -> None:
        async with world() as w:
            sent = halves if coding == "two frames" else packed(name.lower(), BODY)
            assert (await w.request("/v1/responses", sent, content_encoding=name))[0] == 200
            assert w.backends[0].received[0].body == BODY
            await w.wait_until_idle()
            assert w.state.parked_body_bytes == 0

    run(scenario())


@needs_extra
@pytest.mark.parametrize("coding", ["zstd", "br"])
def test_a_broken_body_of_the_extra_is_told_so(coding: str) -> None:
    whole = packed(coding, BODY)

    async def scenario() -> None:
        async with world() as w:
            for sent in (BODY[:100], b"", whole[:-3], whole + b"x"):
                status, _, body = await w.request(CHAT, sent, content_encoding=coding)
                assert (status, msgspec.json.decode(body)["error"]["code"]) == (400, "invalid_content_encoding")
            assert w.state.parked_body_bytes == 0

    run(scenario())


@needs_extra
@pytest.mark.parametrize("coding", ["zstd", "br"])
def test_a_bomb_of_the_extra_is_refused_within_the_limits(coding: str) -> None:
    bomb = packed(coding, b" " * (256 << 20))
    decoder, at = CODINGS[coding].start(bomb), 0
    for _ in range(8):  # No piece is much larger than it should be, however much the next bytes stand for.
        data = bomb[at : at + PIECE_BYTES] if decoder.needs_input else b""
        at += len(data)
        assert len(decoder.decode(data)) <= 2 * PIECE_BYTES

    async def scenario() -> None:
        async with world(max_body_bytes=4_000_000) as w:
            assert (await w.request(CHAT, bomb, content_encoding=coding))[0] == 413
            assert w.state.parked_body_bytes == 0

    run(scenario())


@needs_extra
def test_a_frame_with_a_larger_window_than_may_be_is_refused() -> None:
    sent = ZSTD.compress(
        BODY * 8, options={ZSTD.CompressionParameter.window_log: 27, ZSTD.CompressionParameter.checksum_flag: 1}
    )

    async def scenario() -> None:
        async with world() as w:
            assert (await w.request(CHAT, sent, content_encoding="zstd"))[0] == 400

    run(scenario())


@pytest.mark.parametrize("coding", ["zstd", "br"])
def test_without_the_extra_its_codings_are_refused_and_the_log_says_what_is_missing(
    coding: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = {name: CODINGS[name] for name in ("gzip", "deflate")}
    monkeypatch.setattr(content_coding, "CODINGS", plain)
    monkeypatch.setattr(content_coding, "_told_of", set())

    async def scenario() -> None:
        async with world() as w:
            for _ in range(2):
                status, headers, _ = await w.request("/v1/responses", BODY, content_encoding=coding)
                assert (status, headers["accept-encoding"]) == (415, "gzip, deflate")

    run(scenario())
    assert sum("maitred[encodings]" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("coding", ["compress", "gzip, gzip", "gzip\r\ncontent-encoding: gzip", "nonsense"])
def test_other_codings_are_refused_with_those_that_are_taken(coding: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            status, headers, body = await w.request("/v1/responses", gzip.compress(BODY), content_encoding=coding)
            assert (status, headers["accept-encoding"]) == (415, ", ".join(CODINGS))
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
        ("gzip", gzip.compress(b"") * 1_000_000 + gzip.compress(BODY)),  # minutes of work that stand for nothing
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


@pytest.mark.parametrize("path", ["/admin/drain", "/admin/undrain", "/programs/release"])
def test_pages_of_the_gateway_say_that_they_take_no_coding(path: str) -> None:
    async def scenario() -> None:
        async with world(programs={"backend_capacity_tokens": 1_000}) as w:
            asked = msgspec.json.encode({"backend": w.backends[0].url, "program_id": "p"})
            status, headers, body = await w.request(path, gzip.compress(asked), content_encoding="gzip")
            assert (status, headers["accept-encoding"]) == (415, "identity")
            assert msgspec.json.decode(body)["error"]["code"] == "unsupported_content_encoding"
            assert (await w.request(path, asked, content_encoding="identity"))[0] == 200

    run(scenario())


def test_the_list_of_models_has_a_trailing_slash_too() -> None:
    async def scenario() -> None:
        async with world() as w:
            listed = await w.request("/v1/models", b"", "GET")
            assert (await w.request("/v1/models/", b"", "GET"))[::2] == listed[::2]

    run(scenario())
