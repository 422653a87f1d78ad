"""Bytes for `fuzz_gateway.py`: valid requests and answers, and mutations of them."""

from __future__ import annotations

import json
from random import Random

MAX_PIECES = 6
_CHAT = {
    "model": "m",
    "max_tokens": 2,
    "session_id": "s",
    "program_id": "p",
    "messages": [{"role": "user", "content": "hello"}],
}


def _post(path: str, body: object, *headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n{lines}\r\n".encode() + data


def _chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def _answer(head: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {head}\r\n\r\n".encode() + body


REQUESTS = (
    _post("/v1/chat/completions", _CHAT),
    _post("/v1/chat/completions", _CHAT | {"stream": True}, "x-smg-priority: system", "x-smg-tenant-id: a"),
    _post("/v1/completions", {"model": "m", "prompt": "x" * 5_000, "max_tokens": 1}),
    _post("/v1/chat/completions", _CHAT, "Expect: 100-continue"),
    _post("/tokenize", {"prompt": "x"}),
    _post("/programs/release", {"program_id": "p"}),
    _post("/admin/reload", b""),
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    + _chunked(b'{"model":"m","prompt":', b'"x"}'),
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n",
    *(
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        for method, path in (("GET", "/health"), ("HEAD", "/metrics"), ("GET", "/maitred/state"), ("GET", "/v1/models/m"))
    ),
)
_USAGE = b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'
_EVENTS = (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b": comment\n\n", b'data: {"choices":[],' + _USAGE + b"}\n\n")
ANSWERS = (
    _answer("200 OK\r\nContent-Type: application/json\r\nContent-Length: 64", b'{"choices":[],' + _USAGE[:49] + b"}"),
    _answer("200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked", _chunked(*_EVENTS, b"data: [DONE]\n\n")),
    _answer("200 OK\r\nContent-Type: text/event-stream", b"".join(_EVENTS)),
    _answer("200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked", _chunked(b"\x1f\x8b\x08\x00" + bytes(20))),
    _answer("503 Service Unavailable\r\nContent-Length: 2\r\nRetry-After: 1", b"{}"),
    _answer("204 No Content", b""),
    _answer("100 Continue", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    _answer("103 Early Hints\r\nContent-Length: 2", b"{}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    _answer("100 Continue\r\nContent-Length: 2", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
)
_MODELS = b'{"object":"list","data":[{"id":"hostile","object":"model"}]}'
POLL_ANSWERS = {
    "/health": _answer("200 OK\r\nContent-Length: 2", b"{}"),
    "/v1/models": _answer(f"200 OK\r\nContent-Length: {len(_MODELS)}", _MODELS),
    "/metrics": _answer("200 OK\r\nContent-Length: 27", b"vllm:num_requests_running 1"),
    "/server_info": _answer("200 OK\r\nContent-Length: 28", b'{"max_running_requests": 16}'),
}
_TOKENS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b"\xff\xfe", b" ", b"\t", b":", b",", b";", b"0", b"-1", b"\x7f"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Transfer-Encoding: gzip, chunked\r\n", b"Host: b\r\n", b"Connection: close\r\n", b"Connection: keep-alive, host\r\n"),
    *(b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"HTTP/2.0", b"HTTP/1.0", b"FFFFFFFFFFFFFFFF\r\n", b"0\r\n\r\n"),
    *(b"[" * 2_000, b'"\\ud800"', b"9" * 5_000, b"1e999", b"NaN", b"x" * 70_000, b"A: " + b"b" * 9_000 + b"\r\n"),
    *(b"data: ", b"\n\n", b'"usage":', b'"model":null,', b"HTTP/1.1 200 OK\r\n", b"GET / HTTP/1.1\r\n"),
)


def mutate(data: bytes, random: Random) -> bytes:
    """Return `data` after up to four random changes, or as it is."""
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.choice((1, 1, 2, 8, 64)))
        change = random.randrange(6)
        if change == 0:
            data = data[:at] + random.choice(_TOKENS) + data[at:]
        elif change == 1:
            data = data[:at] + random.choice(_TOKENS) + data[end:]
        elif change == 2:
            data = data[:at] + data[end:]
        elif change == 3:
            data = data[:at] + data[at:end] * random.choice((2, 50)) + data[end:]
        elif change == 4:
            data = data[:at] + bytes(byte ^ 1 << random.randrange(8) for byte in data[at:end]) + data[end:]
        else:
            data = data[:at]
    return data


def cut_in_pieces(data: bytes, random: Random) -> list[bytes]:
    """Return `data` in one to `MAX_PIECES` pieces."""
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(MAX_PIECES)))
    return [data[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True) if begin < end]
