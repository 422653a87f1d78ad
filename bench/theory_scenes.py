"""The scenes of `bench/theory.py`: systems of queueing theory as the simulator plays them, each with its closed formula.

An instance is made a server of queueing theory by what it is told: a batch of one sequence (`max_num_seqs=1`), steps of a fixed
time and prompts of one token make the service time proportional to the length of the answer, which is drawn from the
distribution of the scene. Nothing is told to the simulator of the theory, and every figure is one that it reports: E2E, delay,
slowdown, outcomes, ends.

Lengths are whole tokens, and times are whole µs: with a mean of a thousand tokens of 1,000 µs that changes a mean by less than
0.1 %. Sources are named beside the formulas: Kleinrock = L. Kleinrock, Queueing Systems I and II, 1975 and 1976.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from math import exp, factorial, log
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Final, TypeAlias

import msgspec

import maitred
from maitred.instance import InstanceConfig
from maitred.instance.latency import LinearLatency
from maitred.report.latencies import request_times
from maitred.report.run_setup import section_of
from maitred.report.slowdown import slowdowns
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Outcome
from maitred.sim.fleet_config import InstanceGroup

sys.path.append(str(Path(__file__).parents[1] / "examples" / "plugins"))

STEP: Final = 1_000
"""µs of a step, and so of an output token."""
TOKENS: Final = 1_000
"""Mean length of an answer: the mean service time is a second."""
WARMUP: Final = 0.1
"""Share of the requests that is left out at the beginning."""

Draw: TypeAlias = Callable[[Random], float]
Run: TypeAlias = Callable[[int], maitred.Result]
"""Returns the run with a seed."""
Measure: TypeAlias = Callable[[int], float]
"""Returns the figure of a run with a seed."""


class Check(msgspec.Struct, frozen=True):
    """A figure, its formula, and what the simulator says."""

    scene: str
    figure: str
    formula: str
    exact: float
    measure: Measure

    def seeds(self, count: int) -> list[int]:
        """Return `count` seeds that no other check has, so that checks are independent of each other."""
        first = int.from_bytes(sha256(f"{self.scene}/{self.figure}".encode()).digest()[:4], "big")
        return [first + number for number in range(count)]


def exponential(mean: float) -> Draw:
    return lambda draw: -mean * log(1 - draw.random())


def constant(mean: float) -> Draw:
    return lambda _: mean


def uniform(low: float, high: float) -> Draw:
    return lambda draw: low + (high - low) * draw.random()


def two_sizes(short: float, long: float, share_of_long: float) -> Draw:
    return lambda draw: long if draw.random() < share_of_long else short


def server(size: int = 1, **keys: Any) -> InstanceConfig:
    """Return an instance that decodes `size` sequences at a time, each token in a step of `STEP` µs."""
    return InstanceConfig(
        max_num_seqs=size, max_num_batched_tokens=100_000, latency=LinearLatency(beta=(float(STEP), 0.0, 0.0)), **keys
    )


def jobs(rate: float, count: int, size: Draw, seed: int, priorities: Sequence[float] = ()) -> list[maitred.Job]:
    """Return Poisson arrivals, `rate` per second. `priorities` are the shares of classes, the most urgent one first."""
    gaps, sizes, kinds = (Random(f"{seed}/{name}") for name in ("gaps", "sizes", "kinds"))
    at, made = 0.0, []
    for number in range(count):
        at += -log(1 - gaps.random()) / rate
        rank, left = 0, kinds.random()
        while rank < len(priorities) - 1 and left >= priorities[rank]:
            left -= priorities[rank]
            rank += 1
        request = maitred.Request(id=number, arrival=round(at * 1e6), prompt_tokens=1, priority=-rank)
        made.append(maitred.Job(request=request, output_tokens=max(1, round(size(sizes)))))
    return made


def seconds(run: maitred.Result, figure: str = "e2e") -> Any:
    """Return a latency of the requests after the warm-up, in seconds."""
    column = getattr(request_times(run.rows), figure)
    return column[int(WARMUP * len(column)) :] / 1e6


def run_open(
    rate: float,
    count: int,
    length: Draw,
    seed: int,
    *,
    instances: int = 1,
    batch: int = 1,
    router: str = "least-loaded",
    **keys: Any,
) -> maitred.Result:
    """Run `instances` servers, each with a wait queue of its own and a batch of so many sequences."""
    return maitred.simulate(
        jobs(rate, count, length, seed),
        ClusterConfig(num_instances=instances),
        server(batch, **keys),
        RoutingConfig(policy=router),
        seed=seed,
        sample_every_ms=None,
    )


def mean_of(run: Run, figure: str = "e2e") -> Measure:
    """Return what measures the mean of a latency in seconds."""
    return lambda seed: float(seconds(run(seed), figure).mean())


def share_within(run: Run, limit: float) -> Measure:
    """Return what measures the share of the requests with an E2E of at most `limit` seconds."""
    return lambda seed: float((seconds(run(seed)) <= limit).mean())


def share_refused(run: Run) -> Measure:
    """Return what measures the share of the requests that did not complete."""
    return lambda seed: float((run(seed).rows.outcome != Outcome.COMPLETED).mean())


def mean_slowdown(run: Run) -> Measure:
    """Return what measures the mean slowdown."""

    def measure(seed: int) -> float:
        result = run(seed)
        found = slowdowns(result.rows, section_of(result.setup, InstanceConfig))
        return float(found[int(WARMUP * len(found)) :].mean())

    return measure


# The scenes. A service takes a second on average, so a rate is a load.


def mm1(count: int) -> Iterator[Check]:
    """One server, exponential sizes: the time in the system is exponential with the rate 1 - ρ (Kleinrock I, 3.2)."""
    for load in (0.5, 0.8):
        run = partial(run_open, load, count, exponential(TOKENS))
        rate, scene = 1 - load, f"M/M/1, ρ = {load}"
        yield Check(scene, "mean E2E", "1 / (1 - ρ)", 1 / rate, mean_of(run))
        yield Check(scene, "E2E within 3 s", "1 - exp(-3 (1 - ρ))", 1 - exp(-3 * rate), share_within(run, 3))


def mm1k(count: int) -> Iterator[Check]:
    """A full queue turns requests away (Kleinrock I, 3.6): the share is ρ^K (1 - ρ) / (1 - ρ^(K + 1)), at most K inside."""
    load, most = 0.9, 4
    run = partial(run_open, load, count, exponential(TOKENS), max_num_queued_reqs=most)
    exact = load**most * (1 - load) / (1 - load ** (most + 1))
    yield Check(f"M/M/1/{most}, ρ = {load}", "refused", "ρ^K (1 - ρ) / (1 - ρ^(K+1))", exact, share_refused(run))


def erlang_c(servers: int, offered: float) -> float:
    """Return the probability that all of `servers` are busy at `offered` load (Kleinrock I, 3.5)."""
    full = offered**servers / factorial(servers) * servers / (servers - offered)
    return full / (sum(offered**n / factorial(n) for n in range(servers)) + full)


def mmc(count: int) -> Iterator[Check]:
    """One queue, several servers: a batch of c sequences whose steps take no longer than those of one."""
    for servers, load in ((4, 0.8), (16, 0.9)):
        offered = servers * load
        run = partial(run_open, offered, count, exponential(TOKENS), batch=servers)
        waits = erlang_c(servers, offered) / (servers - offered)
        yield Check(f"M/M/{servers}, ρ = {load}", "mean E2E", "1 + C(c, a) / (c - a)", 1 + waits, mean_of(run))


def mg1(count: int) -> Iterator[Check]:
    """Pollaczek and Khinchine: the mean wait is λ E[S²] / (2 (1 - ρ)) (Kleinrock I, 5.6)."""
    load = 0.7
    cases = {
        "M/D/1": (constant(TOKENS), 1.0),
        "M/U/1, sizes 0 to 2": (uniform(1, 2 * TOKENS), 4 / 3),
        "M/G/1, sizes 0.5 and 5.5": (two_sizes(TOKENS / 2, 5.5 * TOKENS, 0.1), 0.9 * 0.25 + 0.1 * 5.5**2),
    }
    for name, (size, second_moment) in cases.items():
        run = partial(run_open, load, count, size)
        exact = 1 + load * second_moment / (2 * (1 - load))
        yield Check(f"{name}, ρ = {load}", "mean E2E", "1 + λ E[S²] / (2 (1 - ρ))", exact, mean_of(run))


def cobham(count: int) -> Iterator[Check]:
    """Priorities that do not interrupt (A. Cobham, 1954; Kleinrock II, 3.3): W_k = W0 / ((1 - σ_(k-1)) (1 - σ_k))."""
    load, shares = 0.8, (0.3, 0.7)
    first = load * 2 / 2  # λ E[S²] / 2, with E[S²] = 2 of an exponential size of 1

    def wait_of(rank: int, seed: int) -> float:
        made = jobs(load, count, exponential(TOKENS), seed, shares)
        engine = server(scheduling_policy="priority")
        run = maitred.simulate(made, None, engine, seed=seed, sample_every_ms=None)
        waits = seconds(run, "scheduling_delay")
        ranks = [-job.request.priority for job in made][-len(waits) :]
        return fmean(wait for wait, own in zip(waits, ranks, strict=True) if own == rank)

    above = [load * sum(shares[:rank]) for rank in range(3)]
    for rank in (0, 1):
        exact = first / ((1 - above[rank]) * (1 - above[rank + 1]))
        yield Check(
            f"Priorities, ρ = {load}",
            f"mean wait of class {rank + 1}",
            "W0 / ((1 - σ) (1 - σ'))",
            exact,
            partial(wait_of, rank),
        )


def pooling(count: int) -> Iterator[Check]:
    """Requests sent to servers at random are queues of their own (Kleinrock I, 4.6); in turn each has Erlang's arrivals."""
    load, servers = 0.8, 4
    run = partial(run_open, load * servers, count, exponential(TOKENS), instances=servers, router="random")
    yield Check(f"{servers} × M/M/1 by random, ρ = {load}", "mean E2E", "1 / (1 - ρ)", 1 / (1 - load), mean_of(run))
    # E2/M/1 by round-robin over 2: σ solves σ = (2 λ / (2 λ + 1 - σ))², here with λ = ρ (Kleinrock I, 6.4).
    root = 0.5
    for _ in range(200):
        root = (2 * load / (2 * load + 1 - root)) ** 2
    turns = partial(run_open, load * 2, count, exponential(TOKENS), instances=2, router="round-robin")
    yield Check(f"2 × E2/M/1 by round-robin, ρ = {load}", "mean E2E", "1 / (1 - σ)", 1 / (1 - root), mean_of(turns))


