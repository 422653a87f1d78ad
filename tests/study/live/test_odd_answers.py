"""Runs against endpoints whose answers are not what was asked for: what is counted, and what is said."""

import asyncio
import json

import pytest
from test_benchmark import EVENT_STREAM, Scripted, bench, job

from maitred.report import Slo, summarise
from maitred.sim import Outcome
from maitred.study.live.observed import spread_tokens
from maitred.study.live.vllm_result import vllm_result

CHUNK = b'data: {"choices":[{"index":0,"text":"%b","finish_reason":%b}]}\n\n'
TOKEN, LAST = CHUNK % (b" a", b"null"), CHUNK % (b"", b'"length"')
TOOL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}}]}\n\n'
ERROR = b'data: {"error":{"message":"EngineCore died","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"
JSON = [(b"content-type", b"application/json")]


def usage(tokens):
    return b'data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":%d}}\n\n' % tokens


def said(live):
    """The warnings about answers: how late a busy machine sends is not of interest."""
    return [warning for warning in live.warnings if not warning.startswith("the sender fell behind")]


def streaming(*pieces, gap=0.002):
    async def answer(exchange, _number):
        exchange.start_response(200, EVENT_STREAM, b"", True)
        for piece in pieces:
            await asyncio.sleep(gap)
            exchange.send_piece(piece, True)
        exchange.send_piece(b"", False)

    return lambda: Scripted(answer)


@pytest.mark.parametrize(
    ("pieces", "problem", "tokens"),
    [
        ([ERROR, DONE], "error in the answer: EngineCore died", 0),
        ([TOKEN, TOKEN, ERROR, DONE], "error in the answer: EngineCore died", 2),
        ([TOKEN, TOKEN + ERROR, usage(2), DONE], "error in the answer: EngineCore died", 2),
        ([TOKEN, b"event: error\ndata: overloaded\n\n"], "error in the answer: overloaded", 1),
        ([TOKEN, TOKEN.replace(b"]}", b'],"usage":{"prompt_tokens":40,"completion_tokens":2}}')], "the stream broke off", 2),
        ([usage(3)], "the stream broke off", 0),
    ],
)
def test_a_stream_that_fails_or_breaks_off_has_not_completed(pieces, problem, tokens):
    live = bench(streaming(*pieces), [job(0)])
    assert live.results.outcome.tolist() == [Outcome.ABORTED]
    assert live.problems == {problem: 1}
    assert live.results.output_tokens.tolist() == [tokens]
    assert summarise(live.results, Slo(ttft_ms=10**6)).total.within_slo == 0


def answering_json(body):
    async def answer(exchange, _number):
        exchange.start_response(200, JSON, body, False)

    return lambda: Scripted(answer)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"error":{"message":"out of memory"}}', "error in the answer: out of memory"),
        (b'{"object":"error","message":"no"}', "error in the answer: no"),
        (b'{"status":"ok"}', "the answer is no JSON object with choices"),
    ],
)
def test_a_json_answer_that_is_none_has_not_completed(stream, body, problem):
    live = bench(answering_json(body), [job(0)], stream=stream)
    assert live.problems == {problem: 1}
    assert live.results.first_token.tolist() == [-1]


def test_a_json_answer_to_a_stream_is_said():
    live = bench(
        answering_json(b'{"choices":[{"text":" a a a"}],"usage":{"prompt_tokens":40,"completion_tokens":3}}'), [job(0)]
    )
    assert live.results.outcome.tolist() == [Outcome.COMPLETED]
    assert live.results.first_token.tolist() == live.results.finished.tolist()
    assert summarise(live.results).total.tpot is None
    (warning,) = said(live)
    assert warning.startswith("1 answers came whole where a stream was asked for")


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_answers_shorter_than_asked_are_said_with_their_counts(ignore_eos):
    ends = CHUNK % (b"", b'"abort"')
    live = bench(streaming(TOKEN, ends, usage(1), DONE), [job(0), job(1, tokens=5)], ignore_eos=ignore_eos)
    assert live.results.outcome.tolist() == [Outcome.COMPLETED] * 2
    assert [warning.partition(";")[0] for warning in said(live)] == (
        ["2 answers were shorter than asked for: 1.0 tokens on average, and not 4.0 (finish_reason: abort 2)"]
        if ignore_eos
        else []
    )


