"""Agent programs as a closed loop: a number of programs at once, each a session of turns; a new one starts when one ends.

    turn 1    prompt: shared prefix + start context
    tool      works for a time after each response
    turn k    prompt: everything before, the last response included + the tokens that the tool has added

    agent_programs(24, num_programs=200, turns="uniform:30,60", start_tokens="lognormal:3000,2000", input_tokens=400,
                   output_tokens=150, tool_time_ms="quantiles:300,2000,10000,60000")

Lengths and times are written as lengths are (`lengths`). Each is drawn from a random stream of its own, so that the programs
are the same under every policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from maitred.core.errors import ConfigError
from maitred.workload.job import Job
from maitred.workload.lengths import parse_lengths
from maitred.workload.spec import MAX_REQUESTS, Client, Workload
from maitred.workload.spec_clients import MAX_MEMBERS, MAX_SESSIONS
from maitred.workload.spec_parts import MAX_ROUNDS, MultiTurn, Reasoning
from maitred.workload.transforms import parse_class_mix, parse_tenant_mix, with_class_mix, with_tenant_mix

DEFAULT_TURNS: Final = "uniform:20,60"
DEFAULT_START: Final = "lognormal:3000,2000"
DEFAULT_TOOL_TIME: Final = "lognormal:1000,2000"


def agent_programs(
    programs: int,
    *,
    num_programs: int | None = None,
    num_requests: int | None = None,
    seed: int = 42,
    turns: str | int = DEFAULT_TURNS,
    start_tokens: str | int = DEFAULT_START,
    input_tokens: str | int = "normal:512,256",
    output_tokens: str | int = "normal:512,256",
    tool_time_ms: str | int = DEFAULT_TOOL_TIME,
    prefix_tokens: int = 0,
    class_mix: str | None = None,
    tenant_mix: str | None = None,
) -> Iterable[Job]:
    """Return the requests of agent programs, `programs` of which run at once.

    It ends after `num_programs` programs or `num_requests` requests; without either, each place has one program. All prompts
    begin with the same `prefix_tokens`; `start_tokens` more belong to the program, and each later turn adds `input_tokens`. A
    program is of one class and of one tenant, drawn from the mixes. One of which a request fails is over, and the next starts.

    Raises ConfigError at the call; its `where` is the name of the argument.
    """
    if not 1 <= programs <= MAX_MEMBERS:
        raise ConfigError(f"there cannot be {programs} programs at once", where="programs", hint=f"from 1 to {MAX_MEMBERS:,}")
    if num_programs is None and num_requests is None:
        num_programs = programs
    _check_count("num_programs", num_programs, MAX_SESSIONS, "programs")
    _check_count("num_requests", num_requests, MAX_REQUESTS, "requests")
    lengths = {"turns": turns, "start_tokens": start_tokens, "input_tokens": input_tokens, "output_tokens": output_tokens}
    # The workload would name the key of a file; here the error names the argument.
    for where, given in {**lengths, "tool_time_ms": tool_time_ms}.items():
        parse_lengths(given, where=where)
    rounds = MultiTurn(
        max_rounds=MAX_ROUNDS,
        rounds_distribution=turns,
        first_input_distribution=start_tokens,
        think_time_ms_distribution=tool_time_ms,
        context_growth="accumulate",
    )
    agents = _agents(programs, num_programs or MAX_SESSIONS, input_tokens, output_tokens, prefix_tokens, rounds)
    jobs: Iterable[Job] = Workload(clients=(agents,), num_requests=num_requests or 0, seed=seed).jobs()
    if class_mix is not None:
        jobs = with_class_mix(jobs, parse_class_mix(class_mix, where="class_mix"), seed, by_program=True)
    if tenant_mix is not None:
        jobs = with_tenant_mix(jobs, parse_tenant_mix(tenant_mix, where="tenant_mix"), seed, by_program=True)
    return jobs


def _agents(
    programs: int, sessions: int, input_tokens: str | int, output_tokens: str | int, prefix_tokens: int, rounds: MultiTurn
) -> Client:
    """Return the client of which `programs` sessions run at once, `sessions` in all."""
    return Client(
        id="agents",
        concurrency=programs,
        sessions=sessions,
        input_distribution=input_tokens,
        output_distribution=output_tokens,
        prefix_group="prefix" if prefix_tokens else "",
        prefix_length=prefix_tokens,
        timeout=0,
        reasoning=Reasoning(multi_turn=rounds),
    )


def _check_count(where: str, count: int | None, most: int, noun: str) -> None:
    if count is not None and not 1 <= count <= most:
        raise ConfigError(f"{count} {noun} cannot be made", where=where, hint=f"from 1 to {most:.0e}")
