"""Runs against endpoints in this process: engines, and servers that behave badly."""

import asyncio
import os
import signal
import time

import msgspec
import pytest
from endpoint_thread import engine, serving

from maitred.core.request import PriorityClass, Request
from maitred.emulator.clients.prompts import PromptWriter, TokenScale
from maitred.emulator.clients.schedule import SendSchedule
from maitred.emulator.clients.sender import LoadSender, SendTarget
from maitred.report import summarise
from maitred.sim import Outcome
from maitred.study.live.benchmark import BenchError, BenchPlan, run_benchmark
from maitred.wire.origin import Origin
from maitred.wire.server import App
from maitred.workload import Job, closed_loop, synthetic

USAGE = b'"usage":{"prompt_tokens":%d,"completion_tokens":1}'


def job(number, at_ms=0, *, prompt=40, tokens=3, **fields):
    return Job(Request(id=number, arrival=at_ms * 1000, prompt_tokens=prompt, **fields), tokens)


def plan(url, path="/v1/completions", **settings):
    return BenchPlan(endpoint=SendTarget(origin=Origin.parse(url), path=path), **settings)


def bench(make_app, jobs, path="/v1/completions", **settings):
    with serving(make_app) as url:
        return run_benchmark(jobs, plan(url, path, **settings))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_the_rows_of_a_run_have_what_was_asked_for_and_when(path, stream):
    jobs = [job(0), job(1, 20, prompt=100, tokens=7, priority_class=PriorityClass.BULK, tenant="header:a"), job(2, 20)]
    live = bench(engine(), jobs, path, stream=stream, num_warmups=2)
    rows = live.results
    assert rows.outcome.tolist() == [Outcome.COMPLETED] * 3
    assert rows.request_id.tolist() == [0, 1, 2]
    assert rows.prompt_tokens.tolist() == [40, 100, 40]
    assert rows.output_tokens.tolist() == [3, 7, 3]
    assert rows.tenants[rows.tenant[1]] == "header:a"
    assert (rows.arrival <= rows.admitted).all()
    assert (rows.admitted < rows.first_token).all()
    assert ((rows.first_token < rows.finished) == stream).all()
    assert abs(rows.arrival - [0, 20_000, 20_000]).max() <= 500
    assert len(rows.itl_gaps.single_gaps) == (10 if stream else 0)
    summary = summarise(rows)
    assert (summary.total.completed, summary.is_measured) == (3, True)
    assert (summary.total.itl is not None) == stream
    assert live.problems == {}
    assert live.model == "emulated"
    assert (live.scale.per_word, live.scale.added) == (1.0, 7.0 if path.endswith("chat/completions") else 0.0)


class Scripted(App):
    """Answers probes, and then what it is told."""

    def __init__(self, answer):
        self._answer = answer
        self.seen = []

    async def __call__(self, exchange):
        body = await exchange.read_body(1_000_000)
        if exchange.path == "/v1/models":
            exchange.start_response(200, [], b'{"data":[{"id":"m"}]}', False)
            return
        asked = msgspec.json.decode(body)
        if "stream" not in asked and asked["max_tokens"] == 1:
            words = len(asked["prompt"].split())
            exchange.start_response(200, [], b'{"choices":[{"text":"a"}],' + USAGE % words + b"}", False)
            return
        self.seen.append((dict(exchange.headers), asked))
        await self._answer(exchange, len(self.seen))


def answering(status, headers, body, *, breaks_off=False):
    async def answer(exchange, _number):
        exchange.start_response(status, headers, body, breaks_off)

    return lambda: Scripted(answer)


EVENT_STREAM = [(b"content-type", b"text/event-stream")]


@pytest.mark.parametrize(
    ("app", "outcome", "problem"),
    [
        (answering(429, [], b'{"error":{"message":"full"}}'), Outcome.REJECTED, "status 429: full"),
        (answering(503, [(b"x-smg-preempted", b"true")], b"{}"), Outcome.PREEMPTED, "status 503: {}"),
        (answering(400, [], b'{"error":{"message":"too long"}}'), Outcome.REFUSED, "status 400: too long"),
        (answering(500, [], b""), Outcome.ABORTED, "status 500"),
        (answering(200, EVENT_STREAM, b'data: {"text":"a"}\n\n'), Outcome.ABORTED, "the stream broke off"),
        (
            answering(200, EVENT_STREAM, b'data: {"text":"a"}\n\n', breaks_off=True),
            Outcome.ABORTED,
            "the connection was closed before the end of the response",
        ),
    ],
)
def test_a_request_that_fails_is_counted_as_what_it_is(app, outcome, problem):
    live = bench(app, [job(0)])
    assert live.results.outcome.tolist() == [outcome]
    assert live.problems == {problem: 1}


