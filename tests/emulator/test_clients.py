"""Clients that replay a workload: what is sent when, one connection, servers that behave badly, and what the clients count."""

import asyncio
from itertools import pairwise

import msgspec
import pytest
from emulated import FROZEN, emulated, play
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.request import PriorityClass, Request
from maitred.emulator.clients import ClientOutcome, ClientStats, WorkloadClients, percentile_ms, repeat_jobs
from maitred.emulator.clients.answers import Answer
from maitred.emulator.clients.connection import LoadConnection
from maitred.emulator.clients.schedule import SendSchedule
from maitred.wire.origin import Origin
from maitred.wire.server import App, running_server
from maitred.workload import Job, closed_loop


def planned(number, at_ms):
    return Job(Request(id=number, arrival=at_ms * 1000, prompt_tokens=10), 3)


def ids(jobs):
    return [each.request.id for each in jobs]


def test_an_open_loop_waits_for_no_answer():
    schedule = SendSchedule([planned(0, 0), planned(1, 10), planned(2, 10), planned(3, 50)])
    assert schedule.next_due() == 0
    assert ids(schedule.take_due(0)) == [0]
    assert schedule.next_due() == 10_000
    assert ids(schedule.take_due(30_000)) == [1, 2]
    assert schedule.num_in_flight == 3
    assert ids(schedule.take_due(49_999)) == []
    assert ids(schedule.take_due(50_000)) == [3]
    assert schedule.next_due() is None
    assert not schedule.is_over


def test_a_limit_holds_requests_back_in_their_order():
    schedule = SendSchedule([planned(0, 0), planned(1, 10), planned(2, 20)], max_concurrency=1)
    first = schedule.take_due(0)
    assert ids(first) == [0]
    assert schedule.take_due(20_000) == []
    assert schedule.on_end(first[0].request, True, 3, 35_000)
    (second,) = schedule.take_due(35_000)
    assert (second.request.id, second.request.arrival) == (1, 10_000)  # its latency counts from the plan
    schedule.on_end(second.request, True, 3, 40_000)
    (third,) = schedule.take_due(40_000)
    assert schedule.on_end(third.request, True, 3, 41_000)  # the driver must look: all is over
    assert schedule.is_over


def test_what_follows_from_an_answer_is_planned_when_it_ends():
    schedule = SendSchedule(closed_loop(2, 3, think_time_ms=5.0, input_tokens=10, output_tokens=3))
    began = schedule.take_due(5_000)  # users begin within their think time
    assert len(began) == 2
    assert schedule.next_due() is None
    assert schedule.on_end(began[1].request, True, 3, 100_000)
    assert schedule.next_due() == 105_000
    (third,) = schedule.take_due(105_000)
    for each in (began[0], third):
        schedule.on_end(each.request, True, 3, 200_000)
    assert schedule.is_over


def test_after_a_stop_nothing_is_sent_and_what_is_open_still_ends():
    schedule = SendSchedule([planned(0, 0), planned(1, 10)], max_concurrency=1)
    (first,) = schedule.take_due(20_000)
    schedule.stop()
    assert not schedule.is_over
    schedule.on_end(first.request, False, 0, 30_000)
    assert schedule.is_over
    assert schedule.take_due(40_000) == []


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


CHAT, BULK = PriorityClass.INTERACTIVE, PriorityClass.BULK


def job(number, *, at_ms=0, prompt=20, tokens=3, priority_class=CHAT):
    request = Request(id=number, arrival=at_ms * 1000, prompt_tokens=prompt, priority_class=priority_class)
    return Job(request, tokens)


def test_a_workload_is_sent_with_its_classes_and_the_answers_have_its_lengths():
    jobs = [job(0), job(1, at_ms=5, prompt=100, tokens=7, priority_class=BULK), job(2, at_ms=9, prompt=1)]

    async def scenario():
        stats = ClientStats()
        async with emulated() as engine:
            clients = WorkloadClients(engine.origin, "emulated", stats)
            await clients.run(jobs)
            await clients.close()
            return stats, await engine.get("/metrics")

    stats, page = play(scenario())
    assert {c: of.num_ended[ClientOutcome.COMPLETED] for c, of in stats.classes.items()} == {CHAT: 2, BULK: 1}
    # 20 + 100, and the shortest chat there can be: one token, four for its message, three for the answer
    assert 'prompt_tokens_total{engine="0",model_name="emulated"} 128.0' in page
    assert 'generation_tokens_total{engine="0",model_name="emulated"} 13.0' in page


def test_arrivals_wait_for_no_answer_and_giving_up_frees_the_engine():
    async def scenario():
        stats = ClientStats()
        async with emulated(latency=FROZEN) as engine:
            clients = WorkloadClients(engine.origin, "emulated", stats)
            sending = asyncio.create_task(clients.run([job(n) for n in range(5)]))
            before = await engine.state_with(running=1, waiting=4)
            waiting = stats.classes[CHAT].num_waiting
            await clients.close()
            await sending
            return before["running"] + before["waiting"], waiting, await engine.state_with(running=0, waiting=0), stats

    reached, waiting, after, stats = play(scenario())
    assert (reached, waiting) == (5, 5)
    assert after["aborted"] == 5
    assert stats.classes[CHAT].num_ended[ClientOutcome.CANCELLED] == 5


