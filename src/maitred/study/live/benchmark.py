"""A run against a live endpoint, from the first look at it to a `Result`.

    0. with `BenchPlan.discover`: which backends there are; the first one that answers is asked in steps 1 and 2
    1. which model it serves, unless one is named (`/v1/models`)
    2. two short requests for one token: how it counts the tokens of our texts (`TokenScale`)
    3. warm-up requests, which do not count
    4. the workload, each request at its planned instant
    5. the rows of all requests; after Ctrl-C those that were sent, the open ones as unfinished

What the endpoint refuses in steps 1 to 3 ends the run with one error, before the workload.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec
import uvloop
from msgspec.structs import replace

from maitred.core.errors import JSON_ERRORS, ConfigError
from maitred.core.units import Micros, to_seconds
from maitred.emulator.clients.destinations import Destinations
from maitred.emulator.clients.prompts import WORDS, PromptWriter, TokenScale
from maitred.emulator.clients.schedule import SendSchedule
from maitred.emulator.clients.sender import LoadSender, SendTarget, SentRequest
from maitred.sim import Results
from maitred.study.live.discovered import BenchError, discovered
from maitred.study.live.observed import Lateness, LengthCheck, Observation
from maitred.wire.client import UpstreamClient
from maitred.wire.errors import UpstreamError
from maitred.wire.origin import Origin
from maitred.wire.unix_signals import handle_signals
from maitred.workload import Job, synthetic
from maitred.workload.transforms import map_jobs

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_SHORT, _LONG = 64, 512
"""Words of the two requests that show how the endpoint counts."""
MODELS_SECS: Final = 10.0
"""Seconds within which an endpoint has to say which models it serves."""
_WARMUP_RATE: Final = 20.0
_MAX_SHOWN: Final = 300


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a workload is sent."""

    endpoint: SendTarget
    """Where requests go; with `discover` its origin is that of the first backend that is found, whatever it says here."""
    discover: tuple[str, ...] = ()
    """Sources of backends, as of `gateway.discover`: requests go to those that are there, in turn."""
    model: str = ""
    """The model to name in requests; empty: the first that the endpoint serves."""
    max_concurrency: int | None = None
    """Most requests in flight; further ones wait, and their latency counts from the planned instant all the same, unless the
    loop is closed."""
    is_closed: bool = False
    """Whether all requests are planned at once, so that `max_concurrency` is the number of clients of a closed loop: each sends
    when its last answer has come, and latencies count from there."""
    num_warmups: int = 0
    ignore_eos: bool = True
    """Whether answers are to have exactly the length of the workload."""
    stream: bool = True
    """Whether answers stream; otherwise none does, whatever the workload says."""
    extra_body: bytes = b""
    """Further fields of every body, as JSON without the braces, after a comma."""
    horizon: Micros | None = None
    """When the run is stopped, in µs."""
    words: tuple[str, ...] = ()
    """The words of prompts, of one token each in the endpoint's tokenizer; empty: those that nearly every one has."""


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was measured."""

    results: Results
    lateness: Lateness | None
    model: str
    scale: TokenScale
    problems: dict[str, int]
    """What went wrong, with the number of requests, the most frequent first."""
    was_stopped: bool
    """Whether Ctrl-C ended it early."""
    warnings: tuple[str, ...]


def run_benchmark(jobs: Iterable[Job], plan: BenchPlan, progress: Callable[[int], None] | None = None) -> LiveRun:
    """Send `jobs`, and return what came of them. `progress` is called with the number of requests that have ended.

    The first SIGINT or SIGTERM stops the run and keeps what is done; a second one cancels it. Raises BenchError if the endpoint
    cannot be measured, and ConfigError for jobs that cannot be read.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(benchmark(jobs, plan, progress))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def benchmark(jobs: Iterable[Job], plan: BenchPlan, progress: Callable[[int], None] | None = None) -> LiveRun:
    """Do what `run_benchmark` does, in a running event loop."""
    if not plan.discover:
        return await _benchmark(jobs, plan, Destinations([plan.endpoint.origin]), progress)
    async with discovered(plan.discover) as found:
        endpoint = await _first_that_answers(plan.endpoint, found.origins)
        return await _benchmark(jobs, replace(plan, endpoint=endpoint), found, progress)


