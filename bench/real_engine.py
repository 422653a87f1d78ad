"""Classes before a real vLLM: the time to first token of chats during floods of bulk, and what bulk pays for it.

    python bench/real_engine.py [--vllm .venv-vllm] [--secs 90] [--quick] [--rows 1,3,7] [--rounds 1] [--bulk-streamed 0.0]

Needs the environment and the tiny model of `make vllm-test`, and two cores: vLLM has the first one, the gateway and the
clients the other. vLLM runs 16 sequences (`--max-num-seqs 16`), with one thread, without compilation and prefix cache.

Two starts of vLLM differ by a tenth in speed. So first it is measured, for each start, how many requests per second it answers
at most. Then each row of the table that is measured there gets the same requests at the same instants, at 96 % of that: chats
(a tenth of the tokens, streamed) at random instants, and every 6 s a flood of bulk.
A request that is refused (503, 429) is sent again after its `Retry-After`, and its times count from the first attempt.

Columns: time to first token of chats (p50, p90, p99, ms), mean time of a bulk request from arrival to end (s), time from the
first request to the last answer (s), and that time over the one of vLLM alone (of the same start and round, so that the rows
with vLLM's priority scheduling are compared with that). Rows name the highest class of clients, since without it all but named
tenants are at most `default`. Under the table: how soon slots are learned, also after vLLM comes back with half the limit.

With `--rounds` the rows are measured in turn several times, each round at 96 % of what vLLM answers just then. That is for a
machine whose speed drifts: the ratio is then the median, with the least and the greatest, and times are of all rounds.
A row takes `--secs`, each start of vLLM 20 to 40 s: 14 minutes in all, 5 with `--quick` (25 s for each row). Timings of a busy
machine say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

import msgspec

import processes
from http_client import ClientRequest, ClientResponse, Connection, connect, encode_request

SEQUENCES = 16
LOAD, FLOOD_SECS, CHAT_SHARE = 0.96, 6.0, 0.2
"""Load of the engine; time between two floods; chats' share of the requests."""
START_SECS = 240.0
ENGINE_CORE, OTHER_CORE = 0, 1
PRIORITY = ("--admission", "priority", "--default-max-class", "interactive")
RETRY = ("--on-preempt", "retry")
FORWARD = {"MAITRED_GATEWAY__FORWARD_PRIORITY": "vllm"}


class Row(msgspec.Struct, frozen=True):
    """One way to serve the load."""

    name: str
    policy: str
    """vLLM's scheduling policy."""
    flags: tuple[str, ...] | None = None
    """Of `maitred serve`; None: clients talk to vLLM."""
    env: dict[str, str] = {}
    """Of `maitred serve`: keys that have no flag."""


ROWS = (
    Row("vLLM alone, fcfs", "fcfs"),
    Row("maitred as it comes", "fcfs", PRIORITY),
    Row("16 slots", "fcfs", (*PRIORITY, "--slots-per-backend", "16")),
    Row("learned + retry + adaptive reserve", "fcfs", (*PRIORITY, "--slots", "learned", *RETRY, "--reserve", "adaptive")),
    Row("vLLM's own priority scheduling", "priority"),
    Row("64 slots + forward_priority", "priority", (*PRIORITY, "--slots-per-backend", "64"), FORWARD),
    Row("16 slots + forward_priority + retry", "priority", (*PRIORITY, "--slots-per-backend", "16", *RETRY), FORWARD),
)


class Job(msgspec.Struct, frozen=True):
    """One request of the load."""

    at: float
    """When it is sent, seconds from the beginning."""
    is_chat: bool
    streams: bool
    prompt: list[int]
    output_tokens: int


class Outcome(msgspec.Struct):
    """What the clients have seen, in seconds."""

    ttfts: list[float] = msgspec.field(default_factory=list)
    """Of chats."""
    bulk_times: list[float] = msgspec.field(default_factory=list)
    wall: float = 0.0
    refused: int = 0
    slots: int = 0
    """At the end; 0 without a gateway."""

    def ttft_ms(self, share: float) -> float:
        times = sorted(self.ttfts)
        return 1000 * times[min(len(times) - 1, int(share * len(times)))]


