"""Limits per minute and day when another scheduler leads: gateways keep the counts for it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
from cluster_world import Cluster, cluster
from hypothesis import given
from hypothesis import strategies as st
from world import admission_config, run_on_sockets

from maitred.admission import Admission, ReleaseReason, Ticket, UsageRecord
from maitred.core.decisions import DecisionLog
from maitred.core.units import SECOND, Micros
from maitred.replay import replay
from maitred.scheduler.sharing.kept_usage import KeptUsage, ToldUsage, UsageNews
from maitred.wire.clock import Clock

RULES = {"limits": [{"requests_per_day": 6}]}
MINUTE = 60 * SECOND


async def statuses(c: Cluster, number: int) -> list[int]:
    return [(await (await c.start_request()).read_response())[0] for _ in range(number)]


def test_the_next_leader_goes_on_counting_and_so_does_the_one_after(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(election=f"file:{tmp_path}/leader") as c:
            c.rules = admission_config(**RULES)
            for _ in range(3):
                await c.add_scheduler()
            for _ in range(2):
                await c.add_gateway()
            for number in (2, 3):
                await c.linked()
                leader = c.leader()
                assert leader is not None
                assert await statuses(c, number) == [200] * number
                if number == 2:
                    await c.until(lambda core=leader.core: not core.limits._changed)
                    await c.kill(leader)
                else:  # It tells what it has not told, of a second or less.
                    c.schedulers.remove(leader)
                    await c._stops.pop(leader).aclose()
                await c.until(lambda old=leader: c.leader() not in (None, old))
            await c.linked()
            assert await statuses(c, 3) == [200, 429, 429]

    run_on_sockets(scenario())


def test_requests_that_come_while_nobody_leads_are_limited_by_the_next_leader(tmp_path: Path) -> None:
    """They wait at their gateways, and were granted slots by the next leader as if another one had counted them."""

    async def scenario() -> None:
        async with cluster(election=f"file:{tmp_path}/leader") as c:
            c.rules = admission_config(**RULES)
            for _ in range(2):
                await c.add_scheduler()
            for _ in range(2):
                await c.add_gateway()
            await c.linked()
            leader = c.leader()
            assert leader is not None
            assert await statuses(c, 4) == [200] * 4
            await c.until(lambda: not leader.core.limits._changed)
            await c.kill(leader)
            await c.until(lambda: all(each.scheduler.unlinked.mode == "waiting" for each in c.gateways))
            asked = [await c.start_request() for _ in range(8)]
            await c.until(lambda: sum(len(each.scheduler.link.end.requests) for each in c.gateways) == 8)
            told = [(await connection.read_response())[0] for connection in asked]
            assert sorted(told) == [200] * 2 + [429] * 6

    run_on_sockets(scenario())


def limited(limit: int = 100, log: DecisionLog | None = None) -> Admission:
    return Admission(admission_config(limits=[{"tokens_per_minute": limit}]), {"m": 1_000}, log=log)


def take(core: Admission, number: int, cost: int, now: Micros, used: int | None = None) -> str:
    (decision,) = core.submit(Ticket(number, "m", tenant="auth:a", cost=cost), now)
    if decision.action != "reject" and used is not None:
        core.confirm_first_byte(number, now)
        core.release(number, ReleaseReason.DRAINED, now, used)
    return str(decision.action)


@given(
    st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(1, 40)), min_size=1, max_size=30),
    st.integers(0, 10**9),
    st.integers(0, MINUTE),
)
def test_what_was_recalled_counts_until_it_is_a_minute_old_and_a_slot_longer_at_most(
    taken: list[tuple[Micros, int]], offset: Micros, pause: Micros
) -> None:
    """Clocks of two schedulers have nothing to do with each other."""
    old, new, now, counted = limited(), limited(), 0, list[tuple[Micros, int]]()
    for number, (gap, cost) in enumerate(taken):
        now += gap
        if take(old, number, cost, now) != "reject":
            counted.append((now, cost))
    (record,) = old.limits.take_changed(10, now)
    assert old.limits.take_changed(10, now) == []
    new.recall([record], now + offset)
    new.recall([record], now + offset)  # another gateway has kept the same
    later = now + pause
    least = sum(cost for at, cost in counted if at > later - MINUTE)
    most = sum(cost for at, cost in counted if at > later - MINUTE - 2 * SECOND)
    (again,) = new.limits.take_changed(10, later + offset)
    assert least <= sum(amount for _, amount in again.aged) <= most
    if 100 - most > 0:
        assert take(new, 0, 100 - most, later + offset) != "reject"
    assert take(new, 1, 101 - min(least, 100), later + offset) == "reject"


def test_what_was_counted_here_stays_when_a_newer_count_is_recalled() -> None:
    core = limited()
    assert take(core, 0, 10, SECOND) == "admit"
    for amount in (30, 50):
        core.recall([UsageRecord("tokens_per_minute", "auth:a", None, [(2 * SECOND, amount)])], SECOND)
    assert [take(core, 1, 41, SECOND), take(core, 2, 40, SECOND)] == ["reject", "admit"]
    core.recall([], SECOND, anew=True)
    assert take(core, 3, 100, SECOND) == "admit"


def test_a_scheduler_takes_the_newest_of_each_window_and_none_of_its_own_term() -> None:
    core, clock = limited(), Clock()
    news = UsageNews(core, clock, Random(1))

    def told(amount: int, at: int, term: bytes = b"before") -> bytes:
        record = UsageRecord("tokens_per_minute", "auth:a", None, [(0, amount)])
        return msgspec.msgpack.encode([ToldUsage(term, at, record)])

    def used() -> int:
        return 100 - max(cost for cost in range(101) if cost == 0 or core.limits._windows[KEY].used + cost <= 100)

    news.hear(told(20, at=5))
    news.hear(told(30, at=4))
    assert used() == 20
    news.hear(told(40, at=6))
    assert used() == 40
    news.hear(told(70, at=7, term=news._term))
    assert used() == 40
    news.begin_term()
    assert not core.limits.has_windows
    kept = KeptUsage(clock)
    kept.take(told(60, at=9))
    for note in kept.answers():
        news.hear(note.payload)
    assert used() == 60


KEY = ("tokens_per_minute", "auth:a", None)


def test_a_log_of_decisions_has_what_was_recalled() -> None:
    first, second = list[bytes](), list[bytes]()
    core = limited(log=DecisionLog(first.append))
    core.recall([UsageRecord("tokens_per_minute", "auth:a", None, [(SECOND, 90)])], SECOND)
    assert [take(core, 0, 11, SECOND), take(core, 1, 10, SECOND)] == ["reject", "admit"]
    replay(first, DecisionLog(second.append))
    assert b"".join(first) == b"".join(second)
