"""What a response says of its tokens, piece by piece, with instants worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.emulator.clients.answers import Answer

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"the"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def fed(*pieces, **settings):
    answer = Answer(is_stream=True, **settings)
    for at, piece in pieces:
        answer.on_piece(piece, at)
    return answer


def test_tokens_are_the_events_with_text():
    answer = fed((5, ROLE), (20, TEXT), (31, TEXT + TEXT), (33, END), (34, USAGE), (34, DONE))
    assert (answer.first, answer.num_events, list(answer.instants)) == (20, 3, [20, 31, 31])
    assert answer.usage() == (12, 9, 8)
    assert answer.is_whole


def test_an_event_in_two_pieces_counts_once_and_when_it_is_there():
    whole = ROLE + TEXT
    for cut in range(1, len(whole)):
        answer = fed((1, whole[:cut]), (2, whole[cut:]), (3, TEXT))
        assert answer.num_events == 2, cut
    for cut in range(1, len(TEXT)):
        answer = fed((1, TEXT), (2, TEXT[:cut]), (3, TEXT[cut:]))
        assert answer.num_events == 2, cut


def test_completions_and_thoughts_count_too():
    completion = b'data: {"choices":[{"text":" cat"}]}\n\n'
    assert fed((1, completion), (2, completion), (3, completion.replace(b" cat", b""))).num_events == 2
    thought = TEXT.replace(b"content", b"reasoning_content")
    answer = fed((1, thought), (2, thought), (4, TEXT), (7, TEXT))
    assert (answer.num_events, list(answer.instants)) == (4, [1, 2, 4, 7])


THOUGHT = TEXT.replace(b"content", b"reasoning_content")
PIECES = st.lists(
    st.lists(st.sampled_from([TEXT, TEXT, TEXT, THOUGHT, ROLE, END, b": quiet\n\n"]), min_size=1, max_size=3), max_size=20
)


@given(PIECES, st.lists(st.integers(1, 60), max_size=3))
def test_pieces_at_once_are_counted_as_one_by_one(events, cuts):
    """Events that come together have one instant; the cuts break a piece in two, wherever."""
    pieces = [TEXT, *(b"".join(together) for together in events)]
    for cut in cuts:
        where = cut % len(pieces)
        pieces[where : where + 1] = filter(None, (pieces[where][:cut], pieces[where][cut:]))
    one_by_one = fed(*((at, piece) for at, piece in enumerate(pieces)))
    at_once = fed((0, pieces[0]))
    at_once.on_pieces(pieces[1:], range(1, len(pieces)))
    assert list(at_once.instants) == list(one_by_one.instants)


def test_a_stream_without_its_end_is_not_whole():
    assert not fed((1, TEXT), (2, TEXT)).is_whole
    assert fed((1, TEXT), (2, DONE)).is_whole
    assert fed((1, TEXT), (2, DONE)).usage() == (None, None, None)


@pytest.mark.parametrize("stream", [True, False])
def test_the_text_is_kept_as_it_was_escaped(stream):
    answer = Answer(is_stream=stream, keeps_text=True)
    pieces = (
        (rb'{"message":{"content":"a \"b\" c"}}',) if not stream else (ROLE, TEXT, rb'data: {"content":" \"b\""}' + b"\n\n")
    )
    for piece in pieces:
        answer.on_piece(piece, 3)
    answer.on_whole(9)
    assert answer.text == (rb"the \"b\"" if stream else rb"a \"b\" c")
    assert answer.first == (3 if stream else 9)


def test_an_error_is_told_in_one_line():
    assert fed((1, b'{"error":{"message":"no room","code":429}}')).error_message == "no room"
    assert fed((1, b"<html>bad gateway")).error_message == "<html>bad gateway"
