"""The usage of an answer, read while it passes through; and what of a stream its client does not see."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import tracemalloc
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_gateway_programs import driver, program
from world import STREAM_HEAD, Backend, BackendRequest, chunk, run, whole, world

from maitred.gateway.bodies import answer_usage
from maitred.gateway.bodies.answer_usage import AnswerReader
from maitred.gateway.bodies.usage_counts import read_counts
from maitred.programs import ProgramPhase, Usage
from maitred.programs.token_estimator import MAX_REPORTED_TOKENS
from maitred.wire.errors import ProtocolError

USAGE = b'{"prompt_tokens":200,"completion_tokens":60,"total_tokens":260,"prompt_tokens_details":{"cached_tokens":100}}'
WANTED = Usage(200, 260, 100)
CHUNKED_GZIP = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
GZIP = [(b"content-encoding", b"gzip")]


def reader(headers: list[tuple[bytes, bytes]] | None = None, *, is_stream: bool = True, hides: bool = False) -> AnswerReader:
    return AnswerReader(headers or [], is_stream=is_stream, hides_usage=hides, on_progress=lambda tokens: None)


def pass_through(reader: AnswerReader, *pieces: bytes) -> bytes:
    """Return what the client receives of a body in these pieces."""
    shown = b"".join(reader.take(reader.decode(piece, more=True), more=True) for piece in pieces)
    return shown + reader.take(reader.decode(b"", more=False), more=False)


def events(*data: bytes, end: bytes = b"\n") -> bytes:
    return b"".join(b"data: " + each + end + end for each in data)


CONTENT = b'{"choices":[{"delta":{"content":"a"}}],"usage":null}'
LAST = b'{"choices":[],"usage":%b}' % USAGE


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}, Usage(5, 7)),
        ({"prompt_tokens": 5, "completion_tokens": 2}, Usage(5, 7)),
        ({"prompt_tokens": 5}, Usage(5, 5)),
        ({"total_tokens": 7}, Usage(0, 7)),
        ({"prompt_tokens": 500, "total_tokens": 50}, Usage(500, 50)),
        ({"prompt_tokens": 5, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(5, 7, 4)),
        ({"prompt_tokens": 5, "total_tokens": 7, "prompt_tokens_details": None}, Usage(5, 7)),
        ({"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 0}}, Usage(5, 7, 0)),
        (
            {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 3},
            Usage(38, 40, 30),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 4}, Usage(5, 7, 4)),
        ({"prompt_tokens": -5, "total_tokens": 7}, Usage(0, 7)),
        ({"prompt_tokens": 5, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": -1}}, Usage(5, 7)),
        ({"total_tokens": MAX_REPORTED_TOKENS}, Usage(0, MAX_REPORTED_TOKENS)),
        *(({"prompt_tokens": 5, "total_tokens": bad}, None) for bad in (-50, True, "12", 7.0, 10**18, [], {})),
        ({"prompt_tokens": True}, None),
        ({"completion_tokens": 2}, None),
        ({}, None),
    ],
)
def test_a_usage_in_the_words_of_each_api(fields: dict[str, Any], wanted: Usage | None) -> None:
    assert read_counts(fields).usage() == wanted


@pytest.mark.parametrize(
    "answer",
    [
        b'{"usage":%b,"choices":[{"message":{"content":"a"}}]}' % USAGE,
        b'{"choices":[],"usage":%b}' % USAGE,
        b'{"text":"a","meta_info":%b}' % USAGE,
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_usage_of_a_whole_answer(answer: bytes, size: int) -> None:
    read = reader(is_stream=False)
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]

    assert pass_through(read, *pieces) == answer
    assert read.usage == WANTED
    assert read.usage == WANTED


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[]",
        b"no JSON",
        b'{"usage":null}',
        b'{"usage":[1]}',
        b'{"usage":{"\xff":1}}',
        b'{"usage":{"total',
        b'{"\xff":1}',
    ],
)
def test_an_answer_without_a_usage(answer: bytes) -> None:
    read = reader(is_stream=False)
    assert pass_through(read, answer) == answer
    assert read.usage is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("hides", [False, True])
def test_the_usage_of_a_stream_however_its_lines_end_and_its_pieces_are_cut(end: bytes, hides: bool) -> None:
    shown = events(*[CONTENT] * 3, end=end)
    done = events(b"[DONE]", end=end)
    stream = shown + events(LAST, end=end) + done
    for size in (1, 2, 3, 50, 10_000):
        read = reader(hides=hides)
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]

        assert pass_through(read, *pieces) == (shown + done if hides else stream)
        assert read.usage == WANTED


def test_a_piece_passes_as_the_object_that_it_came_as() -> None:
    read = reader()
    for piece in (events(CONTENT), b"data: half of an", b" event\n\n", events(LAST)):
        assert read.take(piece, more=True) is piece


def test_only_the_event_with_the_usage_alone_is_hidden() -> None:
    stream = events(
        CONTENT,
        b'{"choices":[{}],"usage":%b}' % USAGE,
        b'{"choices":[ ],"usage":%b}' % USAGE,
        b'{"choices":[],"x":"\\"usage\\""}',
    )
    shown = pass_through(reader(hides=True), stream)

    assert shown == events(CONTENT, b'{"choices":[{}],"usage":%b}' % USAGE, b'{"choices":[],"x":"\\"usage\\""}')


def test_the_beginning_of_an_event_waits_for_its_end_only_while_something_may_be_hidden() -> None:
    hiding = reader(hides=True)
    assert hiding.take(b"data: {}\n\ndata: {", more=True) == b"data: {}\n\n"
    assert hiding.take(b"}\n", more=True) == b""
    assert hiding.take(b"\ndata", more=True) == b"data: {}\n\n"
    assert hiding.take(b": {}", more=False) == b"data: {}"


def test_an_event_at_the_end_without_a_blank_line_is_read() -> None:
    read = reader(hides=True)
    assert read.take(b"data: " + LAST, more=False) == b""
    assert read.usage == WANTED


def test_an_event_that_is_too_long_passes_unread() -> None:
    read = reader(hides=True)
    huge = b"data: " + b"x" * 2**20 + b"y"
    assert read.take(huge, more=True) == huge
    assert read.take(b"z\n\n" + events(LAST), more=True) == b"z\n\n"
    assert read.usage == WANTED


def test_the_last_usage_counts() -> None:
    read = reader()
    pass_through(read, events(*(b'{"usage":{"prompt_tokens":9,"total_tokens":%d}}' % total for total in (10, 11, 12))))
    assert read.usage == Usage(9, 12)


def test_the_events_of_anthropic_are_put_together() -> None:
    read = reader()
    start = b'{"type":"message_start","message":{"usage":{"input_tokens":20,"cache_read_input_tokens":30,"output_tokens":1}}}'
    delta = b'{"type":"message_delta","delta":{},"usage":{"output_tokens":15}}'
    stream = b"event: message_start\ndata: %b\n\nevent: message_delta\ndata: %b\n\n" % (start, delta)

    assert pass_through(read, stream) == stream
    assert read.usage == Usage(50, 65, 30)


def test_the_events_of_the_responses_api() -> None:
    read = reader()
    usage = b'{"input_tokens":5,"input_tokens_details":{"cached_tokens":4},"output_tokens":2,"total_tokens":7}'
    pass_through(read, b'event: response.completed\ndata: {"type":"x","response":{"id":"r","usage":%b}}\n\n' % usage)
    assert read.usage == Usage(5, 7, 4)


def test_progress_is_told_every_twenty_events() -> None:
    told: list[int] = []
    read = AnswerReader([], is_stream=True, hides_usage=False, on_progress=told.append)
    for _ in range(45):
        read.take(events(CONTENT) + b": comment\n\n", more=True)
    pass_through(read, events(b"[DONE]"))
    assert told == [20, 20]


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize("members", [1, 2])
def test_gzip_is_read_and_passed_on_decompressed(size: int, members: int) -> None:
    stream = events(CONTENT, LAST, b"[DONE]")
    half = len(stream) // 2
    packed = gzip.compress(stream) if members == 1 else gzip.compress(stream[:half]) + gzip.compress(stream[half:])
    read = reader(GZIP, hides=True)

    assert read.changes_body
    assert pass_through(read, *(packed[at : at + size] for at in range(0, len(packed), size))) == events(CONTENT, b"[DONE]")
    assert read.usage == WANTED


def test_what_is_no_gzip_is_a_failure_of_the_backend() -> None:
    with pytest.raises(ProtocolError, match="no gzip"):
        reader(GZIP).decode(b"plain", more=True)


def test_gzip_that_ends_in_the_middle_is_a_failure_of_the_backend() -> None:
    read = reader(GZIP)
    read.decode(gzip.compress(b"plain")[:-1], more=True)
    with pytest.raises(ProtocolError, match="ends in the middle"):
        read.decode(b"", more=False)
    assert pass_through(reader(GZIP)) == b""


@pytest.mark.parametrize("members", [1, 2])
def test_a_piece_of_gzip_becomes_only_so_large(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_usage, "_MAX_PIECE_BYTES", 2_000)
    packed = gzip.compress(bytes(2_000 // members)) * members
    assert reader(GZIP, is_stream=False).decode(packed, more=False) == bytes(2_000)
    with pytest.raises(ProtocolError, match="larger than 2000 bytes"):
        reader(GZIP, is_stream=False).decode(packed + gzip.compress(b"x"), more=False)


def test_a_bomb_is_not_unpacked() -> None:
    """100 kB become 100 MB; no more than the limit of it is ever in memory."""
    packed = gzip.compress(bytes(100_000_000), 9)
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="larger"):
        reader(GZIP, is_stream=False).decode(packed, more=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * answer_usage._MAX_PIECE_BYTES


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"deflate", b"gzip, br"])
def test_another_encoding_passes_unread(encoding: bytes) -> None:
    read = reader([(b"content-encoding", encoding)], hides=True)
    packed = zlib.compress(events(LAST)) + b"\n\n"
    assert not read.changes_body
    assert pass_through(read, packed[:9], packed[9:]) == packed
    assert read.usage is None


@given(st.binary(max_size=200), st.lists(st.integers(1, 20)), st.booleans())
def test_no_bytes_are_lost_or_changed(stream: bytes, sizes: list[int], hides: bool) -> None:
    """What holds no usage passes whole, in any pieces."""
    cuts = [0, *itertools.accumulate(sizes), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(sorted(min(cut, len(stream)) for cut in cuts))]
    assert pass_through(reader(hides=hides), *pieces) == stream


SOME_EVENTS = st.sampled_from(
    [CONTENT, LAST, b"[DONE]", b"", b" ", b'{"usage":{"total_tokens":5}}', b"{}\r", b'{"text":"[DONE]"}', b"data:"]
)
LINES = st.one_of(SOME_EVENTS.map(lambda data: b"data: " + data), st.sampled_from([b": comment", b"event: x", b"", b"data"]))


@given(st.lists(LINES, max_size=60), st.booleans())
def test_events_are_read_alike_however_they_come(lines: list[bytes], hides: bool) -> None:
    """In pieces of whole events, which is the fast way, and byte by byte."""

    def read(pieces: list[bytes]) -> tuple[bytes, Usage | None, list[int]]:
        told: list[int] = []
        reader = AnswerReader([], is_stream=True, hides_usage=hides, on_progress=told.append)
        return pass_through(reader, *pieces), reader.usage, told

    events = [line + b"\n\n" for line in lines]
    stream = b"".join(events)
    pairs = [b"".join(events[at : at + 2]) for at in range(0, len(events), 2)]
    assert read(events) == read(pairs) == read([stream[at : at + 1] for at in range(len(stream))]) == read([stream])


def stream_of(*pieces: bytes) -> Any:
    async def respond(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + b"".join(map(chunk, pieces)) + chunk(b""))

    return respond


ASKED = {"model": "m", "program_id": "p", "stream": True}


@pytest.mark.parametrize(("options", "shown"), [({}, False), ({"stream_options": {"include_usage": True}}, True)])
def test_a_client_sees_the_usage_of_a_stream_only_if_it_has_asked(options: dict[str, Any], shown: bool) -> None:
    async def scenario() -> None:
        backend = Backend(stream_of(*[events(CONTENT)] * 5, events(LAST), events(b"[DONE]")))
        async with world(backend, programs={}) as w:
            status, _, answer = await w.request(body={**ASKED, **options})

            assert (status, answer) == (200, events(*[CONTENT] * 5, *([LAST] if shown else []), b"[DONE]"))
            assert msgspec.json.decode(backend.received[0].body)["stream_options"] == {"include_usage": True}
            assert (program(w, "p").tokens, program(w, "p").phase) == (260, ProgramPhase.ACTING)

    run(scenario())


def test_a_program_grows_while_its_answer_streams() -> None:
    async def scenario() -> None:
        async def respond(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD + b"".join(chunk(events(CONTENT)) for _ in range(45)))
            await received.wait_until_disconnected()

        async with world(Backend(respond), programs={}) as w:
            client = await w.start_request(ASKED)
            estimate = len(msgspec.json.encode(ASKED)) // 5
            await w.wait_until(lambda: driver(w).leases and program(w, "p").tokens == estimate + 40)
            client.disconnect()
            await w.wait_until(lambda: program(w, "p").phase is ProgramPhase.ACTING)
            assert program(w, "p").tokens == estimate + 40

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_backend_that_answers_in_gzip_all_the_same(stream: bool) -> None:
    plain = events(CONTENT, LAST) if stream else b'{"usage":%b}' % USAGE
    packed = gzip.compress(plain)

    async def respond(received: BackendRequest) -> None:
        if stream:
            await received.send(
                STREAM_HEAD[:-2] + b"content-encoding: gzip\r\n\r\n" + chunk(packed[:30]) + chunk(packed[30:]) + chunk(b"")
            )
        else:
            await received.send(whole(packed, headers=b"content-encoding: gzip\r\n"))

    async def scenario() -> None:
        async with world(Backend(respond), programs={}) as w:
            status, headers, answer = await w.request(body={**ASKED, "stream": stream})

            assert (status, answer) == (200, events(CONTENT) if stream else plain)
            assert "content-encoding" not in headers
            assert program(w, "p").tokens == 260

    run(scenario())


PACKED = gzip.compress(b"plain")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (whole(b"plain", headers=b"content-encoding: gzip\r\n"), "the backend sent what is no gzip: "),
        (whole(PACKED[:-3], headers=b"content-encoding: gzip\r\n"), "the backend sent gzip that ends in the middle"),
        (CHUNKED_GZIP + chunk(PACKED[:10]) + chunk(b"\xff" * 9), "the backend sent what is no gzip: "),
        (STREAM_HEAD[:-2] + b"content-encoding: gzip\r\n\r\n" + chunk(b"plain"), "the backend sent what is no gzip: "),
    ],
    ids=["no gzip", "cut off", "broken behind its head", "a stream"],
)
def test_gzip_that_is_broken_before_anything_was_sent_is_a_502(answer: bytes, problem: str) -> None:
    async def scenario() -> None:
        async with world(Backend(lambda r: r.send(answer)), programs={}) as w:
            status, _, body = await w.request(body={**ASKED, "stream": answer.startswith(STREAM_HEAD[:-2])})
            error = msgspec.json.decode(body)["error"]
            assert (status, error["code"]) == (502, "upstream_protocol_error")
            assert error["message"].startswith(problem)
            assert "\n" not in error["message"]
            assert (w.gateway.counters.upstream_failures["protocol_error"], len(driver(w).leases)) == (1, 0)

    run(scenario())


def test_gzip_that_breaks_later_cuts_the_connection() -> None:
    may_break = asyncio.Event()

    async def respond(received: BackendRequest) -> None:
        await received.send(CHUNKED_GZIP + chunk(PACKED))
        await may_break.wait()
        await received.send(chunk(b"\xff" * 9) + chunk(b""))

    async def scenario() -> None:
        async with world(Backend(respond), programs={}) as w:
            client = await w.start_request(ASKED)
            begin = await client.reader.readuntil(b"plain")
            assert begin.startswith(b"HTTP/1.1 200")
            may_break.set()
            assert not (await client.reader.read()).endswith(b"0\r\n\r\n")
            await w.wait_until(lambda: not driver(w).leases)

    run(scenario())


@pytest.mark.parametrize(
    "usage", [b'{"total_tokens":-50}', b'{"total_tokens":true}', b'{"total_tokens":"12"}', b'{"total_tokens":1e18}', b"null"]
)
def test_a_usage_that_cannot_be_true_leaves_the_estimate(usage: bytes) -> None:
    async def scenario() -> None:
        async with world(Backend(lambda r: r.send(whole(b'{"usage":%b}' % usage))), programs={}) as w:
            body = {"model": "m", "program_id": "p"}
            assert (await w.request(body=body))[0] == 200
            assert (program(w, "p").tokens, program(w, "p").phase) == (
                len(msgspec.json.encode(body)) // 5,
                ProgramPhase.ACTING,
            )

    run(scenario())


def test_an_answer_without_programs_is_not_read() -> None:
    async def scenario() -> None:
        packed = gzip.compress(events(LAST))
        async with world(Backend(lambda r: r.send(whole(packed, headers=b"content-encoding: gzip\r\n")))) as w:
            _, headers, answer = await w.request(body={"model": "m", "stream": True})
            assert (headers["content-encoding"], answer) == ("gzip", packed)

    run(scenario())
