"""A workload replayed against a live endpoint: `maitred bench`, and `maitred.bench` in Python.

    import maitred

    live = maitred.bench("http://localhost:8000", maitred.synthetic(rate=5, num_requests=200))
    simulated = maitred.simulate(maitred.synthetic(rate=5, num_requests=200), instance=maitred.InstanceConfig(...))
    print(maitred.compare_results(simulated, live))

benchmark.py    a run: what the endpoint serves and how it counts, warm-up, the workload, Ctrl-C
discovered.py   the backends of --discover
observed.py     what clients saw, as the rows of a simulation
vllm_result.py  the result file of vLLM's benchmark

The clients are in `emulator.clients`. What comes out is a `maitred.Result`, as from a simulation; `calibration.validation` has
the same requests simulated, and the error of each figure.
"""

from __future__ import annotations

from collections.abc import Iterable

from maitred.emulator.clients.sender import SendTarget
from maitred.report import DEFAULT_SLO, Result, RunSetup, Slo
from maitred.report.arguments import horizon_of
from maitred.study.live.benchmark import CHAT, COMPLETIONS, BenchPlan, LiveRun, check_plan, run_benchmark
from maitred.wire.origin import Origin
from maitred.workload import Job, Workload


def bench(
    url: str,
    workload: Iterable[Job] | Workload,
    *,
    model: str = "",
    chat: bool = False,
    max_concurrency: int | None = None,
    is_closed: bool = False,
    num_warmups: int = 0,
    stream: bool = True,
    ignore_eos: bool = True,
    headers: Iterable[tuple[str, str]] = (),
    horizon_secs: float | None = None,
    slo: Slo = DEFAULT_SLO,
    seed: int = 42,
) -> Result:
    """Send a workload to the endpoint at `url` (http://host:port) on its schedule, and return what its clients saw.

    `model` is the first that the endpoint serves if it is not given. Requests are completions, or chats. With `is_closed` the
    requests of a workload that are all planned at once are those of `max_concurrency` clients, and latencies count from
    sending. The run ends after `horizon_secs`. `seed` is only noted in the result: a workload has its own.

    Raises BenchError if the endpoint cannot be measured, and ConfigError for arguments that cannot be.
    """
    sent = tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers)
    plan = BenchPlan(
        endpoint=SendTarget(origin=Origin.parse(url, where="url"), path=CHAT if chat else COMPLETIONS, headers=sent),
        model=model,
        max_concurrency=max_concurrency,
        is_closed=is_closed,
        num_warmups=num_warmups,
        stream=stream,
        ignore_eos=ignore_eos,
        horizon=horizon_of(horizon_secs),
    )
    check_plan(plan)
    live = run_benchmark(workload.jobs() if isinstance(workload, Workload) else workload, plan)
    return Result(live.results, live_setup(plan, live, seed=seed), slo)


def live_setup(plan: BenchPlan, live: LiveRun, *, seed: int, workload: str = "", command: str = "") -> RunSetup:
    """Return the measured run."""
    chats = "chats" if plan.endpoint.path.endswith("/chat/completions") else "completions"
    place = f"the backends of {', '.join(plan.discover)}, in turn" if plan.discover else str(plan.endpoint.origin)
    parts = [f"{live.model} at {place}", f"{chats}, {'streaming' if plan.stream else 'not streaming'}"]
    if plan.max_concurrency is not None:
        since = ", latencies from sending" if plan.is_closed else ""
        parts.append(f"at most {plan.max_concurrency:,} in flight{since}")
    if plan.num_warmups:
        parts.append(f"after {plan.num_warmups:,} warm-up requests")
    return RunSetup(workload=workload, command=command, seed=seed, horizon=plan.horizon, sections={}, measured="; ".join(parts))
