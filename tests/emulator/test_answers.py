"""What a response says of its tokens, piece by piece, with instants worked out by hand."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.emulator.clients.answers import NO_USAGE, Answer
from maitred.wire.client_framing import ClientFraming

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"the"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


STREAM_HEAD = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON_HEAD = [(b"content-type", b"application/json")]


def fed(*pieces, status=200, headers=STREAM_HEAD, stream=True, **settings):
    """The answer to a request for a stream, of which these pieces came, until its end."""
    answer = Answer(is_stream=stream, **settings)
    answer.begin(status, headers)
    for at, piece in pieces:
        answer.on_piece(piece, at)
    answer.on_end(pieces[-1][0] + 1)
    return answer


def delta(**fields):
    return b"data: " + msgspec.json.encode({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}) + b"\n\n"


def test_tokens_are_the_events_with_text():
    answer = fed((5, ROLE), (20, TEXT), (31, TEXT + TEXT), (33, END), (34, USAGE), (34, DONE))
    assert (answer.first, answer.num_events, list(answer.instants)) == (20, 3, [20, 31, 31])
    assert answer.usage == (12, 9, 8)
    assert (answer.problem, answer.finish_reason) == ("", "length")


@pytest.mark.parametrize("later", ["0", "null"])
def test_a_usage_that_knows_less_takes_nothing_back(later):
    told = '{"prompt_tokens":N,"completion_tokens":N,"prompt_tokens_details":{"cached_tokens":N}}'.replace("N", later)
    answer = fed((5, TEXT), (6, USAGE), (7, f'data: {{"choices":[],"usage":{told}}}\n\n'.encode()), (8, DONE))
    assert answer.usage == (12, 9, 8)


def test_an_event_in_pieces_counts_once_and_when_it_is_whole():
    whole = ROLE + TEXT
    for cut in range(1, len(whole)):
        answer = fed((1, whole[:cut]), (2, whole[cut:]), (3, TEXT))
        assert list(answer.instants) == [2, 3], cut
    answer = fed(*((at, whole[at : at + 1]) for at in range(len(whole))))
    assert list(answer.instants) == [len(whole) - 1]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_nothing_is_lost_wherever_pieces_and_lines_end(end, size):
    stream = (ROLE + TEXT + b": ping\n\n" + TEXT + END + USAGE + DONE).replace(b"\n", end)
    answer = fed(*((at, stream[at : at + size]) for at in range(0, len(stream), size)))
    assert (answer.num_events, answer.usage, answer.problem) == (2, (12, 9, 8), "")


@pytest.mark.parametrize(
    "written",
    [
        {"content": " "},
        {"reasoning": "so"},
        {"content": None, "reasoning_content": "so"},
        {"content": "", "reasoning_content": "so"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "find", "arguments": ""}}]},
        {"function_call": {"arguments": "x"}},
        {"audio": {"id": "a", "data": "UklGR"}},
        {"audio": {"transcript": "hm"}},
        {"reasoning_details": [{"type": "reasoning.text", "text": "so"}]},
    ],
)
def test_whatever_a_model_writes_is_a_token(written):
    answer = fed((1, ROLE), (2, delta(**written)), (4, delta(**written)), (5, END), (6, DONE))
    assert list(answer.instants) == [2, 4]


@pytest.mark.parametrize(
    "silent",
    [
        {},
        {"role": "assistant"},
        {"role": "assistant", "content": "", "refusal": None},
        {"content": ""},
        {"content": None, "reasoning_content": ""},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"arguments": ""}}]},
        {"audio": {"id": "a", "expires_at": 17}},
        {"tool_calls": []},
    ],
)
def test_what_no_model_writes_is_no_token(silent):
    answer = fed((1, delta(**silent)), (2, END), (3, DONE))
    assert (answer.first, answer.num_events) == (None, 0)


def test_completions_and_thoughts_count_too():
    completion = b'data: {"choices":[{"text":" cat"}]}\n\n'
    assert fed((1, completion), (2, completion), (3, completion.replace(b" cat", b""))).num_events == 2
    answer = fed((1, THOUGHT), (2, THOUGHT), (4, TEXT), (7, TEXT))
    assert list(answer.instants) == [1, 2, 4, 7]


THOUGHT = TEXT.replace(b"content", b"reasoning_content")
TOOL = b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}}]}\n\n'
FAILURE = b'data: {"error":{"message":"died","code":500}}\n\n'
KINDS = [*4 * [TEXT], THOUGHT, TOOL, ROLE, END, USAGE, FAILURE, DONE, b": quiet\n\n", TEXT.replace(b"\n", b"\r\n")]
PIECES = st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3), max_size=20)


def in_chunks(stream, edges):
    """Return a stream in chunks that end at `edges`."""
    edges = sorted({0, len(stream), *(edge % len(stream) for edge in edges)})
    return b"".join(b"%x\r\n%b\r\n" % (end - begin, stream[begin:end]) for begin, end in pairwise(edges))


@given(PIECES, st.lists(st.integers(1, 2_000), max_size=3), st.lists(st.integers(1, 4_000), max_size=3))
def test_reads_at_once_are_counted_as_events_one_by_one(events, chunk_cuts, read_cuts):
    """What `count_plain` takes, it counts as the events in it count, wherever chunks and reads end."""
    pieces = [b"".join(together) for together in events] or [TEXT]
    reads = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    if chunk_cuts:
        reads = [in_chunks(b"".join(pieces), chunk_cuts)]
    for cut in read_cuts:
        where = cut % len(reads)
        place = cut % len(reads[where])
        reads[where : where + 1] = filter(None, (reads[where][:place], reads[where][place:]))
    answer = fed_first()
    counted = answer.count_plain(reads, range(1, len(reads) + 1))
    framing = ClientFraming(65_536)
    framing.send_request("POST", "/", "a", [], 0)
    framing.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    one_by_one = fed_first()
    for at, read in enumerate(reads[:counted], 1):
        for piece in framing.receive_data(read):
            one_by_one.on_piece(piece, at)
    assert list(answer.instants) == list(one_by_one.instants)
    assert (one_by_one.error, one_by_one.finish_reason, one_by_one.usage) == (None, "", NO_USAGE)


def fed_first():
    answer = Answer(is_stream=True)
    answer.begin(200, STREAM_HEAD)
    answer.on_piece(TEXT, 0)
    return answer


def test_plain_reads_are_counted_at_once():
    reads = [b"%x\r\n%b\r\n" % (len(TEXT), TEXT)] * 10
    answer = fed_first()
    assert answer.count_plain(reads, range(1, 11)) == 6
    assert list(answer.instants) == list(range(7))


def test_a_stream_without_its_end_is_not_whole():
    told = TEXT.replace(b"]}", b'],"usage":{"prompt_tokens":12,"completion_tokens":1}}')
    assert fed((1, TEXT), (2, TEXT)).problem == "the stream broke off"
    assert fed((1, told), (2, told)).problem == "the stream broke off"
    assert fed((1, TEXT), (2, TEXT.replace(b"}]}", b'},"finish_reason":""}]}'))).problem == "the stream broke off"
    assert fed((1, TEXT), (2, DONE)).problem == ""
    assert fed((1, TEXT), (2, DONE[:-2])).problem == ""
    assert fed((1, TEXT), (2, END)).problem == ""
    assert fed((1, TEXT), (2, DONE)).usage == NO_USAGE


@pytest.mark.parametrize(
    "failure",
    [
        FAILURE,
        b'event: error\ndata: {"type":"error","error":{"message":"died"}}\n\n',
        b'event: error\ndata: {"message":"died"}\n\n',
        b'data: {"object":"error","message":"died"}\n\n',
    ],
)
@pytest.mark.parametrize("behind", [b"", DONE, USAGE + DONE])
def test_a_stream_with_an_error_has_failed(failure, behind):
    answer = fed((1, ROLE), (2, TEXT), (3, failure + behind))
    assert (answer.problem, answer.num_events) == ("error in the answer: died", 1)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}', ""),
        (b'{"choices":[{"text":"a"}],"error":null}', ""),
        (b'{"error":{"message":"out of memory","code":500}}', "error in the answer: out of memory"),
        (b'{"object":"error","message":"no"}', "error in the answer: no"),
        (b'{"detail":"Not Found"}', "the answer is no JSON object with choices"),
        (b"<html>welcome</html>", "the answer is no JSON object with choices"),
        (b"", "the answer is no JSON object with choices"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_whole_answer_is_one_with_choices(body, problem, stream):
    answer = fed((7, body), headers=JSON_HEAD, stream=stream)
    assert (answer.problem, answer.first, answer.is_stream) == (problem, None if problem else 8, False)


@pytest.mark.parametrize(
    ("body", "first"),
    [
        (b'{"choices":[]}', None),
        (b'{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}', None),
        (b'{"choices":[{"message":{"content":""}}],"usage":{"completion_tokens":0}}', None),
        (b'{"choices":[{"message":{"content":null}}],"usage":{"completion_tokens":4}}', 8),
        (b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f"}}]}}]}', 8),
    ],
)
def test_a_json_answer_without_a_token_has_no_first_one(body, first):
    answer = fed((7, body), headers=JSON_HEAD)
    assert (answer.problem, answer.first) == ("", first)


@pytest.mark.parametrize(
    "before", [b"", ROLE, b": ping\n\n", b'data: {"detail":"Internal Server Error"}\n\n', b'data: {"message":"Error"}\n\n']
)
def test_the_end_of_nothing_is_no_answer(before):
    assert fed((1, before), (2, DONE)).problem == "the stream has no answer"
    assert fed((1, before), (2, END)).problem == ""
    assert fed((1, before), (2, USAGE), (3, DONE)).problem == ""


def test_what_came_decides_and_not_what_was_asked_for():
    assert list(fed((3, TEXT), (5, DONE), stream=False).instants) == [3]
    assert fed((3, TEXT), (5, DONE), headers=[(b"content-type", b"text/plain")]).num_events == 1


def test_an_error_status_has_no_token():
    answer = fed((3, b'{"error":{"message":"full"}}'), status=429, headers=JSON_HEAD, stream=False)
    assert (answer.first, answer.error_message) == (None, "full")


@pytest.mark.parametrize("stream", [True, False])
def test_the_text_is_kept_as_it_was_escaped(stream):
    pieces = (
        (rb'{"choices":[{"message":{"content":"a \"b\" c"}}]}',)
        if not stream
        else (ROLE, TEXT, rb'data: {"content":" \"b\""}' + b"\n\n")
    )
    answer = fed(
        *((3, piece) for piece in pieces), headers=STREAM_HEAD if stream else JSON_HEAD, stream=stream, keeps_text=True
    )
    assert answer.text == (rb"the \"b\"" if stream else rb"a \"b\" c")


def test_an_error_is_told_in_one_line():
    assert fed((1, b'{"error":{"message":"no room","code":429}}'), status=429).error_message == "no room"
    assert fed((1, b"<html>bad gateway"), status=502).error_message == "<html>bad gateway"