def power_of_two(count: int) -> Iterator[Check]:
    """The shorter of two random queues of many (M. Mitzenmacher, 1996): Σ ρ^(2^i - 1) jobs, by the limit of many servers."""
    load, servers = 0.9, 200
    run = partial(run_open, load * servers, 4 * count, exponential(TOKENS), instances=servers, router="power-of-two")
    exact = sum(load ** (2**i - 2) for i in range(1, 20))
    yield Check(f"Power of two, {servers} servers, ρ = {load}", "mean E2E", "Σ ρ^(2^i - 2)", exact, mean_of(run))


def unequal_servers(count: int) -> Iterator[Check]:
    """Poisson arrivals split by the speed of the servers: M/M/1 queues of equal load, n / (Σμ - λ) (Kleinrock I, 3.2)."""
    load, rates = 0.8, (2.0, 1.0)

    def run(seed: int) -> maitred.Result:
        groups = [InstanceGroup(latency_scale=1 / rate) for rate in rates]
        router = RoutingConfig(policy="weighted-random")
        arrivals = jobs(load * sum(rates), count, exponential(TOKENS), seed)
        return maitred.simulate(arrivals, ClusterConfig(groups=groups), server(), router, seed=seed, sample_every_ms=None)

    exact = len(rates) / (sum(rates) * (1 - load))
    yield Check("Two M/M/1 of speeds 2 and 1, ρ = 0.8", "mean E2E", "n / (Σμ - λ)", exact, mean_of(run))


