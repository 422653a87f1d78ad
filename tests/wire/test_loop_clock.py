"""A process that stands still: what came in time meanwhile counts as in time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from raw_upstream import run

from maitred.wire import protocol
from maitred.wire.clock import Clock
from maitred.wire.exchange import Exchange, send_bytes
from maitred.wire.loop_clock import BEAT_SECS, CATCH_UP_SECS, STALL_SECS, LoopClock
from maitred.wire.server import App, running_server
from maitred.wire.timeouts import timeout


class Loop:
    """A loop whose time the test sets; it rings timers that are due in their order when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, callback: Any) -> None:
        self._timers.append((at, callback))

    def run_until(self, at: float) -> None:
        """Let time pass as it does for a loop that is not held up."""
        while due := min((timer for timer in self._timers if timer[0] <= at), key=lambda timer: timer[0], default=None):
            self._timers.remove(due)
            self.now = max(self.now, due[0])
            due[1]()
        self.now = at

    def stand_still(self, secs: float) -> None:
        self.now += secs


@pytest.fixture
def cpu() -> list[float]:
    return [0.0]


def clock_of_a_loop_that_used(cpu: list[float], loop: Any) -> LoopClock:
    return LoopClock(loop, Clock(thread_time_ns=lambda: int(cpu[0] * 1e9)))


def test_the_clock_goes_on_where_a_stall_began(cpu: list[float]) -> None:
    loop: Any = Loop()
    clock = clock_of_a_loop_that_used(cpu, loop)
    loop.run_until(10.0)
    assert clock.time() == 10.0
    loop.stand_still(62.0)
    before = clock.time()  # a timer that rings before the beat
    assert 10.0 <= before <= 10.0 + BEAT_SECS + STALL_SECS
    assert clock.is_catching_up
    loop.run_until(72.0)
    assert before <= clock.time() <= 10.0 + BEAT_SECS + STALL_SECS
    assert clock.is_catching_up
    loop.run_until(72.0 + CATCH_UP_SECS)
    assert not clock.is_catching_up
    at = clock.time()
    loop.run_until(100.0)
    assert clock.time() == pytest.approx(at + 28.0 - CATCH_UP_SECS)


def test_a_loop_that_is_busy_or_a_little_late_has_not_stood_still(cpu: list[float]) -> None:
    loop: Any = Loop()
    clock = clock_of_a_loop_that_used(cpu, loop)
    loop.stand_still(BEAT_SECS + 0.9 * STALL_SECS)
    loop.run_until(1.0)
    assert clock.time() == 1.0
    loop.stand_still(30.0)
    cpu[0] += 30.0
    loop.run_until(31.0)
    assert clock.time() == 31.0


def test_a_stall_counts_for_an_hour_at_most(cpu: list[float]) -> None:
    loop: Any = Loop()
    clock = clock_of_a_loop_that_used(cpu, loop)
    loop.stand_still(10_000.0)
    loop.run_until(10_000.0)
    assert clock.time() == 10_000.0 - 3_600.0


def test_a_timer_that_rings_when_its_deadline_is_due_is_not_set_again(cpu: list[float]) -> None:
    loop: Any = Loop()
    clock = clock_of_a_loop_that_used(cpu, loop)
    loop.stand_still(3.372025)
    loop.run_until(5.0)
    for number in range(1_000):
        due = clock.time() + 0.0137 * number
        loop.run_until(clock.loop_time(due))
        assert clock.next_look(due) == 0.0


class Answers(App):
    async def __call__(self, exchange: Exchange) -> None:
        send_bytes(exchange, 200, await exchange.read_body(1000), b"text/plain")


@pytest.mark.parametrize(
    ("limit", "first", "rest"),
    [
        ("HEAD_SECS", b"POST / HTTP/1.1\r\nHost: x\r\nConte", b"nt-Length: 2\r\n\r\nhi"),
        ("BODY_SECS", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nh", b"i"),
        ("keep_alive_secs", b"", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"),
    ],
)
def test_what_a_client_sent_while_the_process_stood_still_is_in_time(
    monkeypatch: pytest.MonkeyPatch, limit: str, first: bytes, rest: bytes
) -> None:
    """The deadline is 0.3 s; the loop is blocked for 1.5 s, in which the rest arrives."""
    monkeypatch.setattr(Answers if limit == "keep_alive_secs" else protocol, limit, 0.3)

    async def scenario() -> bytes:
        async with running_server(Answers()) as url:
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(first)
            await asyncio.sleep(0.05)
            writer.write(rest)  # goes out at once, and waits in the socket of the server
            time.sleep(1.5)
            async with asyncio.timeout(30):
                answer = await reader.read(1000)
            writer.close()
            return answer

    assert run(scenario()).startswith(b"HTTP/1.1 200")


def test_a_timeout_does_not_count_a_stall_and_ends_otherwise() -> None:
    async def scenario() -> None:
        reading, writing = asyncio.Event(), asyncio.get_running_loop()
        async with timeout(0.3):
            writing.call_later(0.01, time.sleep, 1.5)
            writing.call_later(0.02, reading.set)
            await reading.wait()
        with pytest.raises(TimeoutError):
            async with timeout(0.01):
                await asyncio.sleep(10)

    run(scenario())
