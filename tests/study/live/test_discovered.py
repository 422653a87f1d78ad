"""Runs against backends that discovery finds: who gets requests, as backends come and go."""

import asyncio
import json
import re
import socket
from functools import partial
from pathlib import Path

import pytest
from endpoint_thread import engine, serving

from maitred.core.request import Request
from maitred.emulator.clients.destinations import Destinations
from maitred.emulator.clients.prompts import PromptWriter, TokenScale
from maitred.emulator.clients.schedule import SendSchedule
from maitred.emulator.clients.sender import NO_DESTINATION, LoadSender, SendTarget
from maitred.study.live import benchmark
from maitred.study.live.benchmark import BenchPlan, run_benchmark
from maitred.study.live.discovered import BenchError
from maitred.wire.origin import Origin
from maitred.wire.server import App
from maitred.workload import Job
from ports import free_ports

NOWHERE = SendTarget(origin=Origin.parse("http://discovered.invalid"), path="/v1/completions")
DOWN = f"http://127.0.0.1:{free_ports(1)[0]}"
LOAD = "--rate 200 --num-requests 20 --input-tokens 50 --output-tokens 5"


def jobs(count, gap_ms=0):
    return [Job(Request(id=number, arrival=number * gap_ms * 1000, prompt_tokens=20), 2) for number in range(count)]


class Counted(App):
    """An emulated engine that calls `on_answer` before each completion with its number."""

    def __init__(self, on_answer=lambda _number: None):
        self._app, self._on_answer = engine()(), on_answer
        self.count = 0

    async def __call__(self, exchange):
        if exchange.path == "/v1/completions":
            self.count += 1
            self._on_answer(self.count)
        await self._app(exchange)


def write(path: Path, *urls: str) -> None:
    """Put another list in place of the one that a source reads."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps([{"targets": urls}]))
    beside.replace(path)


async def send(destinations, count, on_end, **schedule):
    """Send `count` requests; `on_end` is called with all that have ended, after each."""
    ended = []

    def on_each(sent):
        ended.append(sent)
        on_end(ended)

    prompts = PromptWriter("emulated", chat=False, scale=TokenScale(), nonce=1)
    sender = LoadSender(NOWHERE, prompts, on_each, destinations=destinations)
    try:
        async with asyncio.timeout(10):
            await sender.run(SendSchedule(jobs(count), **schedule))
    finally:
        await sender.close()
    return ended


def test_a_backend_that_goes_gets_no_new_request_and_one_that_is_back_does():
    first, second = Counted(), Counted()
    counts = {}

    with serving(lambda: first) as a, serving(lambda: second) as b:
        destinations = Destinations([Origin.parse(a)])
        destinations.add(b)

        def on_end(ended):
            counts[len(ended)] = first.count, second.count
            if len(ended) in (4, 12):
                (destinations.leave if len(ended) == 4 else destinations.rejoin)(a)

        ended = asyncio.run(send(destinations, 16, on_end, max_concurrency=1, is_closed=True))
    assert all(sent.completed for sent in ended)
    assert [counts[number] for number in (1, 2, 4, 12, 16)] == [(1, 0), (1, 1), (2, 2), (2, 10), (4, 12)]


class Connection:
    """A connection that is only open or closed."""

    is_usable = True

    def close(self):
        self.is_usable = False


def test_the_connections_of_a_backend_that_goes_are_closed_as_they_fall_idle():
    destinations = Destinations([Origin.parse("http://a:1")])
    destination, idle, busy = destinations.next(), Connection(), Connection()
    destination.give_back(idle)
    destinations.leave("http://a:1")
    assert (idle.is_usable, busy.is_usable) == (False, True)
    destination.give_back(busy)
    assert not busy.is_usable


def test_where_none_is_left_requests_fail_and_the_run_ends():
    with serving(engine()) as url:
        destinations = Destinations([Origin.parse(url)])

        def on_end(ended):
            if len(ended) == 2:
                destinations.leave(url)

        ended = asyncio.run(send(destinations, 6, on_end, max_concurrency=1, is_closed=True))
    assert [sent.problem for sent in ended] == ["", "", *[NO_DESTINATION] * 4]
    assert destinations.next() is None


def test_a_run_follows_the_file_that_lists_its_backends(tmp_path):
    path = tmp_path / "targets.json"
    leaving, staying = Counted(lambda number: number == 3 and write(path, urls[1])), Counted()
    with serving(lambda: leaving) as a, serving(lambda: staying) as b:
        urls = a, b
        write(path, *urls)
        plan = BenchPlan(endpoint=NOWHERE, discover=(f"file({path}, interval=0.01)",))
        live = run_benchmark(jobs(40, gap_ms=20), plan)
    assert live.problems == {}
    assert leaving.count + staying.count == 42  # Two of them are the probes.
    assert 3 <= leaving.count < staying.count


def test_the_first_backend_that_a_source_lists_may_come_while_another_one_fails(tmp_path):
    with serving(engine()) as url:
        plan = partial(BenchPlan, endpoint=NOWHERE)
        missing = f"file({tmp_path / 'none.json'})"
        assert run_benchmark(jobs(2), plan(discover=(missing, f"static([{url}])"))).problems == {}
        with pytest.raises(BenchError, match=r"there is no backend to measure; file.*no such file or directory"):
            run_benchmark(jobs(2), plan(discover=(missing,)))


def test_a_backend_that_is_down_fails_its_own_requests_alone_wherever_it_is_listed(tmp_path):
    with serving(engine()) as url:
        for listed in ([DOWN, url], [url, DOWN]):
            plan = BenchPlan(endpoint=NOWHERE, discover=(f"static([{', '.join(listed)}])",))
            assert run_benchmark(jobs(6), plan).problems == {"no connection: connection refused": 3}
    with pytest.raises(BenchError, match=re.escape(f"{DOWN}/v1/models: cannot connect")):
        run_benchmark(jobs(2), BenchPlan(endpoint=NOWHERE, discover=(f"static([{DOWN}])",)))


def test_an_endpoint_that_accepts_and_never_answers_is_told(monkeypatch):
    monkeypatch.setattr(benchmark, "MODELS_SECS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        named = BenchPlan(endpoint=SendTarget(origin=Origin.parse(url), path="/v1/completions"))
        for plan in (named, BenchPlan(endpoint=NOWHERE, discover=(f"static([{url}])",))):
            with pytest.raises(BenchError, match=re.escape(f"{url}/v1/models: no answer within 0.3 s")):
                run_benchmark(jobs(2), plan)


def test_the_command_measures_what_a_source_lists_and_says_so(maitred, tmp_path):
    with serving(engine()) as url:
        write(tmp_path / "targets.json", url)
        result = maitred("bench", "--discover", "file(targets.json)", *LOAD.split())
    assert result.code == 0, result.err
    assert result.out.startswith("measured: emulated at the backends of file(targets.json), in turn;")
    assert "discovered.invalid" not in result.out + result.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("http://a:1 --discover file(t)", "the backends are those of --discover, or the one of URL"),
        ("--discover fil(t)", "--discover: unknown source of backends 'fil'"),
        ("--discover file(t) --discover file(t)", "--discover: file(t) is there twice"),
        ("--discover file(t)", "there is no backend to measure; file(t): t cannot be read"),
        ("--discover static([])", "there is no backend to measure; static([]): it lists none"),
    ],
)
def test_a_source_without_backends_or_a_mistake_is_one_line(maitred, flags, said):
    result = maitred("bench", *flags.split(), *LOAD.split())
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""
