"""The tokens of `/v1/messages`: the same whether the answer is read whole, or at its beginning and its end only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from maitred.core.request import Request
from maitred.gateway.bodies.answer_usage import AnswerReader
from maitred.gateway.observe.request_metrics import RequestSeries
from maitred.gateway.observe.request_record import RequestRecord

CACHED = {"input_tokens": 1234, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 100, "output_tokens": 1}
CREATION = {"cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}}
NOTHING = {"input_tokens": 0, "output_tokens": 0}
UNCACHED = {"input_tokens": 1234, "output_tokens": 0}
LAST = {"output_tokens": 4}
SHAPES = [
    (CACHED, LAST, 2334),
    (CREATION | CACHED, {**LAST, "server_tool_use": {"web_search_requests": 0}}, 2334),
    (NOTHING, {**UNCACHED, **LAST}, 1234),
    (UNCACHED, LAST, 1234),
    (UNCACHED, {**UNCACHED, **LAST, "cache_read_input_tokens": 1000}, 2234),
    (UNCACHED, {**LAST, "cache_read_input_tokens": 1000}, 2234),
    ({**UNCACHED, "cache_read_input_tokens": None}, {**UNCACHED, **LAST, "iterations": [UNCACHED, CACHED]}, 1234),
]


def event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def stream_of(first: object, last: object) -> list[bytes]:
    """Return a stream with text of more than the two pieces that are kept at its end."""
    start = event("message_start", message={"id": "msg", "content": [], "usage": first})
    text = event("content_block_delta", index=0, delta={"type": "text_delta", "text": 'a "usage":{"input_tokens":9}'})
    return [start, *[text] * 4, event("message_delta", delta={"stop_reason": "end_turn"}, usage=last), event("message_stop")]


def record_of(pieces: Sequence[bytes], *, is_stream: bool, reads: bool, is_whole: bool = True) -> RequestRecord:
    """Return the record of an answer in these pieces. `reads`: all of it is read, as for a recording."""
    record = RequestRecord(Request(id=1, arrival=0, prompt_tokens=5), RequestSeries(), generates=True)
    record.is_stream, record.status = is_stream, 200
    record.on_first_data(pieces[0])
    for piece in pieces[1:]:
        (record.on_stream_piece if is_stream else record.on_body_piece)(piece)
    if is_whole:
        record.on_complete()
    if reads:
        reader = AnswerReader([], is_stream=is_stream, hides_usage=False, on_progress=None)
        for piece in pieces:
            reader.take(piece, more=True)
        record.reported = reader.usage
    record.end()
    return record


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize(("first", "last", "prompt"), SHAPES)
def test_a_stream_counts_the_prompt_of_its_first_event(first: object, last: object, prompt: int, reads: bool) -> None:
    pieces = stream_of(first, last)
    for cut in (0, 6, 22, 40, 120, len(pieces[0]) - 1):
        cut_pieces = pieces if cut == 0 else [pieces[0][:cut], pieces[0][cut:], *pieces[1:]]
        record = record_of(cut_pieces, is_stream=True, reads=reads)
        assert (record.prompt_tokens, record.output_tokens) == (prompt, 4), cut


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize(("first", "last", "prompt"), SHAPES)
def test_a_stream_in_one_piece(first: object, last: object, prompt: int, reads: bool) -> None:
    record = record_of([b"".join(stream_of(first, last))], is_stream=True, reads=reads)
    assert (record.prompt_tokens, record.output_tokens) == (prompt, 4)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("num_pieces", [1, 5])
def test_a_whole_answer_counts_what_was_cached(num_pieces: int, reads: bool) -> None:
    answer = {"id": "msg", "content": [{"type": "text", "text": "a" * 500}], "usage": CREATION | CACHED | LAST}
    body = msgspec.json.encode(answer)
    size = len(body) // num_pieces
    pieces = [body[:size], *(body[at : at + 300] for at in range(size, len(body), 300))]
    record = record_of(pieces, is_stream=False, reads=reads)
    assert (record.prompt_tokens, record.output_tokens) == (2334, 4)


@pytest.mark.parametrize("reads", [True, False])
def test_a_stream_that_breaks_off_has_told_its_prompt_and_its_output_is_estimated(reads: bool) -> None:
    record = record_of(stream_of(CACHED, LAST)[:4], is_stream=True, reads=reads, is_whole=False)
    assert (record.prompt_tokens, record.output_tokens, record.estimated_output()) == (2334, None, 3)


@pytest.mark.parametrize("reads", [True, False])
def test_the_cached_part_of_a_response_is_counted_once(reads: bool) -> None:
    usage = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 3, "total_tokens": 23}
    created = event("response.created", response={"id": "r", "usage": None})
    pieces = [created, event("response.output_text.delta", delta="a"), event("response.completed", response={"usage": usage})]
    record = record_of(pieces, is_stream=True, reads=reads)
    assert (record.prompt_tokens, record.output_tokens) == (20, 3)
