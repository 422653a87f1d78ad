"""Emulated clients against an engine, and against servers that behave badly."""

import asyncio

import msgspec
import pytest
from emulated import FROZEN, emulated, play

from maitred.core.request import PriorityClass, Request
from maitred.emulator.clients import ClientOutcome, ClientStats, WorkloadClients, repeat_jobs
from maitred.wire.origin import Origin
from maitred.wire.server import App, running_server
from maitred.workload import Job

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
