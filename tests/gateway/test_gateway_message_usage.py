"""The tokens of `/v1/messages`: the same whether the answer is read whole, or at its beginning and its end only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from maitred.core.request import Request
from maitred.gateway.bodies.answer_usage import AnswerReader
from maitred.gateway.bodies.usage_counts import read_counts
from maitred.gateway.observe.request_metrics import RequestSeries
from maitred.gateway.observe.request_record import RequestRecord
from maitred.gateway.routes import ROUTES
from maitred.programs import Usage
from maitred.wire.clock import Clock

CACHED = {"input_tokens": 1234, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 100, "output_tokens": 1}
CREATION = {"cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}}
NOTHING = {"input_tokens": 0, "output_tokens": 0}
UNCACHED = {"input_tokens": 1234, "output_tokens": 0}
LAST = {"output_tokens": 4}


def openai(prompt: int, output: int) -> object:
    counted = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return {"choices": [], "usage": counted}


def response(prompt: int, output: int) -> object:
    counted = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": output}
    return {"response": {"id": "r", "usage": {**counted, "total_tokens": prompt + output}}}


SHAPES = [
    (CACHED, LAST, 2334),
    (CREATION | CACHED, {**LAST, "server_tool_use": {"web_search_requests": 0}}, 2334),
    (NOTHING, {**UNCACHED, **LAST}, 1234),
    (UNCACHED, LAST, 1234),
    (UNCACHED, {**UNCACHED, **LAST, "cache_read_input_tokens": 1000}, 2234),
    (UNCACHED, {**LAST, "cache_read_input_tokens": 1000}, 2234),
    ({**UNCACHED, "cache_read_input_tokens": None}, {**UNCACHED, **LAST, "iterations": [UNCACHED, CACHED]}, 1234),
    (UNCACHED, NOTHING | LAST, 1234),
    (CACHED, NOTHING | {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0} | LAST, 2334),
    (CACHED, {"input_tokens": None, "cache_read_input_tokens": None, **LAST}, 2334),
    (UNCACHED, NOTHING | LAST | {"total_tokens": 4}, 1234),
    ({"input_tokens": 0, "cache_read_input_tokens": 1234, "output_tokens": 1}, LAST, 1234),
]
STREAMS: dict[str, tuple[list[object], int | None, int | None]] = {
    "vLLM counts on with each event": ([openai(9, 1), openai(9, 2), openai(9, 3)], 9, 3),
    "SGLang counts on with each event": ([{"meta_info": {"prompt_tokens": 9, "completion_tokens": n}} for n in (1, 3)], 9, 3),
    "zeros behind the numbers": ([openai(9, 3), openai(0, 0)], 9, 3),
    "null behind the numbers": ([openai(9, 3), {"choices": [], "usage": None}], 9, 3),
    "a prompt of 0 behind one": ([openai(9, 1), openai(0, 3)], 9, 3),
    "the answer alone behind both": ([openai(9, 1), {"usage": {"completion_tokens": 3}}], 9, 3),
    "null members": ([{"usage": {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": None}}], 9, 3),
    "null behind numbers": ([openai(9, 3), {"usage": {"prompt_tokens": None, "completion_tokens": None}}], 9, 3),
    "nothing but zeros": ([openai(0, 0)], None, None),
    "no prompt": ([openai(0, 3)], None, 3),
    "a response that begins with zeros": ([response(0, 0), response(20, 3)], 20, 3),
    "a response that ends with zeros": ([response(20, 3), response(0, 0)], 20, 3),
    "a response that begins with null": ([{"response": {"usage": None}}, response(20, 3)], 20, 3),
}


def event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def stream_of(first: object, last: object) -> list[bytes]:
    """Return a stream with text of more than the two pieces that are kept at its end."""
    start = event("message_start", message={"id": "msg", "content": [], "usage": first})
    text = event("content_block_delta", index=0, delta={"type": "text_delta", "text": 'a "usage":{"input_tokens":9}'})
    return [start, *[text] * 4, event("message_delta", delta={"stop_reason": "end_turn"}, usage=last), event("message_stop")]


def record_of(pieces: Sequence[bytes], *, is_stream: bool, reads: bool, is_whole: bool = True) -> RequestRecord:
    """Return the record of an answer in these pieces. `reads`: all of it is read, as for a recording."""
    record = RequestRecord(Request(id=1, arrival=0, prompt_tokens=5), ROUTES["/v1/chat/completions"], RequestSeries(), Clock())
    record.is_stream, record.status = is_stream, 200
    record.on_first_data(pieces[0])
    for piece in pieces[1:]:
        (record.on_stream_piece if is_stream else record.on_body_piece)(piece)
    if is_whole:
        record.on_complete(0)
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


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("name", STREAMS)
def test_the_usages_of_a_stream_are_put_together(name: str, reads: bool) -> None:
    """All events in one piece, and each in its own. Unless all is read, the last two pieces are looked into, and what stood
    before them is not known: then it is estimated."""
    events, prompt, output = STREAMS[name]
    pieces = [b"data: %b\n\n" % msgspec.json.encode(each) for each in ({"choices": [{"delta": {}}]}, *events)]
    done = b"data: [DONE]\n\n"
    for cut in ([b"".join([*pieces, done])], [*pieces[:-1], pieces[-1] + done]):
        record = record_of(cut, is_stream=True, reads=reads)
        assert (record.prompt_tokens, record.output_tokens) == (prompt, output)
    record = record_of([*pieces, done], is_stream=True, reads=reads)
    assert record.prompt_tokens in ((prompt,) if reads else (prompt, None))
    assert record.output_tokens in ((output,) if reads else (output, None))


@pytest.mark.parametrize("reads", [True, False])
def test_a_whole_answer_that_knows_no_numbers_tells_none(reads: bool) -> None:
    record = record_of([msgspec.json.encode({"text": "a", "usage": NOTHING})], is_stream=False, reads=reads)
    assert (record.prompt_tokens, record.output_tokens) == (None, 0)


@pytest.mark.parametrize("reads", [True, False])
def test_a_message_that_breaks_off_at_once_has_told_its_prompt_only(reads: bool) -> None:
    record = record_of(stream_of(CACHED, LAST)[:2], is_stream=True, reads=reads, is_whole=False)
    assert (record.prompt_tokens, record.output_tokens) == (2334, None)


def test_what_a_proxy_tells_in_both_words_is_counted_once() -> None:
    """In OpenAI's words the prompt has what was cached in it; Anthropic's members stand beside them (litellm)."""
    told = {"prompt_tokens": 1234, "completion_tokens": 4, "total_tokens": 1238, "cache_read_input_tokens": 1000}
    assert read_counts(told).usage() == Usage(1234, 1238, 1000)
