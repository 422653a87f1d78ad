"""One connection of a load, with reads in place of a socket: what a response says must not depend on where its reads end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.emulator.clients.answers import Answer
from maitred.emulator.clients.connection import LoadConnection

TEXT = b'data: {"choices":[{"index":0,"text":" the","finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"
EVENTS = [TEXT, TEXT, TEXT + TEXT, USAGE, DONE]
PAGE = b"<html>bad gateway</html>"
ERROR = b'{"error":{"message":"no room","code":429}}'


def chunked(status, content_type, pieces):
    head = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % (status, content_type)
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def of_length(status, content_type, body):
    return b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, content_type, len(body), body)


STREAM = chunked(200, b"text/event-stream", EVENTS)
JOINED = b"".join(EVENTS)
RESPONSES = {
    "stream": STREAM,
    "stream in chunks of seven bytes": chunked(
        200, b"text/event-stream", [JOINED[at : at + 7] for at in range(0, len(JOINED), 7)]
    ),
    "stream in one chunk": chunked(200, b"text/event-stream", [JOINED]),
    "stream with other line ends": chunked(200, b"text/event-stream", [each.replace(b"\n", b"\r\n") for each in EVENTS]),
    "stream until the end of the connection": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + JOINED,
    "stream after early hints": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + STREAM,
    "stream of a known length": of_length(200, b"text/event-stream", b"".join(EVENTS)),
    "page in chunks": chunked(502, b"text/html", [PAGE[:6], PAGE[6:]]),
    "error": of_length(429, b"application/json", ERROR),
    "error in chunks": chunked(429, b"application/json", [ERROR[:20], ERROR[20:]]),
}


class Transport:
    """It takes all that is written, and is closed by an abort."""

    def __init__(self):
        self.is_aborted = False

    def is_closing(self):
        return self.is_aborted

    def abort(self):
        self.is_aborted = True

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        pass

    def writelines(self, pieces):
        pass


def connection():
    made = LoadConnection(lambda nanoseconds: [at // 1000 for at in nanoseconds], lambda closed: None)
    made.connection_made(Transport())
    return made


def exchange(over, reads, *, keeps_text=False):
    """Send a request, and feed the reads of its response. Return the answer, and the ends that were told."""
    answer, ends = Answer(is_stream=True, keeps_text=keeps_text), []
    over.send("/v1/completions", "a", (), b"{}", answer, ends.append)
    for read in reads:
        over.data_received(read)
    if not ends and b"\r\n\r\n" + JOINED in b"".join(reads):
        over.eof_received()
    return answer, ends


def cut(response, cuts):
    edges = [0, *sorted({where % len(response) for where in cuts} - {0}), len(response)]
    return [response[start:end] for start, end in pairwise(edges)]


@given(st.sampled_from(sorted(RESPONSES)), st.lists(st.integers(0, 2_000), max_size=12))
def test_a_response_is_the_same_wherever_its_reads_end(name, cuts):
    over = connection()
    reads = cut(RESPONSES[name], cuts)
    answer, ends = exchange(over, reads)
    if "stream" in name:
        assert (ends, over.status, answer.usage, answer.problem) == ([""], 200, (7, 4, None), "")
        assert answer.num_events == 4
    else:
        status = 502 if "page" in name else 429
        assert (ends, over.status, answer.num_events) == ([""], status, 0)
        assert answer.error_message == ("no room" if status == 429 else PAGE.decode())
        assert over.is_usable


@pytest.mark.parametrize("first", sorted(name for name in RESPONSES if "until" not in name))
@pytest.mark.parametrize("keeps_text", [True, False])
def test_a_connection_carries_responses_of_all_kinds_in_turn(first, keeps_text):
    over = connection()
    for name in (first, "stream", first, "error", first):
        answer, ends = exchange(over, [RESPONSES[name]], keeps_text=keeps_text)
        assert ends == [""], name
        assert answer.num_events == (4 if "stream" in name else 0), name
    assert over.num_responses == 5


def test_tokens_are_counted_when_they_came_and_not_when_they_were_parsed():
    over = connection()
    reads = [STREAM[: STREAM.index(TEXT) + len(TEXT) + 2], *(b"%x\r\n%b\r\n" % (len(TEXT), TEXT) for _ in range(9))]
    answer, ends = exchange(over, reads)
    assert (answer.num_events, ends) == (1, [])
    over.count_gathered()
    assert answer.num_events == 10
    assert list(answer.instants) == sorted(answer.instants)


def test_a_stream_that_breaks_the_rules_ends_with_what_was_wrong():
    over = connection()
    answer, ends = exchange(over, [STREAM[: STREAM.index(TEXT) + len(TEXT) + 2], b"no chunk at all\r\n\r\n"])
    assert len(ends) == 1
    assert "this is no HTTP/1.1" in ends[0]
    assert not over.is_usable
    assert answer.num_events == 1


def test_bytes_behind_a_stream_close_the_connection():
    over = connection()
    answer, ends = exchange(over, [STREAM + b"HTTP/1.1 200 OK\r\n\r\n"])
    assert (ends, answer.num_events, over.is_usable) == ([""], 4, False)