def test_a_request_names_its_class_its_tenant_and_its_program():
    seen = []

    async def answer(exchange, _number):
        exchange.start_response(200, EVENT_STREAM, b'data: {"text":"a"}\n\ndata: [DONE]\n\n', False)

    def make():
        app = Scripted(answer)
        seen.append(app.seen)
        return app

    live = bench(make, [job(0, priority_class=PriorityClass.INTERACTIVE, tenant="auth:acme", program="p", routing_key="k")])
    ((headers, asked),) = seen[0]
    assert headers[b"x-smg-priority"] == b"interactive"
    assert headers[b"x-smg-tenant-id"] == b"acme"
    assert headers[b"x-maitred-program-id"] == b"p"
    assert headers[b"x-smg-routing-key"] == b"k"
    assert asked["max_tokens"] == 3
    said = "1 answers had no usage: their tokens are the events that came, and their prompts count as what was asked for"
    assert live.warnings[-1] == said  # A busy machine may have sent late, which is said before.


RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b'14\r\ndata: {"text":"a"}\n\n\r\n' + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


def test_a_kept_connection_that_the_server_had_closed_is_no_failure():
    async def scenario():
        connections, ended = [], []

        async def serve(reader, writer):
            connections.append(writer)
            await reader.readuntil(b"}")
            writer.write(RESPONSE)
            if len(connections) == 1:
                await reader.readuntil(b"POST")  # the next request, which it will not answer
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        prompts = PromptWriter("m", chat=False, scale=TokenScale())
        sender = LoadSender(SendTarget(origin=Origin.parse(url), path="/v1/completions"), prompts, ended.append)
        await sender.run(SendSchedule([job(0), job(1, 20)]))
        await sender.close()
        server.close()
        return len(connections), [sent.completed for sent in ended]

    assert asyncio.run(scenario()) == (2, [True, True])


def test_latencies_count_from_the_plan_when_a_limit_holds_requests_back():
    live = bench(engine(), [job(number, 0, tokens=10) for number in range(4)], max_concurrency=1)
    rows = live.results
    assert rows.arrival.tolist() == [0] * 4
    assert sorted(rows.admitted.tolist())[3] > 3 * 20_000  # each of the three before has ten steps of 2 ms
    assert summarise(rows).total.ttft.p99 > 60_000


def test_a_deadline_ends_a_request():
    slow = engine(latency="linear:200000,0,0")
    live = bench(slow, [job(0, deadline=50_000, tokens=50)])
    assert live.results.outcome.tolist() == [Outcome.TIMED_OUT]
    assert live.results.finished[0] > 40_000


def test_a_run_that_is_stopped_keeps_what_is_done():
    jobs = [job(0), job(1, 10, tokens=4_000), job(2, 10_000)]
    live = bench(engine(), jobs, horizon=600_000)
    assert live.results.request_id.tolist() == [0, 1]
    assert live.results.outcome.tolist() == [Outcome.COMPLETED, Outcome.UNFINISHED]
    assert live.results.finished[1] == -1


def test_ctrl_c_keeps_what_is_done():
    def press(ended):
        if ended == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with serving(engine()) as url:
        live = run_benchmark([job(0), job(1, tokens=4_000), job(2, 60_000)], plan(url), press)
    assert live.was_stopped
    assert live.results.outcome.tolist() == [Outcome.COMPLETED, Outcome.UNFINISHED]


def test_a_closed_loop_sends_when_an_answer_has_come():
    live = bench(engine(), closed_loop(2, 6, input_tokens=20, output_tokens=5))
    assert live.results.outcome.tolist() == [Outcome.COMPLETED] * 6
    in_flight = [
        int(((live.results.arrival <= at) & (live.results.finished > at)).sum()) for at in live.results.arrival.tolist()
    ]
    assert max(in_flight) <= 2


def test_a_sender_that_falls_behind_says_so():
    async def answer(exchange, _number):
        time.sleep(0.05)
        exchange.start_response(200, EVENT_STREAM, b'data: {"text":"a"}\n\ndata: [DONE]\n\n', False)

    class Slow(Scripted):
        pass

    def hogging():
        for each in synthetic(2_000, 12, input_tokens=20, output_tokens=3):
            time.sleep(0.03)
            yield each

    live = bench(lambda: Slow(answer), hogging())
    assert any(warning.startswith("the sender fell behind") for warning in live.warnings)


@pytest.mark.parametrize(
    ("app", "path", "said"),
    [
        (engine(), "/v2/completions", "answers 404"),
        (answering(200, [], b"{}"), "/v1/completions", None),
    ],
)
def test_an_endpoint_that_cannot_be_measured_is_one_error(app, path, said):
    if said is None:
        assert bench(app, []).results.request_id.tolist() == []
        return
    with pytest.raises(BenchError, match=said):
        bench(app, [job(0)], path)


def test_nothing_there_is_one_error():
    with pytest.raises(BenchError, match="cannot connect"):
        run_benchmark([job(0)], plan("http://127.0.0.1:9", model="m"))