def processor_sharing(count: int) -> Iterator[Check]:
    """Steps that take as long as they have sequences share one processor (Kleinrock II, 4.4): E2E of a size x is x / (1 - ρ),
    whatever the distribution, so the mean slowdown is 1 / (1 - ρ) as well."""
    load = 0.6
    for name, size in (("exponential", exponential(TOKENS)), ("0.5 and 5.5", two_sizes(TOKENS / 2, 5.5 * TOKENS, 0.1))):

        def run(seed: int, size: Draw = size) -> maitred.Result:
            engine = InstanceConfig(
                max_num_seqs=100_000,
                max_num_batched_tokens=100_000,
                total_kv_blocks=10_000_000,
                latency=LinearLatency(beta=(0.0, float(STEP), float(STEP))),
            )
            return maitred.simulate(jobs(load, count, size, seed), None, engine, seed=seed, sample_every_ms=None)

        yield Check(f"M/G/1-PS, sizes {name}, ρ = {load}", "mean E2E", "1 / (1 - ρ)", 1 / (1 - load), mean_of(run))
        yield Check(f"M/G/1-PS, sizes {name}, ρ = {load}", "mean slowdown", "1 / (1 - ρ)", 1 / (1 - load), mean_slowdown(run))


def closed_loop(count: int) -> Iterator[Check]:
    """Users that think (M/M/1//N, the machine repairman) by mean value analysis (M. Reiser and S. Lavenberg, 1980)."""
    think = 2.0
    for users in (2, 8):
        queue = response = flow = 0.0
        for population in range(1, users + 1):
            response = 1 + queue
            flow = population / (response + think)
            queue = flow * response
        yield Check(
            f"Closed loop, {users} users, exponential thinking of 2 s",
            "requests/s",
            "MVA",
            flow,
            partial(_closed_flow, users, think, count),
        )


