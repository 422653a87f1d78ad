"""Plain synthetic workloads: one stream of requests at a rate, users, or agent programs. `Workload` (`spec`) describes all
else.

    synthetic        requests at a rate, whatever becomes of the responses
    closed_loop      users, each with one request at a time
    agent_programs   a number of programs at once, each a session of turns; another one starts when one ends:

        turn 1    prompt: shared prefix + start context
        tool      works for a time after each response
        turn k    prompt: everything before, the last response included + the tokens that the tool has added

        agent_programs(24, num_programs=200, turns="uniform:30,60", start_tokens="lognormal:3000,2000", input_tokens=400,
                       output_tokens=150, tool_time_ms="quantiles:300,2000,10000,60000")

Each quantity draws from a random stream of its own, with a name that derives from the seed (`42/arrivals`, ...). A change of
one distribution leaves the draws of the others as they are: two runs that differ in the lengths of the answers have the same
arrivals.

Its lengths may be described as in BLIS, by the name of a kind of work (`chatbot`) and flags that override parts of it. The
lengths of prompts and of answers come from the first of these that is given:

    input_tokens: lognormal:500,200                    a distribution; it excludes the keys below
    prompt_tokens_stdev, _min, _max, and a mean        BLIS's clamped normal; parts that are missing come from the preset
    workload: chatbot                                  the preset alone
    (nothing)                                          normal:512,256

Example: `workload: chatbot` with `output_tokens: 300` gives prompts of gaussian:256,100,2,800 and answers of
gaussian:300,100,1,1024.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.request import PriorityClass, Request
from maitred.core.units import SECOND, from_ms, to_ms
from maitred.workload.arrivals import ArrivalProcess, parse_arrival_process
from maitred.workload.job import Job, RepeatableJobs
from maitred.workload.lengths import MAX_TOKENS, LengthDistribution, parse_lengths
from maitred.workload.prefix_keys import GroupPrefixKeys, group_number
from maitred.workload.spec import MAX_REQUESTS, Client, Workload
from maitred.workload.spec_clients import MAX_MEMBERS, MAX_SESSIONS
from maitred.workload.spec_parts import MAX_DURATION, MAX_RATE, MAX_ROUNDS, MIN_RATE, MultiTurn, Reasoning
from maitred.workload.transforms import ClassMix, TenantMix, parse_mixes, with_mixes, with_tenant_mix

_DEFAULT_LENGTHS: Final = "normal:512,256"
_DEFAULT_TURNS: Final = "uniform:20,60"
_DEFAULT_START: Final = "lognormal:3000,2000"
_DEFAULT_TOOL_TIME: Final = "lognormal:1000,2000"


def synthetic(
    rate: float,
    num_requests: int,
    *,
    seed: int = 42,
    input_tokens: str | int | LengthDistribution = 512,
    output_tokens: str | int | LengthDistribution = 128,
    prefix_tokens: int = 0,
    arrival: str | ArrivalProcess = "poisson",
    class_mix: str | ClassMix | None = None,
    tenant_mix: str | TenantMix | None = None,
) -> Iterable[Job]:
    """Return `num_requests` jobs that arrive at `rate` requests per second on average: the same ones each time they are read.

    `arrival` is the arrival process (see `arrivals`): `poisson`, `gamma:2.5`, ... Lengths are in tokens, as users write them
    (see `lengths`). All prompts begin with the same `prefix_tokens`, which are added to `input_tokens`. `class_mix`
    (`interactive:0.3,bulk:0.7`) gives the shares of classes; without it every request has the class `default`. `tenant_mix`
    (`auth:acme:0.3,auth:globex:0.7`) gives the shares of tenants; without it requests have no tenant.

    Raises ConfigError at the call, not at the first job; its `where` is the name of the argument.
    """
    if type(rate) not in (int, float) or not MIN_RATE <= rate <= MAX_RATE:
        hint = f"a number between {MIN_RATE:g} and {MAX_RATE:g} requests per second"
        shown = f"{rate:g}" if type(rate) in (int, float) else repr(rate)
        raise ConfigError(f"a rate of {shown} cannot be used", where="rate", hint=hint)
    count = _check_num_requests(num_requests)
    prompts = _lengths_of(input_tokens, "input_tokens")
    answers = _lengths_of(output_tokens, "output_tokens")
    process = parse_arrival_process(arrival, where="arrival") if isinstance(arrival, str) else arrival
    mixes = parse_mixes(class_mix, tenant_mix)
    shared = _check_prefix_tokens(prefix_tokens)

    def make() -> Iterable[Job]:
        jobs: Iterable[Job] = _generate_jobs(SECOND / rate, process, count, seed, prompts, answers, mixes.classes)
        jobs = _prepend_shared_prefix(jobs, shared) if shared else jobs
        return jobs if mixes.tenants is None else with_tenant_mix(jobs, mixes.tenants, seed)

    return RepeatableJobs(make)


def _lengths_of(given: str | float | LengthDistribution | None, where: str) -> LengthDistribution:
    """Return the distribution, which may be written as users do. Raises ConfigError for what is none."""
    return parse_lengths(given, where=where) if given is None or isinstance(given, str | int | float) else given


def closed_loop(
    concurrency: int,
    num_requests: int,
    *,
    think_time_ms: float = 0.0,
    seed: int = 42,
    input_tokens: str | int = 512,
    output_tokens: str | int = 128,
    prefix_tokens: int = 0,
    class_mix: str | ClassMix | None = None,
    tenant_mix: str | TenantMix | None = None,
) -> Iterable[Job]:
    """Return `num_requests` jobs of `concurrency` users. Each user sends a request, waits for its answer, thinks, and sends
    again.

    The other arguments are those of `synthetic`. A user sends no more when a request has failed. The timeout is 300 s (BLIS).

    Raises ConfigError at the call.
    """
    mixes = parse_mixes(class_mix, tenant_mix)
    _check_lengths(input_tokens=input_tokens, output_tokens=output_tokens)
    count = _check_num_requests(num_requests)
    _check_users(concurrency, think_time_ms)
    users = Client(
        id="users",
        concurrency=concurrency,
        think_time_us=from_ms(think_time_ms),
        input_distribution=input_tokens,
        output_distribution=output_tokens,
        prefix_group="prefix" if _check_prefix_tokens(prefix_tokens) else "",
        prefix_length=prefix_tokens,
    )
    return with_mixes(_jobs_of(users, count, seed), mixes, seed) if count else ()


def agent_programs(
    programs: int,
    *,
    num_programs: int | None = None,
    num_requests: int | None = None,
    seed: int = 42,
    turns: str | int = _DEFAULT_TURNS,
    start_tokens: str | int = _DEFAULT_START,
    input_tokens: str | int = _DEFAULT_LENGTHS,
    output_tokens: str | int = _DEFAULT_LENGTHS,
    tool_time_ms: str | int = _DEFAULT_TOOL_TIME,
    prefix_tokens: int = 0,
    class_mix: str | ClassMix | None = None,
    tenant_mix: str | TenantMix | None = None,
) -> Iterable[Job]:
    """Return the requests of agent programs, `programs` of which run at once.

    It ends after `num_programs` programs or `num_requests` requests; without either, each place has one program. All prompts
    begin with the same `prefix_tokens`; `start_tokens` more belong to the program, and each later turn adds `input_tokens`. A
    program is of one class and of one tenant, drawn from the mixes. One of which a request fails is over, and the next starts.
    Each length and time is drawn from a random stream of its own, so that the programs are the same under every policy.

    Raises ConfigError at the call; its `where` is the name of the argument.
    """
    if not 1 <= programs <= MAX_MEMBERS:
        raise ConfigError(f"there cannot be {programs} programs at once", where="programs", hint=f"from 1 to {MAX_MEMBERS:,}")
    if num_programs is None and num_requests is None:
        num_programs = programs
    _check_count("num_programs", num_programs, MAX_SESSIONS, "programs")
    _check_count("num_requests", num_requests, MAX_REQUESTS, "requests")
    _check_lengths(
        turns=turns,
        start_tokens=start_tokens,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        tool_time_ms=tool_time_ms,
    )
    mixes = parse_mixes(class_mix, tenant_mix)
    rounds = MultiTurn(
        max_rounds=MAX_ROUNDS,
        rounds_distribution=turns,
        first_input_distribution=start_tokens,
        think_time_ms_distribution=tool_time_ms,
        context_growth="accumulate",
    )
    agents = Client(
        id="agents",
        concurrency=programs,
        sessions=num_programs or MAX_SESSIONS,
        input_distribution=input_tokens,
        output_distribution=output_tokens,
        prefix_group="prefix" if _check_prefix_tokens(prefix_tokens) else "",
        prefix_length=prefix_tokens,
        timeout=0,
        reasoning=Reasoning(multi_turn=rounds),
    )
    return with_mixes(_jobs_of(agents, num_requests or 0, seed), mixes, seed, by_program=True)


def _jobs_of(client: Client, num_requests: int, seed: int) -> Iterable[Job]:
    return Workload(clients=(client,), num_requests=num_requests, seed=seed).jobs()


def _check_lengths(**lengths: str | int) -> None:
    """Raise ConfigError for lengths that cannot be read, by argument. A `Workload` would name the key of a file."""
    for where, given in lengths.items():
        parse_lengths(given, where=where)


def _check_count(where: str, count: int | None, most: int, noun: str) -> None:
    if count is not None and not 1 <= count <= most:
        raise ConfigError(f"{count} {noun} cannot be made", where=where, hint=f"from 1 to {most:.0e}")


def _check_users(concurrency: int, think_time_ms: float) -> None:
    if not 1 <= concurrency <= MAX_MEMBERS:
        raise ConfigError(f"there cannot be {concurrency} users", where="concurrency", hint=f"from 1 to {MAX_MEMBERS:,}")
    if not 0 <= think_time_ms <= to_ms(MAX_DURATION):
        hint = f"from 0 to {to_ms(MAX_DURATION):g}"
        raise ConfigError(f"{think_time_ms:g} ms cannot be thought", where="think_time_ms", hint=hint)


def _check_prefix_tokens(tokens: int) -> int:
    if not 0 <= tokens <= MAX_TOKENS:
        hint = f"from 0 to {MAX_TOKENS:,}"
        raise ConfigError(f"prompts cannot begin with {tokens} tokens", where="prefix_tokens", hint=hint)
    return tokens


def _prepend_shared_prefix(jobs: Iterable[Job], tokens: int) -> Iterator[Job]:
    group = group_number("prefix")
    for job in jobs:
        request, prompt = job.request, tokens + job.request.prompt_tokens
        prefix = GroupPrefixKeys(group, tokens, request.id, prompt)
        yield Job(replace(request, prompt_tokens=prompt, prefix=prefix), job.output_tokens)


def _check_num_requests(num_requests: int) -> int:
    try:
        count = operator.index(num_requests)
    except TypeError:
        count = -1
    if not 0 <= count <= MAX_REQUESTS:
        hint = f"a whole number from 0 to {MAX_REQUESTS:.0e}"
        raise ConfigError(f"{num_requests} requests cannot be made", where="num_requests", hint=hint)
    return count


def _generate_jobs(
    mean_gap: float,
    process: ArrivalProcess,
    count: int,
    seed: int,
    prompts: LengthDistribution,
    answers: LengthDistribution,
    mix: ClassMix | None,
) -> Iterator[Job]:
    from maitred.workload.columns import draw_arrivals, draw_lengths

    streams = ("arrivals", "input_tokens", "output_tokens", "classes")
    arrival_stream, prompt_stream, answer_stream, class_stream = (Random(f"{seed}/{stream}") for stream in streams)
    number = 0
    for instants in draw_arrivals(process, arrival_stream, mean_gap, count):
        rows = len(instants)
        lengths = draw_lengths(prompts, prompt_stream, rows), draw_lengths(answers, answer_stream, rows)
        classes = repeat(PriorityClass.DEFAULT) if mix is None else [mix.draw(class_stream.random) for _ in range(rows)]
        for at, prompt, answer, priority_class in zip(instants, *lengths, classes, strict=False):
            yield Job(Request(id=number, arrival=at, prompt_tokens=prompt, priority_class=priority_class), answer)
            number += 1


class ClampedNormalParams(msgspec.Struct, frozen=True):
    """Lengths in tokens, as BLIS's flags describe them: normal, clamped to `low`..`high`."""

    mean: float
    deviation: float
    low: int
    high: int

    def __str__(self) -> str:
        """Return the distribution as users write it."""
        return f"gaussian:{self.mean:g},{self.deviation:g},{self.low},{self.high}"