class Measured(msgspec.Struct):
    """A row over the rounds."""

    outcomes: list[Outcome] = msgspec.field(default_factory=list)
    ratios: list[float] = msgspec.field(default_factory=list)
    """Of the wall time to that of vLLM alone, where that was measured."""

    def add(self, outcome: Outcome, alone: float | None) -> None:
        self.outcomes.append(outcome)
        if alone is not None:
            self.ratios.append(outcome.wall / alone)

    def over_rounds(self) -> Outcome:
        """Return all rounds as one: the times of all, and the median of the wall times."""
        return Outcome(
            [ttft for outcome in self.outcomes for ttft in outcome.ttfts],
            [took for outcome in self.outcomes for took in outcome.bulk_times],
            statistics.median(outcome.wall for outcome in self.outcomes),
            sum(outcome.refused for outcome in self.outcomes),
            self.outcomes[-1].slots,
        )

    def ratio(self) -> str:
        """Return the median of the ratios; of several with the least and the greatest."""
        if not self.ratios:
            return "-"
        spread = f" ({min(self.ratios):.3f} to {max(self.ratios):.3f})" if len(self.ratios) > 1 else ""
        return f"{statistics.median(self.ratios):.3f}{spread}"


class Engine:
    """A `vllm serve` of the tiny model, on a core of its own."""

    def __init__(
        self, python: Path, port: int, sequences: int, policy: str, flags: Sequence[str] = (), log: Path | None = None
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        model = python.parent.parent / "tiny-model"
        command = [python, "-m", "vllm.entrypoints.cli.main", "serve", model, "--served-model-name", "tiny"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "warning", "--enforce-eager"]
        command += ["--kv-cache-memory-bytes", str(1 << 27), "--block-size", "32", "--no-enable-prefix-caching"]
        command += ["--max-num-seqs", str(sequences), "--scheduling-policy", policy, *flags]
        env = {
            "VLLM_LOGGING_LEVEL": "ERROR" if log is None else "INFO",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        self._log = tempfile.TemporaryFile() if log is None else log.open("w+b")  # noqa: SIM115 - closed by `stop`
        self._process = subprocess.Popen(
            ["taskset", "-c", str(ENGINE_CORE), *map(str, command)],
            env=os.environ | env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                self._log.seek(0)
                sys.exit(f"vLLM has ended:\n{self._log.read().decode(errors='replace')[-4000:]}")
            with contextlib.suppress(OSError):
                processes.fetch_text(f"{self.url}/health")
                return
            time.sleep(0.2)
        sys.exit(f"vLLM is not ready after {START_SECS:g} s")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


class Clients:
    """The clients of one row."""

    def __init__(self, url: str, *, by_priority: bool) -> None:
        self.url = url
        self.outcome = Outcome()
        self._by_priority = by_priority
        """Whether requests say their priority to vLLM itself."""
        self._idle: list[Connection] = []
        self._left = 0
        self._began = 0.0
        self._ended: asyncio.Future[None] | None = None

    async def play(self, jobs: Sequence[Job]) -> Outcome:
        """Send all requests at their instants; return when the last one is answered."""
        loop = asyncio.get_running_loop()
        self._left, self._ended, self._began = len(jobs), loop.create_future(), loop.time()
        self.outcome.wall = -self._began
        for job in jobs:
            loop.call_at(self._began + job.at, self._start, job, self._began + job.at, self._end)
        await self._ended
        self.outcome.wall += loop.time()
        self.close()
        return self.outcome

    async def throughput(self, jobs: Sequence[Job], clients: int, secs: float) -> float:
        """Return how many requests per second are answered, with `clients` in a closed loop."""
        loop, rest = asyncio.get_running_loop(), iter(jobs)
        until, ends, done = loop.time() + secs, list[float](), loop.create_future()
        busy = clients

        def end(job: Job, sent_at: float, response: ClientResponse) -> None:
            nonlocal busy
            ends.append(loop.time())
            if loop.time() < until:
                self._start(next(rest), loop.time(), end)
                return
            busy -= 1
            if not busy:
                done.set_result(None)

        for _ in range(clients):
            self._start(next(rest), loop.time(), end)
        await done
        self.close()
        began = until - secs / 2
        return sum(began <= at < until for at in ends) / (secs / 2)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _start(self, job: Job, sent_at: float, on_end: OnEnd) -> None:
        task = asyncio.get_running_loop().create_task(self._send(job, sent_at, on_end))
        task.add_done_callback(lambda done: done.result())

    async def _send(self, job: Job, sent_at: float, on_end: OnEnd) -> None:
        while self._idle and not self._idle[-1].open:
            self._idle.pop()
        connection = self._idle.pop() if self._idle else await connect(self.url)
        body = {"model": "tiny", "prompt": job.prompt, "max_tokens": job.output_tokens, "ignore_eos": True, "temperature": 0}
        body |= {"stream": job.streams} | ({"priority": -1 if job.is_chat else 1} if self._by_priority else {})
        name = "interactive" if job.is_chat else "bulk"

        def on_response(response: ClientResponse) -> None:
            if connection.open:
                self._idle.append(connection)
            if not response.status:  # The server has closed an idle connection at this very moment.
                self._start(job, sent_at, on_end)
            else:
                on_end(job, sent_at, response)

        raw = encode_request("/v1/completions", json.dumps(body).encode(), x_smg_priority=name)
        connection.send_request(ClientRequest(raw, 0), on_response)

    def _end(self, job: Job, sent_at: float, response: ClientResponse) -> None:
        loop, outcome = asyncio.get_running_loop(), self.outcome
        if response.status in (429, 503):
            outcome.refused += 1
            loop.call_later(float(response.headers.get(b"retry-after", b"1")), self._start, job, sent_at, self._end)
            return
        if response.status != 200 or not response.complete:
            sys.exit(f"a request was answered {response.status}: {response.error!r}")
        took = loop.time() - sent_at
        if job.is_chat:
            outcome.ttfts.append(took - response.took + response.first_byte)
        else:
            outcome.bulk_times.append(took)
        self._left -= 1
        if not self._left and self._ended is not None:
            self._ended.set_result(None)


OnEnd: TypeAlias = Callable[[Job, float, ClientResponse], None]


def make_job(rng: Random, at: float, *, is_chat: bool, bulk_streamed: float) -> Job:
    """Draw one request: a short chat, or a bulk request."""
    prompt = [rng.randint(10, 900) for _ in range(rng.randint(20, 80) if is_chat else rng.randint(40, 160))]
    tokens = rng.randint(16, 48) if is_chat else rng.randint(30, 90)
    return Job(at, is_chat, is_chat or rng.random() < bulk_streamed, prompt, tokens)


def make_load(per_sec: float, secs: float, bulk_streamed: float) -> list[Job]:
    """Draw the load of a row: `per_sec` requests per second on average."""
    rng, jobs, at = Random(7), list[Job](), 0.0
    while (at := at + rng.expovariate(CHAT_SHARE * per_sec)) < secs:
        jobs.append(make_job(rng, at, is_chat=True, bulk_streamed=bulk_streamed))
    floods = max(1, round(secs / FLOOD_SECS))
    for flood in range(floods):
        for _ in range(round((1 - CHAT_SHARE) * per_sec * secs / floods)):
            jobs.append(make_job(rng, flood * secs / floods, is_chat=False, bulk_streamed=bulk_streamed))
    return jobs


async def measure_capacity(url: str, secs: float, bulk_streamed: float) -> float:
    """Return how many requests of the load vLLM answers per second at most."""
    rng = Random(1)
    jobs = [
        make_job(rng, 0.0, is_chat=rng.random() < CHAT_SHARE, bulk_streamed=bulk_streamed) for _ in range(round(400 * secs))
    ]
    return await Clients(url, by_priority=False).throughput(jobs, 3 * SEQUENCES, secs)


def measure_row(row: Row, engine: Engine, jobs: Sequence[Job]) -> Outcome:
    """Serve the load in one way."""
    if row.flags is None:
        return asyncio.run(Clients(engine.url, by_priority=row.policy == "priority").play(jobs))
    os.environ.update(row.env)
    try:
        with run_gateway(engine.url, row.flags) as gateway:
            outcome = asyncio.run(Clients(gateway.url, by_priority=False).play(jobs))
            outcome.slots = processes.fetch_json(f"{gateway.url}/maitred/state")["backends"][0]["slots"]
    finally:
        for key in row.env:
            del os.environ[key]
    return outcome


@contextlib.contextmanager
def run_gateway(engine: str, flags: Sequence[str]) -> Iterator[processes.GatewayProcess]:
    """Run a gateway until it has slots."""
    with processes.run_gateway([engine], *flags) as gateway:
        wait_for_slots(gateway.url)
        yield gateway


def wait_for_slots(gateway: str) -> None:
    while not processes.fetch_json(f"{gateway}/maitred/state")["capacity"]:
        time.sleep(0.05)


async def learn(gateway: str, limit: int, secs: float) -> str:
    """Load the gateway with bulk for `secs`. Return when its slots were within one of `limit`, and what they are at the end."""
    load = Clients(gateway, by_priority=False)
    jobs = [make_job(Random(number), 0.0, is_chat=False, bulk_streamed=0.0) for number in range(round(200 * secs))]
    loop = asyncio.get_running_loop()
    began, found, slots = loop.time(), None, 0
    playing = loop.create_task(load.throughput(jobs, 4 * SEQUENCES, secs))
    while not playing.done():
        slots = (await asyncio.to_thread(processes.fetch_json, f"{gateway}/maitred/state"))["backends"][0]["slots"]
        if found is None and abs(slots - limit) <= 1:
            found = loop.time() - began
        await asyncio.sleep(0.05)
    await playing
    when = "never found" if found is None else f"found after {found:.1f} s"
    return f"{limit} sequences: {when}, {slots} slots at the end"


def show_learning(python: Path, secs: float) -> None:
    """Print how soon the slots of vLLM are learned, and again after it comes back with half the limit."""
    (port,) = processes.free_ports(1)
    with contextlib.ExitStack() as gateways:
        gateway = ""
        for limit in (SEQUENCES, SEQUENCES // 2):
            with run_engine(python, port, limit, "fcfs") as engine:
                if not gateway:
                    gateway = gateways.enter_context(run_gateway(engine.url, PRIORITY)).url
                wait_for_slots(gateway)
                print(asyncio.run(learn(gateway, limit, secs)), flush=True)


@contextlib.contextmanager
def run_engine(
    python: Path, port: int, sequences: int, policy: str, flags: Sequence[str] = (), log: Path | None = None
) -> Iterator[Engine]:
    """Run vLLM until the end of the `with`, with further flags, and with what it logs in `log` if that is given."""
    engine = Engine(python, port, sequences, policy, flags, log)
    try:
        engine.wait_until_ready()
        yield engine
    finally:
        engine.stop()


def measure_rounds(args: argparse.Namespace, engine: Engine, rows: Sequence[Row], secs: float) -> None:
    """Measure all rows of one start of vLLM, and print them."""
    asyncio.run(measure_capacity(engine.url, 2.0, args.bulk_streamed))  # The first requests are slower.
    measured, rates = {row.name: Measured() for row in rows}, list[float]()
    for _ in range(args.rounds):
        rates.append(args.per_sec or LOAD * asyncio.run(measure_capacity(engine.url, 12.0, args.bulk_streamed)))
        jobs, alone = make_load(rates[-1], secs, args.bulk_streamed), None
        for row in rows:
            outcome = measure_row(row, engine, jobs)
            alone = outcome.wall if row.flags is None else alone
            measured[row.name].add(outcome, alone)
    for row in rows:
        print(table_line(row, measured[row.name]), flush=True)
    per_sec = statistics.median(rates)
    spread = f" ({min(rates):.1f} to {max(rates):.1f})" if len(rates) > 1 else ""
    print(f"{rows[0].policy}: {per_sec:.1f} requests/s{spread}, of which {CHAT_SHARE * per_sec:.1f} are chats", flush=True)


def table_line(row: Row, measured: Measured) -> str:
    """Return a row of the table."""
    outcome = measured.over_rounds()
    ttfts = " / ".join(f"{outcome.ttft_ms(share):.0f}" for share in (0.5, 0.9, 0.99))
    bulk = sum(outcome.bulk_times) / len(outcome.bulk_times)
    slots = str(outcome.slots or "-")
    cells = [row.name, ttfts, f"{bulk:.1f}", f"{outcome.wall:.1f}", measured.ratio(), str(outcome.refused), slots]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, default=Path(os.environ.get("MAITRED_VLLM_VENV", ".venv-vllm")))
    parser.add_argument("--secs", type=float, default=90.0, help="length of a row")
    parser.add_argument("--quick", action="store_true", help="rows of 24 s")
    parser.add_argument("--rows", default=",".join(map(str, range(1, len(ROWS) + 1))), help="numbers of rows, from 1")
    parser.add_argument("--rounds", type=int, default=1, help="how often each row is measured, in turn (default: 1)")
    parser.add_argument("--bulk-streamed", type=float, default=0.0, help="share of bulk requests that are streamed")
    parser.add_argument("--per-sec", type=float, help="requests per second, instead of 96 %% of what is measured")
    parser.add_argument("--no-learning", action="store_true", help="the table alone")
    args = parser.parse_args()
    python, secs = args.vllm.absolute() / "bin" / "python", 24.0 if args.quick else args.secs
    os.sched_setaffinity(0, {OTHER_CORE})
    gc.disable()
    chosen = [ROWS[int(number) - 1] for number in args.rows.split(",")]
    print("| | chats TTFT p50 / p90 / p99, ms | bulk, s | wall, s | to vLLM alone | refused | slots at the end |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for policy in dict.fromkeys(row.policy for row in chosen):
        with run_engine(python, processes.free_ports(1)[0], SEQUENCES, policy) as engine:
            measure_rounds(args, engine, [row for row in chosen if row.policy == policy], secs)
    if not args.no_learning:
        show_learning(python, min(12.0, secs))


if __name__ == "__main__":
    main()