async def _benchmark(
    jobs: Iterable[Job], plan: BenchPlan, destinations: Destinations, progress: Callable[[int], None] | None
) -> LiveRun:
    client = UpstreamClient()
    try:
        model = plan.model or await _served_model(client, plan.endpoint)
        prompts, warnings = await _make_prompts(client, plan, model)
    finally:
        await client.close()
    observed = Observation()

    def on_end(sent: SentRequest) -> None:
        if is_counted:
            observed.add(sent)
            if progress is not None:
                progress(len(observed))

    # Warm-ups go through the same sender, so that its connections are open when the run begins; they are not counted.
    sender = LoadSender(plan.endpoint, prompts, on_end, destinations=destinations)
    is_counted = False
    try:
        if plan.num_warmups:
            await sender.run(SendSchedule(_streaming(synthetic(_WARMUP_RATE, plan.num_warmups), plan.stream)))
        is_counted = True
        schedule = SendSchedule(_streaming(jobs, plan.stream), plan.max_concurrency, is_closed=plan.is_closed)
        was_stopped = await _run_until_signal(sender, schedule, plan)
    finally:
        await sender.close()
    return LiveRun(
        results=observed.results(sender.ended_at),
        lateness=observed.lateness(),
        model=model,
        scale=prompts.scale,
        problems=dict(observed.problems.most_common()),
        was_stopped=was_stopped,
        warnings=(*warnings, *_warnings(observed, plan)),
    )


async def _run_until_signal(sender: LoadSender, schedule: SendSchedule, plan: BenchPlan) -> bool:
    """Run `schedule`, and return whether a signal ended it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopped = False

    def on_signal() -> None:
        nonlocal stopped
        if stopped:
            task.cancel()
        stopped = True
        sender.stop()

    timer = None if plan.horizon is None else loop.call_later(to_seconds(plan.horizon), sender.stop)
    with handle_signals((signal.SIGINT, signal.SIGTERM), on_signal):
        await sender.run(schedule)
    if timer is not None:
        timer.cancel()
    return stopped


def _streaming(jobs: Iterable[Job], stream: bool) -> Iterable[Job]:
    """Return `jobs` as they are, or none of them streaming."""
    return jobs if stream else map_jobs(jobs, lambda job: replace(job, request=replace(job.request, stream=False)))


def _warnings(observed: Observation, plan: BenchPlan) -> Iterator[str]:
    late = observed.lateness()
    if late is not None and late.has_fallen_behind and plan.max_concurrency is None:
        yield (
            f"the sender fell behind: one request in a hundred was sent {late.p99 / 1000:,.1f} ms late or more, the worst "
            f"{late.worst / 1000:,.1f} ms; latencies count from the planned instant, but the endpoint got less than was planned"
        )
    if observed.num_without_usage:
        yield (
            f"{observed.num_without_usage:,} answers had no usage: their tokens are the events that came, and their prompts "
            "count as what was asked for"
        )
    if observed.num_without_tokens:
        yield (
            f"{observed.num_without_tokens:,} answers had tokens by their usage, and no event with any: they have no TTFT and "
            "no TPOT, and meet no target for them"
        )
    if observed.num_unstreamed:
        yield (
            f"{observed.num_unstreamed:,} answers came whole where a stream was asked for: their first token counts as come at "
            "their end, and they have no TPOT"
        )
    yield from _length_warnings(observed.lengths, plan)


def _length_warnings(lengths: LengthCheck, plan: BenchPlan) -> Iterator[str]:
    if lengths.num_longer:
        yield f"{lengths.num_longer:,} answers were longer than asked for: the endpoint does not keep to max_tokens"
    count = lengths.num_shorter
    if count and plan.ignore_eos:
        means = lengths.tokens_shorter / count, lengths.asked_shorter / count
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in lengths.reasons.most_common())
        yield (
            f"{count:,} answers were shorter than asked for: {means[0]:,.1f} tokens on average, and not {means[1]:,.1f} "
            f"(finish_reason: {reasons}); the endpoint may not know ignore_eos, and the load was less than the workload says"
        )


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def _first_that_answers(endpoint: SendTarget, origins: Iterable[Origin]) -> SendTarget:
    """Return the endpoint at the first of `origins` that answers: the others count as what they are, failures of the run.
    Raises what the first one says if none does."""
    problem: BenchError | None = None
    client = UpstreamClient()
    try:
        for origin in origins:
            found = replace(endpoint, origin=origin)
            try:
                await _ask_models(client, found)
            except BenchError as error:
                problem = problem or error
            else:
                return found
    finally:
        await client.close()
    assert problem is not None
    raise problem


async def _served_model(client: UpstreamClient, endpoint: SendTarget) -> str:
    status, body = await _ask_models(client, endpoint)
    try:
        served = msgspec.json.decode(body, type=_Models).data if status == 200 else []
    except JSON_ERRORS:
        served = []
    if not served:
        where = f"{endpoint.origin}/v1/models"
        raise BenchError(f"{where} names no model (status {status}); name one with --model")
    return served[0].id


async def _ask_models(client: UpstreamClient, endpoint: SendTarget) -> tuple[int, bytes]:
    try:
        async with asyncio.timeout(MODELS_SECS):
            return await _ask(client, endpoint, "GET", "/v1/models", b"")
    except TimeoutError as error:
        raise BenchError(f"{endpoint.origin}/v1/models: no answer within {MODELS_SECS:g} s") from error


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Answered(msgspec.Struct):
    usage: _Usage | None = None


async def _make_prompts(client: UpstreamClient, plan: BenchPlan, model: str) -> tuple[PromptWriter, tuple[str, ...]]:
    """Return the writer of the prompts, with the endpoint's own count of tokens, and warnings."""
    prompts = _prompt_writer(plan, model, TokenScale())
    short, long = [await _count_probe(client, plan, prompts, words) for words in (_SHORT, _LONG)]
    if short is None or long is None or long <= short:
        return prompts, ("the endpoint does not say how many tokens a prompt has: a word of a prompt counts as one",)
    scale = TokenScale.of_probes((_SHORT, short), (_LONG, long))
    if plan.words and scale.per_word != 1:
        problem = f"the endpoint counts {scale.per_word:.3g} tokens for a word that is one token in the tokenizer"
        raise BenchError(f"{problem}; give the tokenizer of {model}, or none")
    return _prompt_writer(plan, model, scale), ()


