"""What every admission policy, latency model, router, scorer, acting estimator and trace format promises: a kit for each kind.

The kits of wait queues are in `queueing`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from random import Random
from typing import Final, NoReturn

from maitred.admission import POLICIES, Admission, AdmissionConfig, AdmissionPolicy, Refusal
from maitred.core.contracts import BatchShape, ChunkShape, FleetLoad, InstanceLoad, LatencyModel, Router
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.instance.latency import LATENCY_MODELS, LatencySpec
from maitred.programs import ACTING_ESTIMATORS, ActingEstimator, ToolTimes
from maitred.routing import ROUTERS, SCORERS, Scorer, Signals, check_policy, signals_read
from maitred.routing.scorer_weights import DEFAULT_WEIGHTS, ScorerWeights
from maitred.testing.samples import InstanceSample, blaming, factory_of, sample_request
from maitred.workload import FORMATS, Job, TraceFormat
from maitred.workload.line_reader import LineReader, is_text
from maitred.workload.trace import BadRows, Trace

_SAID: Final = ("state", "cost", "prompt_tokens", "tenant", "slo_priority", "slo_target")


class _Unseen(Sequence[InstanceLoad]):
    """The load of instances that a policy has not asked for."""

    def __getitem__(self, index: object) -> NoReturn:
        raise AssertionError("it looks at the load, and its `reads_load` is not set")

    def __len__(self) -> int:
        return len(self[0])


def check_admission_policy(policy: str | Callable[[], AdmissionPolicy], *, seeds: int = 20) -> None:
    """Raise AssertionError unless it answers with a `Refusal` or None, alike for the same requests at the same times, without a
    look at the load if it does not ask for it, and without a change of the ticket."""
    make = factory_of(policy, POLICIES)
    for seed in range(seeds):
        with blaming(policy, seed):
            first, again = (_answers(make(), seed) for _ in range(2))
            assert first == again, "it answers otherwise when it is asked the same again"


def _answers(policy: AdmissionPolicy, seed: int) -> list[Refusal | None]:
    rng, now, answers = Random(seed), 0, list[Refusal | None]()
    core = Admission(AdmissionConfig(mode="off"), {})
    for number in range(100):
        now += rng.choice([0, 1, 1000, 3_000_000])
        request = sample_request(rng, number, now)
        ticket = core.make_ticket(request, request.prompt_tokens + 10)
        before = [getattr(ticket, name) for name in _SAID]
        answer = policy.refusal(ticket, _load(rng) if policy.reads_load else FleetLoad(_Unseen()), now)
        assert answer is None or isinstance(answer, Refusal), f"it answers {answer!r}"
        assert before == [getattr(ticket, name) for name in _SAID], "it changes the ticket"
        answers.append(answer)
    return answers


def _load(rng: Random) -> FleetLoad:
    return FleetLoad(
        [
            InstanceLoad(rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 9), rng.random(), index)
            for index in range(rng.randint(0, 4))
        ]
    )


def check_latency_model(model: str | Callable[[], LatencySpec], *, seeds: int = 40) -> None:
    """Raise AssertionError unless steps take whole microseconds, at least one, a run takes what its steps take, and as many
    steps fit into a span as end within it."""
    make = factory_of(model, LATENCY_MODELS)
    for seed in range(seeds):
        with blaming(model, seed):
            for scale in (1.0, 0.5, 3.0):
                check_runs(make().compiled(scale), seed)


def check_runs(model: LatencyModel, seed: int) -> None:
    """Check the steps of a run, one by one and together, and a step that prefills."""
    rng = Random(seed)
    decodes, context, steps = rng.randint(1, 200), rng.randint(0, 100_000), rng.randint(1, 50)
    shapes = [BatchShape(decodes, context + decodes * step) for step in range(steps)]
    times = [model.step_time(shape) for shape in shapes]
    assert all(time >= 1 and time == int(time) for time in times), f"steps of {times} µs"
    run = model.run_time(shapes[0], steps)
    assert run == sum(times), f"a run of {steps} steps takes {run} µs, and its steps {sum(times)}"
    for span in (0, times[0] - 1, times[0], sum(times) - 1, sum(times), rng.randint(0, 2 * sum(times))):
        within, fits = model.steps_within(shapes[0], span, steps), _within(times, span)
        assert within == fits, f"{within} steps end within {span} µs, and it should be {fits}"
    _check_mixed_step(model, rng, decodes, context)


def _check_mixed_step(model: LatencyModel, rng: Random, decodes: int, context: int) -> None:
    chunks = tuple(_chunk(rng) for _ in range(rng.randint(1, 4)))
    mixed = BatchShape(decodes, context, sum(chunk.num_tokens for chunk in chunks), chunks)
    time = model.step_time(mixed)
    assert time >= 1, f"a step that prefills takes {time} µs"
    assert time == int(time), f"a step that prefills takes {time} µs"
    assert model.overheads.queueing >= 0, "a negative way in"


def _within(times: list[int], span: int) -> int:
    for step, time in enumerate(times):
        span -= time
        if span < 0:
            return step
    return len(times)


def _chunk(rng: Random) -> ChunkShape:
    tokens, start = rng.randint(1, 500), rng.randint(0, 500)
    return ChunkShape(tokens, start, tokens + start + rng.randint(0, 100))


_READ_BY = {
    "waiting": Signals.LOAD,
    "running": Signals.LOAD,
    "kv_usage": Signals.LOAD,
    "kv_tokens": Signals.MEMORY,
    "cached_blocks": Signals.CACHES,
}


def check_router(router: str | Callable[[Random], Router], *, seeds: int = 20) -> None:
    """Raise AssertionError unless it chooses among the instances that it is shown, also where one does not report its load,
    changes nothing there, looks at no more than its `signals` say, chooses alike for the same seed, passes its own `check`, and
    calls an empty fleet a ValueError. A class is called with a `Random`."""
    for seed in range(seeds):
        with blaming(router, seed):
            first, again = (_choices(_made(router, seed), seed) for _ in range(2))
            assert first == again, "the same seed makes other choices"
    with blaming(router, 0):
        _check_empty_fleet(_made(router, 0))
        for index in (0, 7):
            chosen = _made(router, 0).choose(sample_request(Random(0), 0, 0), [InstanceSample(index)], 0)
            assert chosen.instance == index, f"of instance {index} alone it chooses {chosen.instance}"


def _check_empty_fleet(router: Router) -> None:
    try:
        router.choose(sample_request(Random(0), 0, 0), [], 0)
    except ValueError:
        return
    raise AssertionError("an empty fleet is no ValueError")


def _made(router: str | Callable[[Random], Router], seed: int) -> Router:
    rng = Random(seed)
    return ROUTERS.create(router, {Random: rng, ScorerWeights: DEFAULT_WEIGHTS}) if isinstance(router, str) else router(rng)


def _end_request(router: Router, request: Request, instance: InstanceSample, now: Micros) -> None:
    instance.in_flight -= 1
    router.on_request_end(request, instance.index, now)
    check_policy(router)


def _choices(router: Router, seed: int) -> list[int]:
    """Send 60 requests, of which some end, to fleets of 6 or fewer, and return where they went."""
    rng = Random(seed)
    instances = _instances(rng, range(6))
    everything_up = list(instances)
    down = list(instances[:-2])
    there: list[tuple[Request, InstanceSample]] = []
    went = []
    for number in range(60):
        request = sample_request(rng, number, 100 * number)
        fleet = everything_up if rng.random() < 0.8 else down
        with _expecting_unknown_loads():
            choice = router.choose(request, fleet, 100 * number)
        chosen = next((view for view in fleet if view.index == choice.instance), None)
        assert chosen is not None, f"it chooses {choice.instance}, which it was not shown"
        assert choice.reason, "it gives no reason"
        check_policy(router)
        chosen.in_flight += 1
        there.append((request, chosen))
        went.append(choice.instance)
        if rng.random() < 0.5:
            _end_request(router, *there.pop(rng.randrange(len(there))), 100 * number)
    _check_reads(router, instances)
    return went


def check_scorer(scorer: str | Callable[[], Scorer], *, seeds: int = 20) -> None:
    """Raise AssertionError unless it gives each instance one score from 0 to 1, also where one does not report its load, looks
    at no more than its `signals` say, passes its own `check`, and scores alike what it has seen alike."""
    make = factory_of(scorer, SCORERS)
    for seed in range(seeds):
        with blaming(scorer, seed):
            first, again = (_scores(make(), seed) for _ in range(2))
            assert first == again, "another one scores the same fleets otherwise"


def _scores(scorer: Scorer, seed: int) -> list[Sequence[float]]:
    rng, seen = Random(seed), list[Sequence[float]]()
    for number in range(30):
        instances = _instances(rng, range(rng.randint(1, 6)))
        request = sample_request(rng, number, 100 * number)
        with _expecting_unknown_loads():
            scores = scorer.scores(request, instances)
        assert len(scores) == len(instances), f"{len(scores)} scores for {len(instances)} instances"
        assert all(0.0 <= score <= 1.0 for score in scores), f"scores of {list(scores)} are not all from 0 to 1"
        _check_reads(scorer, instances)
        scorer.on_chosen(request, rng.choice(instances))
        check_policy(scorer)
        seen.append(list(scores))
    return seen


@contextmanager
def _expecting_unknown_loads() -> Iterator[None]:
    """Say what a TypeError about None is likely to come from."""
    try:
        yield
    except TypeError as error:
        raise AssertionError(f"a load may be None, where an instance does not report it: {error}") from error


def _instances(rng: Random, indices: Iterable[int]) -> list[InstanceSample]:
    """Return instances, of which one in ten reports nothing of its load."""
    return [_instance(rng, index, reports=rng.random() < 0.9) for index in indices]


def _instance(rng: Random, index: int, *, reports: bool) -> InstanceSample:
    in_flight, waiting, running, usage = rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 9), rng.random()
    if not reports:
        return InstanceSample(index, in_flight, None, None, None, rng.randint(0, 12))
    return InstanceSample(index, in_flight, waiting, running, usage, rng.randint(0, 12))


def _check_reads(policy: object, instances: Sequence[InstanceSample]) -> None:
    reads = signals_read(policy)
    for name in sorted(set().union(*(view.looked_at for view in instances))):
        assert _READ_BY[name] in reads, f"it looks at {name}, and its `signals` say {reads}"


_NO_ROW = "nonsense"
_NO_ROWS = ("", _NO_ROW, "{}", "[1, 2]", ",,,,,,,,", '{"a": "b"}', "\udcff")


def check_acting_estimator(estimator: str | Callable[[], ActingEstimator], *, seeds: int = 20) -> None:
    """Raise AssertionError unless shares are finite and not negative, alike for the same program at the same time, the same at
    all times if it says so, and worked out without a change of the tool times."""
    make = factory_of(estimator, ACTING_ESTIMATORS)
    for seed in range(seeds):
        rng, made, again = Random(seed), make(), make()
        with blaming(estimator, seed):
            _check_shares(rng, made, again)


def _check_shares(rng: Random, made: ActingEstimator, again: ActingEstimator) -> None:
    """Compare the shares of two estimators of one kind; the second is asked in the opposite order."""
    tools = ToolTimes()
    for _ in range(rng.randrange(4)):
        tools.add(rng.randint(0, 60_000_000))
    before = (tools.count, tools.mean)
    times = [0, 1, *(rng.randint(0, 10 ** rng.randint(1, 12)) for _ in range(10))]
    shares = [made.share(time, tools) for time in times]
    assert all(isfinite(share) and share >= 0 for share in shares), f"shares of {shares}"
    backwards = [again.share(time, tools) for time in reversed(times)]
    assert shares == backwards[::-1], "the same program has two shares"
    assert made.changes_with_time or len(set(shares)) == 1, f"shares of {shares}, and its `changes_with_time` is false"
    assert before == (tools.count, tools.mean), "it changes the tool times"


def _check_jobs(jobs: Sequence[Job]) -> None:
    assert jobs, "it reads no request"
    arrivals = [job.request.arrival for job in jobs]
    assert arrivals == sorted(arrivals), f"requests come at {arrivals}"
    assert all(job.request.prompt_tokens >= 1 and job.output_tokens >= 1 for job in jobs), "a request of no tokens"


def check_trace_format(trace_format: str | Callable[[], TraceFormat], rows: Iterable[str]) -> None:
    """Raise AssertionError unless it reads `rows`, the lines of a file of this format with its header, gives requests in order
    of arrival, says at which line there is something that is no row, and no other format claims a file that it recognises."""
    make, lines = factory_of(trace_format, FORMATS), list(rows)
    with blaming(trace_format, 0):
        _check_claims(make(), lines[0])
        try:
            _check_jobs(_read(make(), lines))
        except ConfigError as error:
            raise AssertionError(f"it cannot read its own rows: {error}") from error
        for no_row in filter(None, _NO_ROWS):
            _check_bad_row(make(), lines, no_row)


def _check_claims(own: TraceFormat, first_line: str) -> None:
    assert own.example, "it has no example"
    if own.recognises(first_line):
        claims = [name for name in FORMATS if FORMATS.create(name).recognises(first_line)]
        others = [name for name in claims if not isinstance(own, type(FORMATS.create(name)))]
        assert not others, f"{others} claim its files too"
    for no_row in filter(is_text, _NO_ROWS):  # must not raise, since each format is asked about every file
        own.recognises(no_row)


def _check_bad_row(trace_format: TraceFormat, lines: list[str], row: str) -> None:
    try:
        _read(trace_format, [*lines, row])
    except ConfigError as error:
        if f":{len(lines) + 1}" not in error.where:
            raise AssertionError(f"of {row!r} it says {error}, and not in which line") from error
        return
    assert row != _NO_ROW, f"it takes {row!r} for a row"


def _read(trace_format: TraceFormat, lines: list[str]) -> list[Job]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")
        found = LineReader(path)
        try:
            return list(Trace(found, trace_format, trace_format.make_parser(found), BadRows.REFUSE))
        finally:
            found.close()
