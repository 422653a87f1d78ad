"""Agent programs in a closed loop: how many run at once, what their prompts contain, and when they are over."""

from __future__ import annotations

import pytest

from maitred.core.errors import ConfigError
from maitred.workload import Client, Job, Workload
from maitred.workload.agent_programs import agent_programs
from maitred.workload.job import is_program_over
from maitred.workload.spec_parts import Fork, MultiTurn, Reasoning


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