class LengthPreset(msgspec.Struct, frozen=True):
    """A kind of work: the lengths of its prompts and of its answers."""

    prompts: ClampedNormalParams
    outputs: ClampedNormalParams


DEFAULT_PRESET: Final = LengthPreset(ClampedNormalParams(512, 256, 2, 7000), ClampedNormalParams(512, 256, 2, 7000))
"""BLIS's default."""

PRESETS: Final[Mapping[str, LengthPreset]] = {
    "distribution": DEFAULT_PRESET,
    "chatbot": LengthPreset(ClampedNormalParams(256, 100, 2, 800), ClampedNormalParams(256, 100, 1, 1024)),
    "contentgen": LengthPreset(ClampedNormalParams(1024, 150, 10, 2048), ClampedNormalParams(1024, 200, 10, 2048)),
    "summarization": LengthPreset(ClampedNormalParams(4096, 500, 100, 8192), ClampedNormalParams(512, 150, 10, 2048)),
    "multidoc": LengthPreset(ClampedNormalParams(10240, 1200, 500, 20480), ClampedNormalParams(1536, 300, 50, 4096)),
}


def length_arguments(values: Mapping[str, Any], spell: Callable[[str], str]) -> dict[str, str]:
    """Return the arguments `input_tokens` and `output_tokens` of a synthetic workload. `values` are those of the keys of a
    load, None where a key is not given; `spell` returns what the user calls a key. Raises ConfigError for an unknown preset,
    for keys that exclude each other, and for a preset that has no effect."""
    kind = values["workload"]
    if kind is None:
        return _lengths_by_preset(values, None, spell)
    if kind not in PRESETS:
        raise ConfigError(f"unknown kind of workload {kind!r}", where=spell("workload"), hint=nearest_name_hint(kind, PRESETS))
    lengths = _lengths_by_preset(values, PRESETS[kind], spell)
    if lengths == _lengths_by_preset(values, None, spell) and PRESETS[kind] != DEFAULT_PRESET:
        hint = f"leave it out, or {spell('input_tokens')} or {spell('output_tokens')}"
        raise ConfigError("it has no effect: the lengths are said without it", where=spell("workload"), hint=hint)
    return lengths