@pytest.mark.parametrize(
    ("status", "headers", "body", "outcome"),
    [
        (429, [], b"{}", ClientOutcome.REJECTED),
        (503, [], b"{}", ClientOutcome.REJECTED),
        (503, [(b"x-smg-preempted", b"true")], b"{}", ClientOutcome.SLOT_PREEMPTED),
        (408, [], b"{}", ClientOutcome.REJECTED),
        (400, [], b"{}", ClientOutcome.FAILED),
        (200, [], b'data: {"text":"a"}\n\ndata: [DONE]\n\n', ClientOutcome.COMPLETED),
        (200, [], b"data: {}\n\n", ClientOutcome.FAILED),
        (None, [], b"", ClientOutcome.FAILED),
    ],
)
def test_an_answer_counts_as_what_it_is(status, headers, body, outcome):
    seen = []

    class Answering(App):
        async def __call__(self, exchange):
            seen.append((dict(exchange.headers)[b"x-smg-priority"], msgspec.json.decode(await exchange.read_body(10_000))))
            if status is None:
                exchange.start_response(200, [], b"", True)  # breaks off
            else:
                exchange.start_response(status, headers, body, False)

    async def scenario():
        stats = ClientStats()
        async with running_server(Answering()) as url:
            clients = WorkloadClients(Origin.parse(url), "some-model", stats)
            await clients.run([job(0, tokens=9, priority_class=BULK)])
            await clients.close()
        return stats

    stats = play(scenario())
    assert [o for o, number in stats.classes[BULK].num_ended.items() if number] == [outcome]
    ((priority, asked),) = seen
    assert priority == b"bulk"
    assert (asked["model"], asked["max_tokens"], asked["ignore_eos"], asked["stream"]) == ("some-model", 9, True, True)


def test_a_server_that_is_not_there_is_a_failure():
    async def scenario():
        stats = ClientStats()
        clients = WorkloadClients(Origin.parse("http://127.0.0.1:1"), "m", stats)
        await clients.run([job(0)])
        await clients.close()
        return stats

    assert asyncio.run(scenario()).classes[CHAT].num_ended[ClientOutcome.FAILED] == 1


def test_a_sample_that_is_played_again_goes_on_where_its_period_ends():
    rounds = repeat_jobs([job(0, at_ms=100), job(1, at_ms=900)], period=1_000_000)
    assert [next(rounds).request.arrival // 1000 for _ in range(5)] == [100, 900, 1100, 1900, 2100]
    assert list(repeat_jobs([], period=1)) == []


def test_a_request_waits_then_is_in_flight_then_has_ended():
    stats = ClientStats((CHAT, BULK))
    sent = stats.on_send(CHAT, 10.0)
    of = stats.classes[CHAT]
    assert (of.num_sent, of.num_waiting, of.num_in_flight) == (1, 1, 0)
    sent.on_token(10.25)
    sent.on_token(10.75)
    assert (of.num_sent, of.num_waiting, of.num_in_flight) == (1, 0, 1)
    sent.on_end(ClientOutcome.COMPLETED, 11.0)
    assert (of.num_sent, of.num_waiting, of.num_in_flight) == (1, 0, 0)
    summary = of.outcomes()
    assert (summary.completed, summary.ttft_p50_ms, summary.ttft_p99_ms, summary.e2e_p50_ms) == (1, 250.0, 250.0, 1000.0)
    assert stats.classes[BULK].outcomes().ttft_p50_ms is None


def test_times_are_of_completed_requests_alone():
    stats = ClientStats()
    for outcome in ClientOutcome:
        sent = stats.on_send(BULK, 0.0)
        sent.on_token(1.0 if outcome is ClientOutcome.COMPLETED else 5.0)
        sent.on_end(outcome, 9.0)
    summary = stats.classes[BULK].outcomes()
    ended = (summary.completed, summary.rejected, summary.preempted, summary.failed, summary.cancelled)
    assert ended == (1, 1, 1, 1, 1)
    assert (summary.ttft_p99_ms, summary.e2e_p50_ms) == (1000.0, 9000.0)


def test_percentiles_are_values_that_occurred():
    seconds = [0.4, 0.1, 0.3, 0.2]
    assert [percentile_ms(seconds, percent) for percent in (0, 25, 50, 51, 99, 100)] == [100, 100, 200, 300, 400, 400]


@given(st.lists(st.tuples(st.sampled_from([CHAT, BULK]), st.booleans(), st.sampled_from([None, *ClientOutcome]))))
def test_whatever_was_sent_is_waiting_in_flight_or_ended_once(requests):
    stats = ClientStats()
    for priority_class, token, outcome in requests:
        sent = stats.on_send(priority_class, 0.0)
        if token:
            sent.on_token(1.0)
        if outcome is not None:
            sent.on_end(outcome, 2.0)
        for of in stats.classes.values():
            assert of.num_sent == of.num_waiting + of.num_in_flight + sum(of.num_ended.values())
    assert stats.num_sent == len(requests)