def _closed_flow(users: int, think: float, count: int, seed: int) -> float:
    run = maitred.simulate(ThinkingUsers(users, think, count, seed), None, server(), seed=seed, sample_every_ms=None)
    ends = sorted(run.rows.finished.tolist())
    begin = int(WARMUP * len(ends))
    return (len(ends) - begin) / ((ends[-1] - ends[begin]) / 1e6)


class ThinkingUsers:
    """Users with exponential thinking and exponential answers: a reactive workload."""

    def __init__(self, users: int, think: float, count: int, seed: int) -> None:
        self._users, self._think, self._left = users, think, count
        self._thinking, self._sizes, self._next = Random(f"{seed}/think"), Random(f"{seed}/sizes"), 0

    def _job(self, at: int) -> maitred.Job:
        self._left, number, self._next = self._left - 1, self._next, self._next + 1
        arrival = at + round(exponential(self._think)(self._thinking) * 1e6)
        tokens = max(1, round(exponential(TOKENS)(self._sizes)))
        return maitred.Job(request=maitred.Request(id=number, arrival=arrival, prompt_tokens=1), output_tokens=tokens)

    def __iter__(self) -> Iterator[maitred.Job]:
        return iter(sorted((self._job(0) for _ in range(self._users)), key=lambda job: job.request.arrival))

    def on_request_end(self, request: maitred.Request, completed: bool, output_tokens: int, now: int) -> list[maitred.Job]:
        return [self._job(now)] if self._left > 0 else []


