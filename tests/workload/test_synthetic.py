"""Plain workloads: requests at a rate, each quantity with a random stream of its own; agent programs in a closed loop; and
workloads with denser arrivals, or with longer times.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.sim import simulate
from maitred.workload import (
    Client,
    Job,
    Workload,
    closed_loop,
    parse_class_mix,
    parse_tenant_mix,
    scale_rate,
    scale_time,
    synthetic,
    with_class_mix,
    with_tenant_mix,
)
from maitred.workload.job import is_program_over
from maitred.workload.spec_parts import Fork, MultiTurn, Reasoning
from maitred.workload.synthetic import agent_programs
from maitred.workload.transforms import with_timeout


def test_gaps_are_exponential_with_the_mean_of_the_rate() -> None:
    arrivals = [job.request.arrival for job in synthetic(100, 20_000)]
    gaps = [later - earlier for earlier, later in pairwise([0, *arrivals])]
    assert statistics.mean(gaps) == pytest.approx(10_000, rel=0.03)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.03)
    assert statistics.median(gaps) == pytest.approx(6_931, rel=0.03)
    assert min(gaps) >= 0


def test_a_rate_of_many_per_microsecond_keeps_its_mean() -> None:
    last = list(synthetic(5e6, 20_000))[-1]
    assert last.request.arrival == pytest.approx(4_000, rel=0.03)


def test_same_seed_same_jobs_other_seed_other_jobs() -> None:
    def arrivals(seed: int) -> list[int]:
        return [job.request.arrival for job in synthetic(10, 50, seed=seed)]

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)


def test_changing_the_answers_leaves_arrivals_and_prompts_alone() -> None:
    """Two runs that differ in one quantity differ in that quantity only."""
    short = list(synthetic(10, 50, input_tokens="normal:500,150", output_tokens=5))
    mixed = list(
        synthetic(10, 50, input_tokens="normal:500,150", output_tokens="lognormal:90,40", class_mix="bulk:1,default:1")
    )
    assert [job.request.arrival for job in short] == [job.request.arrival for job in mixed]
    assert [job.request.prompt_tokens for job in short] == [job.request.prompt_tokens for job in mixed]
    assert [job.output_tokens for job in short] != [job.output_tokens for job in mixed]


def test_ids_count_from_0_and_the_request_does_not_tell_the_length_of_the_answer() -> None:
    made = list(synthetic(10, 3, output_tokens=77))
    assert [job.request.id for job in made] == [0, 1, 2]
    assert {job.output_tokens for job in made} == {77}
    assert {job.request.max_output_tokens for job in made} == {None}


def test_known_jobs_stay_what_they_are() -> None:
    made = synthetic(10, 3, seed=42, input_tokens="normal:500,150", output_tokens="lognormal:90,40")
    assert [(job.request.arrival, job.request.prompt_tokens, job.output_tokens) for job in made] == [
        (108_839, 577, 64),
        (232_095, 559, 71),
        (242_693, 410, 112),
    ]


def test_classes_come_in_their_shares() -> None:
    classes = [job.request.priority_class for job in synthetic(10, 10_000, class_mix="interactive:3, bulk:7")]
    assert classes.count(PriorityClass.INTERACTIVE) == pytest.approx(3_000, abs=150)
    assert classes.count(PriorityClass.BULK) == 10_000 - classes.count(PriorityClass.INTERACTIVE)


def test_a_workload_can_be_given_other_classes_and_nothing_else() -> None:
    before = list(synthetic(10, 100))
    after = list(with_class_mix(synthetic(10, 100), parse_class_mix("bulk:1"), seed=1))
    assert {job.request.priority_class for job in after} == {PriorityClass.BULK}
    assert [job.request.arrival for job in after] == [job.request.arrival for job in before]


def test_tenants_come_in_their_shares_and_move_nothing_else() -> None:
    before = list(synthetic(10, 5_000, class_mix="bulk:1,default:1"))
    after = list(synthetic(10, 5_000, class_mix="bulk:1,default:1", tenant_mix="auth:acme:1, ip:::1:3"))
    tenants = [job.request.tenant for job in after]
    assert tenants.count("auth:acme") == pytest.approx(1_250, abs=120)
    assert tenants.count("ip:::1") == 5_000 - tenants.count("auth:acme")
    assert [(j.request.arrival, j.request.priority_class) for j in before] == [
        (j.request.arrival, j.request.priority_class) for j in after
    ]
    assert {job.request.tenant for job in before} == {""}
    assert list(with_tenant_mix(before, parse_tenant_mix("auth:acme:1,ip:::1:3"), seed=42)) == after


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acme:1", "'acme' matches no tenant: write auth:acme, header:acme, ip:ADDRESS or anonymous"),
        ("auth:acme", "write it as auth:acme:0.3,auth:globex:0.7"),
        ("auth:acme:x", "the share of 'auth:acme' is 'x', not a number"),
        ("auth:acme:1,auth:acme:2", "tenant 'auth:acme' appears twice"),
        ("anonymous:0", "not all of them 0"),
    ],
)
def test_a_mix_of_tenants_that_no_policy_could_name_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="--tenant-mix") as raised:
        parse_tenant_mix(text, where="--tenant-mix")
    assert said in str(raised.value)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e-9])
def test_a_rate_that_cannot_be_is_refused_at_once(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"^rate: "):
        synthetic(rate, 1)


def test_other_mistakes_are_refused_at_once_under_their_names() -> None:
    with pytest.raises(ConfigError, match=r"^num_requests: -1 requests"):
        synthetic(1, -1)
    with pytest.raises(ConfigError, match=r"^output_tokens: "):
        synthetic(1, 1, output_tokens="long")
    with pytest.raises(ConfigError, match=r"^class_mix: "):
        synthetic(1, 1, class_mix="bulk")
    with pytest.raises(ConfigError, match=r"^tenant_mix: "):
        synthetic(1, 1, tenant_mix="acme:1")
    with pytest.raises(ConfigError, match=r"^num_requests: 1\.5 requests cannot be made \(a whole number from 0 to 1e\+12\)"):
        synthetic(1, 1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bulky:1", "did you mean 'bulk'?"),
        ("bulk", "no share"),
        ("bulk:x", "the share of 'bulk' is 'x', not a number"),
        ("bulk:", "the share of 'bulk' is '', not a number"),
        ("bulk:1,bulk:2", "twice"),
        ("bulk:0", "not all of them 0"),
        ("bulk:-1,default:2", "0 or more"),
        ("bulk:nan", "0 or more"),
        ("", "unknown class ''"),
    ],
)
def test_the_error_of_a_wrong_mix_names_the_correct_form(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="--class-mix") as raised:
        parse_class_mix(text, where="--class-mix")
    assert said in str(raised.value)


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    """A prefix of 32 tokens is two blocks of 16; later blocks are not shared."""
    bare = [job.request.prompt_tokens for job in synthetic(rate=10, num_requests=3, input_tokens="uniform:100,200")]
    jobs = list(synthetic(rate=10, num_requests=3, input_tokens="uniform:100,200", prefix_tokens=32))

    assert [job.request.prompt_tokens for job in jobs] == [32 + tokens for tokens in bare]
    keys = [job.request.prefix.block_keys(16) for job in jobs if job.request.prefix is not None]
    assert [len(each) for each in keys] == [job.request.prompt_tokens // 16 for job in jobs]
    assert len({tuple(each[:2]) for each in keys}) == 1
    assert len({each[2] for each in keys}) == 3


def test_patience_begins_with_each_arrival() -> None:
    """`constant` arrivals at 2 per second are 500 ms apart; the timeout is 3 s."""
    jobs = list(with_timeout(synthetic(rate=2, num_requests=3, arrival="constant"), 3))

    assert [job.request.deadline for job in jobs] == [job.request.arrival + 3_000_000 for job in jobs]
    assert len({job.request.arrival for job in jobs}) == 3


def play(jobs: object, *, fails: frozenset[int] = frozenset()) -> tuple[list[Job], int, set[str]]:
    """Serve one request after the other, each in 10 µs; those in `fails` fail. Return the jobs in the order of arrival, the
    most programs that had begun and were not over, and those that are over at the end."""
    due, served, open_now, over, most = list(jobs), [], set(), set(), 0
    while due:
        job = min(due, key=lambda job: (job.request.arrival, job.request.id))
        due.remove(job)
        served.append(job)
        program = job.request.program
        assert program not in over
        open_now.add(program)
        most = max(most, len(open_now))
        is_done = job.request.id not in fails
        due += jobs.on_request_end(job.request, is_done, job.output_tokens if is_done else 0, job.request.arrival + 10)
        if is_program_over(jobs, program):
            open_now.discard(program)
            over.add(program)
    return served, most, over


def agents(**given: object) -> object:
    return agent_programs(3, **{"num_programs": 7, "turns": "uniform:2,5", "prefix_tokens": 40, **given})


def test_a_new_program_starts_when_one_is_over() -> None:
    served, most, over = play(agents())
    assert most == 3
    assert len(over) == 7
    assert {job.request.program for job in served} == over


def test_each_prompt_contains_all_before_it() -> None:
    served, _, _ = play(agents())
    whole: dict[str, int] = {}
    for job in served:
        request = job.request
        assert request.prompt_tokens > whole.get(request.program, 40)
        whole[request.program] = request.prompt_tokens + job.output_tokens
        assert request.deadline is None


def test_the_programs_are_the_same_whenever_their_answers_come() -> None:
    prompts: list[dict[str, list[int]]] = []
    for tools in ("1", "quantiles:20,50,900,9000"):
        prompts.append({})
        for job in play(agents(tool_time_ms=tools))[0]:
            prompts[-1].setdefault(job.request.program, []).append(job.request.prompt_tokens)
    common = prompts[0].keys() & prompts[1].keys()
    assert len(common) >= 3
    assert all(prompts[0][program] == prompts[1][program] for program in common)


def test_a_program_that_fails_is_over_and_the_next_one_starts() -> None:
    served, _, over = play(agents(), fails=frozenset({0, 4}))
    assert len(over) == 7
    assert served[0].request.program in over


def test_without_a_number_each_place_has_one_program() -> None:
    assert len(play(agent_programs(4, turns=2))[2]) == 4


def test_tenants_and_classes_are_those_of_programs() -> None:
    served, _, _ = play(agents(tenant_mix="auth:a:1,auth:b:1", class_mix="bulk:1,default:1"))
    tenants = {(job.request.program, job.request.tenant, job.request.priority_class) for job in served}
    assert len(tenants) == 7
    assert {tenant for _, tenant, _ in tenants} == {"auth:a", "auth:b"}


@pytest.mark.parametrize(
    ("programs", "given", "where"),
    [
        (0, {}, "programs"),
        (3, {"num_programs": 0}, "num_programs"),
        (3, {"num_requests": 0}, "num_requests"),
        (3, {"turns": "few"}, "turns"),
        (3, {"tool_time_ms": 0}, "tool_time_ms"),
    ],
)
def test_a_mistake_names_its_argument(programs: int, given: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        agent_programs(programs, **given)
    assert caught.value.where == where


def test_children_begin_with_the_context_of_their_parent_which_waits_for_them() -> None:
    turns = MultiTurn(max_rounds=3, context_growth="accumulate", fork=Fork(children=2, every_rounds=1, rounds_distribution=2))
    client = Client(
        id="a", concurrency=1, sessions=1, input_distribution=10, output_distribution=5, reasoning=Reasoning(multi_turn=turns)
    )
    served, _, over = play(Workload(clients=(client,)).jobs())
    said = [(job.request.program, job.request.parent_program, job.request.prompt_tokens) for job in served]
    parent, first, second = "a-0/1", "a-0/1/1", "a-0/1/2"
    assert said[0] == (parent, "", 10)
    assert sorted(said[1:5]) == [(first, parent, 25), (first, parent, 40), (second, parent, 25), (second, parent, 40)]
    assert said[5] == (parent, "", 25)
    assert [name for name, _, _ in said].count(parent) == 3
    assert len(over) == 5
    keys = {
        name: job.request.prefix.block_keys(15)[0]
        for job, (name, _, _) in zip(served, said, strict=True)
        if job.request.prefix.block_keys(15)
    }
    assert keys[first] == keys[second] == keys[parent]


SECOND = 1_000_000


def job(number: int, at: int) -> Job:
    return Job(Request(id=number, arrival=at, prompt_tokens=5, deadline=at + 300, slo_target=70), 3)


def facts(jobs: list[Job]) -> list[tuple[int, int | None, int | None]]:
    return [(job.request.arrival, job.request.deadline, job.request.slo_target) for job in jobs]


def test_denser_arrivals_keep_their_deadlines() -> None:
    assert facts(list(scale_rate([job(0, 100), job(1, 1_000)], 2))) == [(50, 350, 70), (500, 800, 70)]


def test_slower_times_are_all_slower() -> None:
    assert facts(list(scale_time([job(0, 100), job(1, 1_000)], 2))) == [(200, 800, 140), (2_000, 2_600, 140)]


def test_a_rate_and_its_scale_are_one_number() -> None:
    plain, scaled = list(synthetic(20, 200)), list(scale_rate(synthetic(10, 200), 2))
    assert all(abs(a.request.arrival - b.request.arrival) <= 1 for a, b in zip(plain, scaled, strict=True))


def test_a_reactive_workload_is_not_made_denser_afterwards() -> None:
    with pytest.raises(ConfigError, match="a workload that waits for answers has no arrivals to be scaled"):
        scale_rate(Workload(num_requests=1, clients=[CHAT]).jobs(), 2)


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), 1e9])
def test_factors_that_cannot_be(factor: float) -> None:
    with pytest.raises(ConfigError, match="a factor from 1e-06 to 1e\\+06; 1 changes nothing"):
        scale_time([], factor)


CHAT = Client(id="c", concurrency=5, think_time_us=SECOND, input_distribution="normal:200,50", output_distribution=20)


def test_on_an_instance_twice_as_slow_a_workload_twice_as_slow_takes_twice_as_long() -> None:
    """Steps take whole ms, so nothing is rounded: every instant of the run doubles."""
    workload = Workload(num_requests=60, clients=[CHAT])
    fast = InstanceConfig(latency=LinearLatency(beta=(5_000, 10, 50)))
    slow = replace(fast, latency=LinearLatency(beta=(10_000, 20, 100)))
    one = simulate(workload.jobs(), instance=fast)
    two = simulate(scale_time(workload.jobs(), 2), instance=slow)
    assert (one.finished * 2).tolist() == two.finished.tolist()
    assert (one.arrival * 2).tolist() == two.arrival.tolist()


def test_a_closed_loop_in_short() -> None:
    jobs = iter(closed_loop(3, 10, think_time_ms=30, input_tokens=7, output_tokens="uniform:1,5", class_mix="bulk:1"))
    assert [(job.request.arrival, job.request.prompt_tokens, job.request.priority_class.label) for job in jobs] == [
        (0, 7, "bulk"),
        (10_000, 7, "bulk"),
        (20_000, 7, "bulk"),
    ]


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 100_001}, "concurrency"),
        ({"input_tokens": "x"}, "input_tokens"),
        ({"think_time_ms": -5.0}, "think_time_ms"),
        ({"think_time_ms": float("nan")}, "think_time_ms"),
        ({"think_time_ms": 1e13}, "think_time_ms"),
        ({"num_requests": 10**13}, "num_requests"),
    ],
)
def test_a_closed_loop_that_cannot_be(arguments: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as raised:
        closed_loop(**{"concurrency": 3, "num_requests": 5, **arguments})  # type: ignore[arg-type]
    assert raised.value.where == where


def test_a_closed_loop_without_requests_is_empty() -> None:
    assert list(closed_loop(3, 0)) == []


def test_other_arrival_processes_of_the_plain_workload() -> None:
    assert [job.request.arrival for job in synthetic(4, 3, arrival="constant")] == [250_000, 500_000, 750_000]
    assert list(synthetic(4, 400, arrival="normalized"))[-1].request.arrival == 100 * SECOND
    with pytest.raises(ConfigError, match="arrival: unknown arrival process 'x'"):
        synthetic(4, 3, arrival="x")