def _lengths_by_preset(values: Mapping[str, Any], preset: LengthPreset | None, spell: Callable[[str], str]) -> dict[str, str]:
    prompts, outputs = (None, None) if preset is None else (preset.prompts, preset.outputs)
    return {
        "input_tokens": _length_argument(values, "prompt_tokens", values["input_tokens"], prompts, spell),
        "output_tokens": _length_argument(values, "output_tokens", values["output_tokens"], outputs, spell),
    }


def _length_argument(
    values: Mapping[str, Any],
    prefix: str,
    given: str | int | None,
    preset: ClampedNormalParams | None,
    spell: Callable[[str], str],
) -> str:
    """Return one distribution as users write it. `prefix` begins the names of BLIS's keys for its parts."""
    keys = {"deviation": f"{prefix}_stdev", "low": f"{prefix}_min", "high": f"{prefix}_max"}
    parts = {part: value for part, key in keys.items() if (value := values[key]) is not None}
    mean = None if given is None else _as_number(given)
    if not parts and (preset is None or (given is not None and mean is None)):
        return _DEFAULT_LENGTHS if given is None else str(given)
    if given is not None and mean is None:
        first = spell(keys[next(iter(parts))])
        raise ConfigError(f"{given!r} has a spread of its own", where=first, hint="it goes with a mean, such as 512")
    # Both halves of the default preset are equal, so it does not matter which of them stands in.
    lengths = str(replace(preset or DEFAULT_PRESET.prompts, **parts, **({} if mean is None else {"mean": mean})))
    parse_lengths(lengths, where=", ".join(spell(keys[part]) for part in parts) or spell("workload"))
    return lengths


def _as_number(text: str | int) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
