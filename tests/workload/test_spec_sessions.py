"""Sessions and closed loops: later requests depend on the ends of earlier ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maitred
from maitred.core.request import PrefixKeys, Request
from maitred.core.units import Micros
from maitred.instance import InstanceConfig
from maitred.sim import Outcome, simulate
from maitred.workload import Job, ReactiveWorkload, scale_time
from maitred.workload.spec import Arrival, Client, MultiTurn, Reasoning, Workload

SECOND = 1_000_000
STEADY = Arrival(process="constant")


class End(msgspec.Struct):
    """The end of a request, `after` µs after its arrival."""

    after: Micros
    completed: bool = True
    tokens: int | None = None
    """Tokens of the answer, or None for all of them."""


def driven(jobs: ReactiveWorkload, end: Callable[[Request], End]) -> list[Job]:
    """Return all jobs in the order of arrival, from a driver that ends each request as `end` says."""
    arrived: list[Job] = []
    coming: list[tuple[Micros, int, Job]] = []
    ends: list[tuple[Micros, int, Job, End]] = []
    given_ = iter(jobs)

    def read() -> None:
        if (job := next(given_, None)) is not None:
            heappush(coming, (job.request.arrival, job.request.id, job))
            own.add(job.request.id)

    own: set[int] = set()
    read()
    while coming or ends:
        if ends and (not coming or ends[0][0] <= coming[0][0]):
            now, _, job, how = heappop(ends)
            tokens = job.output_tokens if how.tokens is None else how.tokens
            for more in jobs.on_request_end(job.request, how.completed, tokens, now):
                assert more.request.arrival >= now
                heappush(coming, (more.request.arrival, more.request.id, more))
            continue
        now, number, job = heappop(coming)
        arrived.append(job)
        how = end(job.request)
        heappush(ends, (now + how.after, number, job, how))
        if number in own:
            read()
    return arrived


def chat(rounds: int = 3, think: Micros = 5 * SECOND, **fields: object) -> Client:
    turns = MultiTurn(max_rounds=rounds, think_time_us=think, context_growth="accumulate")
    return Client(
        **{  # type: ignore[arg-type]
            "id": "chat",
            "rate": 0.1,
            "arrival": STEADY,
            "input_distribution": 100,
            "output_distribution": 40,
            "reasoning": Reasoning(multi_turn=turns),
            **fields,
        }
    )


def arrivals_of(jobs: Sequence[Job]) -> list[tuple[float, str, int]]:
    """Return arrival in seconds, session and prompt tokens of each job."""
    return [(job.request.arrival / SECOND, job.request.program, job.request.prompt_tokens) for job in jobs]


def keys(prefix: PrefixKeys | None, block: int = 16) -> list[int]:
    assert prefix is not None
    return list(prefix.block_keys(block))


def test_a_round_follows_the_answer_and_contains_the_history() -> None:
    """Sessions start at 10 and 20 s. An answer takes 2 s, thinking 5 s; a round has 100 new tokens and 40 of answer."""
    jobs = driven(Workload(horizon=25 * SECOND, clients=[chat()]).jobs(), lambda request: End(2 * SECOND))
    assert arrivals_of(jobs) == [
        (10, "chat/1", 100),
        (17, "chat/1", 240),
        (20, "chat/2", 100),
        (24, "chat/1", 380),
    ]


def test_without_growth_each_round_says_something_new_alone() -> None:
    turns = Reasoning(multi_turn=MultiTurn(max_rounds=2))
    jobs = driven(Workload(horizon=19 * SECOND, clients=[chat(reasoning=turns)]).jobs(), lambda request: End(2 * SECOND))
    assert arrivals_of(jobs) == [(10, "chat/1", 100), (12, "chat/1", 100)]
    assert jobs[0].request.prefix is None
    assert jobs[0].conversation_prefix is None


def test_nothing_follows_the_last_round() -> None:
    jobs = driven(Workload(num_requests=100, clients=[chat(rate=1.0)]).jobs(), lambda request: End(1))
    assert {job.request.program for job in jobs} == {f"chat/{n}" for n in range(1, len({j.request.program for j in jobs}) + 1)}
    per_session = [sum(job.request.program == f"chat/{n}" for job in jobs) for n in range(1, 30)]
    assert per_session == [3] * 29


@pytest.mark.parametrize("lost", [0, 1])
def test_a_session_ends_with_a_round_that_was_not_answered(lost: int) -> None:
    def end(request: Request) -> End:
        round_number = (request.prompt_tokens - 100) // 140
        return End(2 * SECOND, completed=round_number != lost)

    jobs = driven(Workload(horizon=19 * SECOND, clients=[chat()]).jobs(), end)
    assert arrivals_of(jobs) == [(10, "chat/1", 100), (17, "chat/1", 240)][: lost + 1]


def test_an_answer_that_was_cut_short_is_what_the_next_round_holds() -> None:
    jobs = driven(Workload(horizon=19 * SECOND, clients=[chat()]).jobs(), lambda request: End(2 * SECOND, tokens=7))
    assert arrivals_of(jobs)[1] == (17, "chat/1", 207)
    assert keys(jobs[0].conversation_prefix)[: 107 // 16] == keys(jobs[1].request.prefix)[: 107 // 16]


def test_no_round_comes_beyond_the_horizon() -> None:
    """The second round would arrive at 17 s."""
    assert len(driven(Workload(horizon=17 * SECOND, clients=[chat()]).jobs(), lambda request: End(2 * SECOND))) == 2
    assert len(driven(Workload(horizon=17 * SECOND - 1, clients=[chat()]).jobs(), lambda request: End(2 * SECOND))) == 1


def test_later_rounds_count_among_the_requests() -> None:
    jobs = driven(Workload(num_requests=4, clients=[chat()]).jobs(), lambda request: End(2 * SECOND))
    assert arrivals_of(jobs)[:3] == [(10, "chat/1", 100), (17, "chat/1", 240), (20, "chat/2", 100)]
    assert len(jobs) == 4


def test_a_single_session() -> None:
    turns = MultiTurn(max_rounds=2, single_session=True, context_growth="accumulate")
    jobs = driven(Workload(clients=[chat(reasoning=Reasoning(multi_turn=turns))]).jobs(), lambda request: End(SECOND))
    assert arrivals_of(jobs) == [(10, "chat/1", 100), (11, "chat/1", 240)]


def test_an_open_loop_asks_at_its_times_whatever_becomes_of_the_answers() -> None:
    workload = Workload(num_requests=4, clients=[chat(closed_loop=False)])
    jobs = driven(workload.jobs(), lambda request: End(60 * SECOND, completed=False))
    assert arrivals_of(jobs) == [(10, "chat/1", 100), (15, "chat/1", 240), (20, "chat/2", 100), (20, "chat/1", 380)]
    assert {job.request.deadline for job in jobs} == {None}


@settings(max_examples=30, deadline=None)
@given(block=st.integers(1, 64), prefix=st.integers(0, 70), seed=st.integers(0, 100))
def test_the_keys_of_a_round_begin_with_those_of_the_round_before_and_its_answer(block: int, prefix: int, seed: int) -> None:
    fields = {
        "input_distribution": "uniform:1,90",
        "output_distribution": "uniform:1,90",
        "prefix_group": "g",
        "prefix_length": prefix,
    }
    workload = Workload(horizon=25 * SECOND, clients=[chat(4, think=SECOND, **fields)])
    jobs = driven(workload.jobs(seed=seed), lambda request: End(SECOND))
    one = [job for job in jobs if job.request.program == "chat/1"]
    other = next(job for job in jobs if job.request.program == "chat/2")
    assert len(one) == 4
    for before, after in pairwise(one):
        prompt, whole, following = (
            keys(before.request.prefix, block),
            keys(before.conversation_prefix, block),
            keys(after.request.prefix, block),
        )
        assert len(prompt) == before.request.prompt_tokens // block
        assert len(whole) == (before.request.prompt_tokens + before.output_tokens) // block
        assert whole[: len(prompt)] == prompt
        assert following[: len(whole)] == whole
        assert len(set(following)) == len(following)
    shared = set(keys(one[0].request.prefix, block)) & set(keys(other.request.prefix, block))
    assert shared == set(keys(one[0].request.prefix, block)[: prefix // block])


def test_lengths_do_not_depend_on_when_answers_come() -> None:
    """Two policies receive the same work."""
    lengths = {"input_distribution": "lognormal:100,80", "output_distribution": "lognormal:50,40", "rate": 1.0}
    workload = Workload(horizon=300 * SECOND, clients=[chat(5, **lengths)])

    def work(after: Callable[[Request], End]) -> dict[str, list[tuple[int, int]]]:
        sessions: dict[str, list[tuple[int, int]]] = {}
        for job in driven(workload.jobs(), after):
            sessions.setdefault(job.request.program, []).append((job.request.prompt_tokens, job.output_tokens))
        return {name: rounds for name, rounds in sessions.items() if len(rounds) == 5}

    quick, slow = work(lambda request: End(1)), work(lambda request: End(request.id % 7 * SECOND))
    common = quick.keys() & slow.keys()
    assert len(common) > 200
    assert all(quick[name] == slow[name] for name in common)


def test_users_of_a_closed_loop_have_one_request_each_and_think_in_between() -> None:
    """Three users start within their think time of 3 s; an answer takes 2 s."""
    users = Client(id="u", concurrency=3, think_time_us=3 * SECOND, input_distribution=10, output_distribution=5)
    jobs = driven(Workload(num_requests=9, clients=[users]).jobs(), lambda request: End(2 * SECOND))
    assert [job.request.arrival / SECOND for job in jobs] == [0, 1, 2, 5, 6, 7, 10, 11, 12]
    assert [job.request.id for job in jobs] == list(range(9))


def test_as_many_in_flight_as_there_are_users_and_no_more() -> None:
    users = Client(id="u", concurrency=4, input_distribution="uniform:1,50", output_distribution="uniform:1,50")
    in_flight: list[tuple[Micros, int]] = []

    def end(request: Request) -> End:
        after = 1 + request.prompt_tokens * 1_000
        in_flight.extend([(request.arrival, 1), (request.arrival + after, -1)])
        return End(after)

    assert len(driven(Workload(num_requests=200, clients=[users]).jobs(), end)) == 200
    last = max(at for at, change in in_flight if change == 1)
    changes = Counter[Micros]()
    for at, change in in_flight:
        changes[at] += change
    levels = list(accumulate(changes[at] for at in sorted(changes) if at <= last))
    assert set(levels) == {4}


def test_a_user_whose_request_failed_asks_no_more() -> None:
    users = Client(id="u", concurrency=2, think_time_us=SECOND, input_distribution=10, output_distribution=5)
    jobs = driven(Workload(num_requests=50, clients=[users]).jobs(), lambda request: End(SECOND, completed=request.id != 3))
    assert len([job for job in jobs if job.request.arrival > 10 * SECOND]) == pytest.approx(45, abs=3)
    assert len(driven(Workload(num_requests=50, clients=[users]).jobs(), lambda request: End(SECOND, completed=False))) == 2


def test_users_may_have_sessions() -> None:
    """One user has rounds 1 s apart and sessions 10 s apart; an answer takes 1 s."""
    turns = Reasoning(multi_turn=MultiTurn(max_rounds=2, think_time_us=SECOND, context_growth="accumulate"))
    agent = Client(
        id="a", concurrency=1, think_time_us=10 * SECOND, input_distribution=100, output_distribution=40, reasoning=turns
    )
    jobs = driven(Workload(num_requests=4, clients=[agent]).jobs(), lambda request: End(SECOND))
    assert arrivals_of(jobs) == [(0, "a-0/1", 100), (2, "a-0/1", 240), (13, "a-0/2", 100), (15, "a-0/2", 240)]


def test_sessions_of_different_users_are_different_programs() -> None:
    turns = Reasoning(multi_turn=MultiTurn(max_rounds=2))
    agents = Client(id="a", concurrency=2, input_distribution=10, output_distribution=10, reasoning=turns)
    jobs = driven(Workload(num_requests=8, clients=[agents]).jobs(), lambda request: End(SECOND))
    assert Counter(job.request.program for job in jobs) == {"a-0/1": 2, "a-0/2": 2, "a-1/1": 2, "a-1/2": 2}


@pytest.mark.parametrize(("fields", "deadline"), [({}, 310), ({"timeout": 0}, None), ({"timeout": 7 * SECOND}, 17)])
def test_the_default_timeout_of_a_closed_loop_is_300_seconds(fields: dict[str, int], deadline: int | None) -> None:
    (job, *_) = Workload(num_requests=1, clients=[chat(**fields)]).jobs()
    assert job.request.deadline == (None if deadline is None else deadline * SECOND)


def test_users_wait_for_300_seconds_too() -> None:
    users = Client(id="u", concurrency=1, input_distribution=10, output_distribution=5)
    (job,) = Workload(num_requests=1, clients=[users]).jobs()
    assert job.request.deadline == 300 * SECOND


def test_a_plain_client_waits_for_ever() -> None:
    (job,) = Workload(num_requests=1, clients=[chat(reasoning=None)]).jobs()
    assert job.request.deadline is None


def test_in_a_world_twice_as_slow_everything_happens_at_twice_the_time() -> None:
    workload = Workload(horizon=100 * SECOND, clients=[chat(timeout=9 * SECOND, slo_target_us=SECOND)])
    jobs = driven(workload.jobs(), lambda request: End(2 * SECOND))
    slower = driven(scale_time(workload.jobs(), 2), lambda request: End(4 * SECOND))  # type: ignore[arg-type]
    assert [job.request.arrival * 2 for job in jobs] == [job.request.arrival for job in slower]
    assert {job.request.deadline - job.request.arrival for job in slower if job.request.deadline} == {18 * SECOND}
    assert {job.request.slo_target for job in slower} == {2 * SECOND}
    assert [job.output_tokens for job in jobs] == [job.output_tokens for job in slower]


def test_in_the_simulator_each_round_comes_its_pause_after_the_end_of_the_one_before() -> None:
    """Under load too; with a prefix cache, each round finds the previous one in it."""
    workload = Workload(num_requests=60, clients=[chat(rate=2.0, think=3 * SECOND, output_distribution=64)])
    results = simulate(workload.jobs(), instance=InstanceConfig(enable_prefix_caching=True))
    rows = sorted(zip(results.arrival.tolist(), results.finished.tolist(), results.prompt_tokens.tolist(), strict=True))
    assert set(results.outcome.tolist()) == {Outcome.COMPLETED}
    first = [finished for _, finished, prompt in rows if prompt == 100]
    second = [arrival for arrival, _, prompt in rows if prompt == 264]
    assert sorted(at + 3 * SECOND for at in first)[: len(second)] == sorted(second)
    hits = {int(c) for c, p in zip(results.cached_tokens, results.prompt_tokens, strict=True) if p == 264}
    assert hits == {160}


def test_what_follows_does_not_depend_on_skipping_steps() -> None:
    lengths = {"input_distribution": "normal:300,200", "output_distribution": "lognormal:60,60", "rate": 3.0}
    workload = Workload(num_requests=300, clients=[chat(4, think=SECOND, timeout=4 * SECOND, **lengths)])
    tight = InstanceConfig(enable_prefix_caching=True, total_kv_blocks=400, max_num_seqs=8)

    def facts(instance: InstanceConfig) -> list[list[int]]:
        results = simulate(workload.jobs(), instance=instance)
        columns = (
            results.request_id,
            results.arrival,
            results.finished,
            results.prompt_tokens,
            results.cached_tokens,
            results.outcome,
        )
        return [column.tolist() for column in columns]

    skipping = facts(tight)
    assert skipping == facts(msgspec.structs.replace(tight, step_by_step=True))
    assert len(set(skipping[-1])) > 1


def test_a_workload_is_simulated_as_it_is() -> None:
    users = Client(id="u", concurrency=4, input_distribution=100, output_distribution="uniform:1,40")
    workload = maitred.Workload(num_requests=50, seed=3, clients=[users])
    whole = maitred.simulate(workload).rows
    assert whole.finished.tolist() == simulate(workload.jobs(seed=3)).finished.tolist()
    assert whole.finished.tolist() != simulate(workload.jobs(seed=4)).finished.tolist()
