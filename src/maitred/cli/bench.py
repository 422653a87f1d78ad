"""`maitred bench`: a workload replayed against a live endpoint, with the table, report and files of a simulation.

The workload has the flags of `maitred simulate`, and those of `vllm bench serve` under its names (`vllm_names`). With
`--predict` the same requests are simulated afterwards, and both stand side by side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from maitred.cli.config_flags import WORKLOAD
from maitred.cli.flags import SWITCH, command, flag
from maitred.cli.outputs import FileFlags, open_outputs
from maitred.cli.shared_flags import horizon, slo
from maitred.cli.simulate import breakdown, print_warnings
from maitred.cli.terminal import progress_bar, raise_file_limit, request_progress
from maitred.cli.traces import recorded_run, report_skipped
from maitred.cli.vllm_names import (
    GOODPUT_METRICS,
    VllmFlags,
    check_percentiles,
    parse_ramp,
    print_percentiles,
    vllm_slo,
    vllm_workload,
    write_vllm_result,
)
from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from maitred.study.candidate import Candidate
    from maitred.study.live.benchmark import BenchPlan, LiveRun
    from maitred.workload import Job, Trace, Workload

_ENDPOINT: Final = "Endpoint"
_SENDING: Final = "How requests are sent"
_PREDICTION: Final = "Prediction"
_TO_BE_FOUND: Final = "http://discovered.invalid"
"""Stands where a URL must stand until the first backend is found (`BenchPlan.endpoint`)."""
_INTERRUPTED: Final = 130
_MOST_PROBLEMS: Final = 5


@dataclass(frozen=True, kw_only=True)
class BenchFlags(FileFlags, VllmFlags):
    """The flags that stand for no single key."""

    url: Annotated[str | None, typer.Argument(help="The endpoint, as http://host:port.", metavar="URL", show_default=False)] = (
        None
    )
    base_url: Annotated[str | None, flag(_ENDPOINT, "The same as URL.", "URL")] = None
    discover: Annotated[
        list[str] | None,
        flag(
            _ENDPOINT,
            "A source of backends, as of maitred serve, instead of URL: requests go to those that are there, in turn. "
            "Repeatable.",
            "SOURCE",
        ),
    ] = None
    endpoint: Annotated[str, flag(_ENDPOINT, "/v1/completions, or /v1/chat/completions. Default: /v1/completions.", "PATH")] = (
        "/v1/completions"
    )
    model: Annotated[
        str | None,
        flag(
            _ENDPOINT,
            "The model to ask for. Default: the first one that the endpoint serves.",
            "NAME",
            alias="--served-model-name",
        ),
    ] = None
    header: Annotated[
        list[str] | None,
        flag(_ENDPOINT, "A header of every request. OPENAI_API_KEY gives an Authorization. Repeatable.", "KEY=VALUE"),
    ] = None
    tokenizer: Annotated[
        Path | None,
        flag(
            _ENDPOINT,
            "Its tokenizer.json, or the model's folder: prompts of exactly the workload's lengths. Default: none.",
            "FILE",
        ),
    ] = None
    tenant_header: Annotated[str, flag(_ENDPOINT, "The header for tenants. Default: x-smg-tenant-id.", "NAME")] = (
        "x-smg-tenant-id"
    )
    max_concurrency: Annotated[
        int | None,
        flag(_SENDING, "Most requests in flight. With --request-rate inf latencies count from sending. Default: none.", "N"),
    ] = None
    no_stream: Annotated[bool | None, flag(_SENDING, "No answer streams.", SWITCH)] = None
    no_ignore_eos: Annotated[
        bool | None, flag(_SENDING, "Let answers end by themselves; the workload's lengths are their limits.", SWITCH)
    ] = None
    extra_body: Annotated[str | None, flag(_SENDING, "Fields of every body, such as '{\"temperature\": 0}'.", "JSON")] = None
    num_warmups: Annotated[int, flag(_SENDING, "Requests before the run, which do not count. Default: 0.", "N")] = 0
    predict: Annotated[
        Path | None, flag(_PREDICTION, "A file with the sections cluster, instance, ...: simulate the same requests.", "FILE")
    ] = None


@command(BenchFlags, *WORKLOAD)
def run(flags: BenchFlags) -> None:
    """Replay a workload against a live endpoint, and print the latencies and rates that its users see.

    The endpoint speaks OpenAI's API: a gateway of ours, vLLM, SGLang, others. Requests go out at their planned instants,
    whether or not earlier ones have answers, and latencies count from there. Ctrl-C keeps what is done.
    """
    from rich.console import Console

    from maitred.report import By, assess, fitness, print_run, summarise
    from maitred.study.live import live_setup
    from maitred.study.live.benchmark import run_benchmark
    from maitred.workload.load import describe

    sends_at_once = flags.values.get("workload.rate") == inf
    flags = replace(flags, values={**flags.values, **vllm_workload(flags)})
    plan, per, load = _plan(flags, sends_at_once), breakdown(flags), _LiveLoad(flags)
    check_percentiles(flags)
    raise_file_limit()
    weights, warmup = flags.weights, flags.warmup_rule
    with ExitStack() as stack:
        jobs, trace, workload = load.open(stack)
        targets = vllm_slo(flags) or slo(flags, trace or workload)
        predictor = _predictor(flags)
        files = open_outputs(flags, {"--workload-spec": flags.spec_file, "--predict": flags.predict}, trace, stack)
        recording = stack.enter_context(recorded_run(jobs, flags.trace_target, summary_only=False))
        with progress_bar(quiet=bool(flags.quiet), doing="measuring") as show:
            live = run_benchmark(recording.jobs, plan, request_progress(flags.load, trace, show))
        recording.results = live.results
        summary = summarise(live.results, targets, [*By] if flags.metrics_file or flags.report else [per])
        score = None if weights is None else fitness(summary, weights)
        command = f"maitred bench {flags.command_line}"
        setup = live_setup(plan, live, seed=flags.run_seed, workload=describe(flags.load), command=command)
        assessment = assess(live.results, summary, setup, warmup)
        files.write(flags, live.results, summary, setup, assessment, score)
        write_vllm_result(flags, live, summary)
    print_warnings([*live.warnings, *_problems(live), *summary.warnings])
    if trace:
        report_skipped(trace)
    if not (flags.quiet or flags.prints_a_file):
        print_run(summary, assessment, Console(), per)
        typer.echo(_about_sender(live))
        if score is not None:
            typer.echo(score.in_words())
        print_percentiles(flags, live.results)
    if predictor is not None and not flags.prints_a_file:
        predictor(load, live)
    if live.was_stopped:
        raise typer.Exit(_INTERRUPTED)


class _LiveLoad:
    """The workload of the flags, which can be opened again for a prediction."""

    def __init__(self, flags: BenchFlags) -> None:
        self.flags = flags

    def open(self, stack: ExitStack) -> tuple[Iterable[Job], Trace | None, Workload | None]:
        """Open the workload, until `stack` is closed. Raises ConfigError."""
        from maitred.workload.load import as_flag, build_jobs, open_load_trace, read_workload_spec

        flags, load = self.flags, self.flags.load
        workload = read_workload_spec(load, as_flag)
        trace = stack.enter_context(open_load_trace(load, as_flag)) if load.trace is not None else None
        if flags.ramp_up_strategy is not None:
            return _ramped_jobs(flags, flags.ramp_up_strategy), None, None
        return build_jobs(load, flags.seed, trace, workload, as_flag), trace, workload


def _ramped_jobs(flags: BenchFlags, strategy: str) -> Iterable[Job]:
    """Return the requests at a rate that grows over the run. Raises ConfigError."""
    from maitred.workload.load import as_flag, build_jobs
    from maitred.workload.transforms import ramp_up

    how, start, end = parse_ramp(flags, strategy)
    count = flags.load.num_requests
    if flags.load.rate is None or count is None:
        hint = "it goes with --request-rate and --num-prompts"
        raise ConfigError("only requests at a rate can ramp up", where="--ramp-up-strategy", hint=hint)
    # The ramp stretches time, so the requests come one per second on its own clock.
    at_one_per_second = replace(flags, values={**flags.values, "workload.rate": 1.0})
    jobs = build_jobs(at_one_per_second.load, flags.seed, None, None, as_flag)
    return ramp_up(jobs, count, how, start, end)


def _plan(flags: BenchFlags, sends_at_once: bool) -> BenchPlan:
    """Return how the flags want requests to be sent; `sends_at_once` says that all are planned at once. Raises ConfigError."""
    from maitred.emulator.clients.prompts import tokenizer_words
    from maitred.emulator.clients.sender import SendTarget
    from maitred.study.live.benchmark import BenchPlan, check_plan
    from maitred.study.live.discovered import check_sources
    from maitred.wire.origin import Origin

    _check_endpoint(flags)
    where = "URL" if flags.base_url is None else "--base-url"
    sources = tuple(flags.discover or ())
    check_sources(sources, where="--discover")
    url = _TO_BE_FOUND if sources else (flags.url or flags.base_url or "").rstrip("/").removesuffix("/v1")
    plan = BenchPlan(
        endpoint=SendTarget(
            origin=Origin.parse(url, where=where),
            path=flags.endpoint,
            headers=tuple(_headers(flags)),
            tenant_header=flags.tenant_header.lower().encode("latin-1", "replace"),
        ),
        discover=sources,
        model=flags.model or "",
        max_concurrency=flags.max_concurrency,
        is_closed=sends_at_once and flags.max_concurrency is not None,
        num_warmups=flags.num_warmups,
        ignore_eos=not flags.no_ignore_eos,
        stream=not flags.no_stream,
        extra_body=_extra_body(flags.extra_body),
        words=() if flags.tokenizer is None else tokenizer_words(flags.tokenizer, where="--tokenizer"),
        horizon=horizon(flags),
    )
    check_plan(plan)
    return plan


def _check_endpoint(flags: BenchFlags) -> None:
    if flags.url is not None and flags.url.partition(":")[0] in GOODPUT_METRICS:  # vllm bench serve has spaces there
        hint = "the targets of --goodput have commas between them: --goodput ttft:500,tpot:50"
        raise ConfigError(f"{flags.url!r} is no URL", hint=hint)
    if flags.discover and (flags.url is not None or flags.base_url is not None):
        raise ConfigError("the backends are those of --discover, or the one of URL", hint="leave one of them out")
    if not flags.discover and (flags.url is None) == (flags.base_url is None):
        problem = "there is no endpoint" if flags.url is None else "URL and --base-url are two names for one thing"
        raise ConfigError(problem, hint="maitred bench http://localhost:8000 --rate 5 --num-requests 100")
    if not flags.endpoint.endswith("completions") or not flags.endpoint.startswith("/"):
        hint = "/v1/completions or /v1/chat/completions"
        raise ConfigError(f"requests cannot be made for {flags.endpoint}", where="--endpoint", hint=hint)


def _headers(flags: BenchFlags) -> Iterator[tuple[bytes, bytes]]:
    key = os.environ.get("OPENAI_API_KEY", "")
    named = [header.partition("=") for header in flags.header or ()]
    if key and not any(name.strip().lower() == "authorization" for name, _, _ in named):
        yield b"authorization", f"Bearer {key}".encode()
    for name, equals, value in named:
        if not (equals and name.strip().isascii() and name.strip() and "\n" not in value and "\r" not in value):
            raise ConfigError(f"{name + equals + value!r} is no header", where="--header", hint="such as x-trace=1")
        yield name.strip().lower().encode(), value.strip().encode()


def _extra_body(text: str | None) -> bytes:
    """Return the fields of a JSON object without its braces, after a comma. Raises ConfigError."""
    import msgspec

    from maitred.core.errors import JSON_ERRORS

    if text is None:
        return b""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except JSON_ERRORS as error:
        hint = 'such as {"temperature": 0}'
        raise ConfigError(f"{text!r} is no JSON object", where="--extra-body", hint=hint) from error
    return b"".join(b"," + msgspec.json.encode(name) + b":" + bytes(value) for name, value in fields.items())


def _problems(live: LiveRun) -> Iterator[str]:
    """Yield what went wrong, the most frequent first."""
    shown = list(live.problems.items())
    for problem, count in shown[:_MOST_PROBLEMS]:
        yield f"{count:,} {'request' if count == 1 else 'requests'}: {problem}"
    if len(shown) > _MOST_PROBLEMS:
        yield f"{len(shown) - _MOST_PROBLEMS:,} further kinds of failure"


def _about_sender(live: LiveRun) -> str:
    late, scale = live.lateness, live.scale
    if late is None:
        return "nothing was sent"
    text = f"sent late by {late.p50 / 1000:.1f} ms (p50), {late.p99 / 1000:.1f} ms (p99), {late.worst / 1000:.1f} ms (worst)"
    return f"{text}; a prompt has {scale.per_word:.2f} tokens per word and {scale.added:.0f} more"


def _predictor(flags: BenchFlags) -> Callable[[_LiveLoad, LiveRun], None] | None:
    """Return the function that prints a prediction, or None without --predict. Reads the file at once, so that mistakes show
    early."""
    if flags.predict is None:
        return None
    if flags.max_concurrency is not None:
        hint = "--concurrency N sends from N users, which a simulation knows"
        raise ConfigError("a simulation does not know it", where="--max-concurrency", hint=f"leave out --predict; {hint}")
    from maitred.study.candidate import Candidate

    return partial(_predict_and_print, Candidate.from_yaml(flags.predict, env=os.environ), flags.run_seed)


def _predict_and_print(candidate: Candidate, seed: int, load: _LiveLoad, live: LiveRun) -> None:
    from rich.console import Console

    from maitred.cli.validation import prediction_table, summary_lines
    from maitred.report.table import print_table
    from maitred.study.calibration.validation import predict

    with ExitStack() as stack:
        jobs, _, _ = load.open(stack)
        found = list(predict(jobs, candidate, live.results, seed=seed))
    print_table(prediction_table(found), Console())
    for line in summary_lines(found[0]):
        typer.echo(line)