def bulk(count: int) -> Iterator[Check]:
    """Requests that come in groups of b (M^[b]/M/1, Kleinrock I, 4.6): the mean in the system is ρ (b + 1) / (2 (1 - ρ))."""
    load, group = 0.7, 4

    def run(seed: int) -> maitred.Result:
        single = jobs(load / group, count // group, exponential(TOKENS), seed)
        sizes = Random(f"{seed}/bulk")
        made = [
            maitred.Job(
                request=maitred.Request(id=group * number + part, arrival=job.request.arrival, prompt_tokens=1),
                output_tokens=max(1, round(exponential(TOKENS)(sizes))),
            )
            for number, job in enumerate(single)
            for part in range(group)
        ]
        return maitred.simulate(made, None, server(), seed=seed, sample_every_ms=None)

    exact = (group + 1) / (2 * (1 - load))
    yield Check(f"Groups of {group}, ρ = {load}", "mean E2E", "(b + 1) / (2 (1 - ρ))", exact, mean_of(run))


def shortest_first(count: int) -> Iterator[Check]:
    """Shortest job first, without interruption (T. Phipps, 1956): of two sizes, Cobham's formula with the short ones first.
    `sjf` goes by the prompt, so here the prompt is the work: a step computes all of it."""
    load, short, long, share = 0.8, 0.5, 5.5, 0.1
    first = load * ((1 - share) * short**2 + share * long**2) / 2
    of_short = load * (1 - share) * short

    def mean_wait(seed: int) -> float:
        made = [
            maitred.Job(
                request=maitred.Request(id=job.request.id, arrival=job.request.arrival, prompt_tokens=job.output_tokens),
                output_tokens=1,
            )
            for job in jobs(load, count, two_sizes(short * TOKENS, long * TOKENS, share), seed)
        ]
        engine = InstanceConfig(
            max_num_seqs=1, max_num_batched_tokens=100_000, scheduler="sjf", latency=LinearLatency(beta=(0.0, float(STEP), 0.0))
        )
        return float(seconds(maitred.simulate(made, None, engine, seed=seed, sample_every_ms=None)).mean()) - 1

    exact = first * ((1 - share) / (1 - of_short) + share / ((1 - of_short) * (1 - load)))
    yield Check(f"Shortest first, sizes 0.5 and 5.5, ρ = {load}", "mean wait", "Cobham over sizes", exact, mean_wait)


def shortest_remaining(count: int) -> Iterator[Check]:
    """Shortest remaining processing time first, with interruption (L. Schrage and L. Miller, 1966). A size x waits
    λ (E[S²; S ≤ x] + x² P(S > x)) / (2 (1 - ρ below x) (1 - ρ up to x)), and then takes ∫ dt / (1 - ρ below t) up to x. The
    scheduler is that of examples/plugins. An arrival waits for the end of a step, which is a fortieth of the mean size."""
    load, short, long, share, tokens = 0.8, 0.5, 5.5, 0.1, 40
    of_short = load * (1 - share) * short

    def mean(seed: int) -> float:
        made = [
            msgspec.structs.replace(job, request=msgspec.structs.replace(job.request, max_output_tokens=job.output_tokens))
            for job in jobs(load, count, two_sizes(short * tokens, long * tokens, share), seed)
        ]
        engine = InstanceConfig(
            max_num_seqs=1_000,
            max_num_batched_tokens=100_000,
            batching="shortest_remaining:ShortestRemaining(max_running=1)",
            latency=LinearLatency(beta=(1e6 / tokens, 0.0, 0.0)),
        )
        return float(seconds(maitred.simulate(made, None, engine, seed=seed, sample_every_ms=None)).mean())

    of_a = load * short**2 / (2 * (1 - of_short)) + short
    second = (1 - share) * short**2 + share * long**2
    of_b = load * second / (2 * (1 - of_short) * (1 - load)) + short + (long - short) / (1 - of_short)
    exact = (1 - share) * of_a + share * of_b
    yield Check(f"SRPT, sizes 0.5 and 5.5, ρ = {load}", "mean E2E", "Schrage and Miller", exact, mean)


SCENES: Final = (
    mm1, mm1k, mmc, mg1, cobham, shortest_first, shortest_remaining, pooling, power_of_two, unequal_servers,
    processor_sharing, closed_loop, bulk,
)  # fmt: skip


def all_checks(count: int, only: str = "") -> list[Check]:
    """Return the checks of all scenes with runs of `count` requests."""
    return [check for scene in SCENES for check in scene(count) if only.lower() in f"{scene.__name__} {check.scene}".lower()]