def test_answers_longer_than_asked_are_said():
    live = bench(streaming(TOKEN, LAST, usage(9), DONE), [job(0)])
    assert said(live) == ["1 answers were longer than asked for: the endpoint does not keep to max_tokens"]


def test_answers_as_long_as_asked_need_no_word():
    assert said(bench(streaming(TOKEN, TOKEN, TOKEN, LAST, usage(3), DONE), [job(0)])) == []


def test_tokens_that_are_no_text_have_their_instants():
    live = bench(streaming(TOOL, TOOL, TOOL, LAST, usage(3), DONE, gap=0.01), [job(0, 300)])
    rows = live.results
    assert rows.arrival[0] < rows.first_token[0] < rows.last_token[0] <= rows.finished[0]
    assert summarise(rows).total.tpot.mean == pytest.approx((rows.last_token[0] - rows.first_token[0]) / 2)


def test_tokens_that_no_event_had_are_said_and_meet_no_target():
    live = bench(streaming(LAST, usage(3), DONE), [job(0)])
    total = summarise(live.results, Slo(ttft_ms=10**6)).total
    assert (total.completed, total.ttft, total.tpot, total.within_slo) == (1, None, None, 0)
    assert said(live)[0].startswith("1 answers had tokens by their usage, and no event with any")
    written = vllm_result(live, summarise(live.results))
    assert (written["completed"], written["failed"], written["errors"]) == (0, 1, ["no token was seen"])


@pytest.mark.parametrize("per_event", [1, 4])
def test_the_gaps_between_tokens_agree_with_the_time_per_token(per_event):
    """The end of the response comes long after the last token, and is no part of either."""
    events = [TOKEN] * (12 // per_event)
    live = bench(streaming(*events, LAST, usage(12), b": quiet\n\n", DONE, gap=0.01), [job(0, tokens=12), job(1, tokens=12)])
    total = summarise(live.results).total
    assert total.itl.mean == pytest.approx(total.tpot.mean)
    assert total.itl_mean == pytest.approx(total.tpot.mean)
    gaps = live.results.itl_gaps
    assert len(gaps.single_gaps) == 2 * 11
    written = vllm_result(live, summarise(live.results))
    assert written["mean_itl_ms"] == pytest.approx(written["mean_tpot_ms"])
    assert [len(each) for each in written["itls"]] == [11, 11]


@pytest.mark.parametrize(
    ("instants", "tokens", "spread"),
    [
        ([10, 20, 30], 3, [10, 20, 30]),
        ([10, 20, 30], 8, [10, 10, 10, 10, 20, 20, 20, 30]),
        ([10, 20, 30, 40, 50], 3, [10, 30, 50]),
        ([10, 20], 1, [10]),
        ([10], 5, [10]),
        ([], 5, []),
        ([10, 20], 0, [10, 20]),
    ],
)
def test_tokens_are_spread_over_events(instants, tokens, spread):
    assert list(spread_tokens(instants, tokens)) == spread


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_a_stream_in_other_pieces_has_the_same_tokens(size):
    stream = TOKEN * 3 + LAST + usage(3) + DONE
    live = bench(streaming(*(stream[at : at + size] for at in range(0, len(stream), size)), gap=0), [job(0)])
    rows = live.results
    assert (rows.output_tokens.tolist(), rows.prompt_tokens.tolist()) == ([3], [40])
    assert rows.first_token[0] > rows.admitted[0]
    assert (live.problems, said(live)) == ({}, [])


def test_latencies_of_a_closed_loop_count_from_sending():
    jobs = [job(number, tokens=1) for number in range(6)]
    live = bench(streaming(TOKEN, LAST, usage(1), DONE, gap=0.01), jobs, max_concurrency=2, is_closed=True, num_warmups=2)
    rows = live.results
    assert (rows.arrival[2:] >= rows.finished.min()).all()
    assert (rows.arrival <= rows.admitted).all()
    assert live.lateness.worst < rows.arrival.max()  # Their wait for a place is no lateness.
    written = json.loads(json.dumps(vllm_result(live, summarise(rows))))
    assert written["start_times"] == (rows.arrival / 1e6).tolist()
    assert written["mean_ttft_ms"] == pytest.approx(float((rows.first_token - rows.arrival).mean()) / 1000)