def _prompt_writer(plan: BenchPlan, model: str, scale: TokenScale) -> PromptWriter:
    return PromptWriter(
        model,
        chat=plan.endpoint.path.endswith("/chat/completions"),
        scale=scale,
        nonce=time.time_ns(),
        fields=plan.extra_body,
        ignore_eos=plan.ignore_eos,
        words=plan.words or WORDS,
    )


async def _count_probe(client: UpstreamClient, plan: BenchPlan, prompts: PromptWriter, words: int) -> int | None:
    """Send a prompt of `words` words, and return its tokens as the endpoint counts them, or None if it does not say."""
    status, body = await _ask(client, plan.endpoint, "POST", plan.endpoint.path, prompts.probe(words))
    if status != 200:
        raise BenchError(_refusal(plan, status, body))
    try:
        usage = msgspec.json.decode(body, type=_Answered).usage
    except JSON_ERRORS:
        return None
    return None if usage is None else usage.prompt_tokens


def _refusal(plan: BenchPlan, status: int, body: bytes) -> str:
    said = body[:_MAX_SHOWN].decode("utf-8", "replace")
    where = f"{plan.endpoint.origin}{plan.endpoint.path}"
    other = CHAT if plan.endpoint.path == COMPLETIONS else COMPLETIONS
    hint = f"; try --endpoint {other}" if status in (404, 405) else ""
    if status == 400 and plan.ignore_eos and b"ignore_eos" in body:
        hint = "; try --no-ignore-eos"
    if status in (401, 403):
        hint = "; give a key in OPENAI_API_KEY, or --header"
    return f"{where} answers {status}: {said}{hint}"


async def _ask(client: UpstreamClient, endpoint: SendTarget, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Return the status and the body of a response. Raises BenchError if there is none."""
    headers = [(b"content-type", b"application/json"), *endpoint.headers]
    try:
        response = await client.request(endpoint.origin, method, path, headers, body)
        try:
            return response.status, b"".join([piece async for piece in response])
        finally:
            response.close()
    except UpstreamError as error:
        raise BenchError(f"{endpoint.origin}{path}: {error}") from error


def check_plan(plan: BenchPlan) -> None:
    """Raise ConfigError for numbers that cannot be."""
    if plan.max_concurrency is not None and plan.max_concurrency < 1:
        raise ConfigError(f"{plan.max_concurrency} requests cannot be in flight", where="--max-concurrency", hint="1 or more")
    if plan.is_closed and plan.max_concurrency is None:
        raise ConfigError("a closed loop has a number of clients", where="is_closed", hint="give max_concurrency")
    if plan.num_warmups < 0:
        raise ConfigError(f"there cannot be {plan.num_warmups}", where="--num-warmups", hint="0 or more")
