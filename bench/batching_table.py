"""What each way of batching makes of a recorded trace when KV memory is short.

    python bench/batching_table.py --trace azure:AzureLLMInferenceTrace_conv.csv.gz --max-requests 6000 --write docs/batching.md
    python bench/batching_table.py --measured

**Load.** The trace is run once with so many KV blocks that none is ever lacking, and the mean of the blocks in use is taken,
from the arrival of the tenth part of the requests to the last arrival. That is the demand at the offered rate. A load of 95 %
is an instance whose memory has demand / 0.95 blocks: requests, rate and GPUs are the same in every row, and only the memory is
not.

**Limits.** The traces do not say how many tokens a client allowed. `--limits answer` takes the length of the answer, as
benchmarks do that switch the end of the answer off: then guaranteed-no-evict knows every answer beforehand. A number is the
limit of all clients, as with programs that always ask for the same.

`--measured` is the measurement of a user of TensorRT-LLM (its issue 16827): 128 requests of 16,384 tokens in and 512 out,
32 at a time, Llama 3.3 70B in FP8 on one H200. What is not said there is found from what is. The steps take `_SLOWNESS` times
as long as the latency model says, so that guaranteed-no-evict has the 161 tokens/s that were measured. And if a request ends
every 3.2 s and waits 35.8 s for its first token, then 11.3 of the 32 wait and 20.7 are in memory (Little's law).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from maitred import ClusterConfig, InstanceConfig, Job, Results
from maitred.batching import KvCacheView, MaxUtilization, RequestList
from maitred.batching.instance_kv_cache import ActiveRequest
from maitred.core.units import SECOND
from maitred.sim import simulate
from maitred.workload import Workload, open_trace
from maitred.workload.spec_clients import Client
from policies import write

LOADS = (0.70, 0.95, 1.20)
ROWS: Mapping[str, Mapping[str, Any]] = {
    "`vllm`": {"flavour": "vllm"},
    "`sglang`": {"flavour": "sglang"},
    "`trtllm`: guaranteed-no-evict": {"flavour": "trtllm"},
    "`trtllm`: max-utilization": {"flavour": "trtllm", "batching": "max-utilization"},
    "`trtllm`: max-utilization, prompts cut": {"flavour": "trtllm", "batching": f"{__name__}:CutPrompts"},
    "`trtllm`: static-batch": {"flavour": "trtllm", "batching": "static-batch"},
    "`maitred`": {"flavour": "maitred"},
}
POLICIES = ("`trtllm`: guaranteed-no-evict", "`trtllm`: max-utilization")
"""The two of which the better one is to be reached."""
HEADS = ("tokens/s", "TTFT p50, s", "p99", "TPOT p50, ms", "p99", "mean latency, s")
GPUS = {
    "model": "llama-3.1-70b",
    "hardware": "H200",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "block_size_in_tokens": 32,
}
PLENTY = 4_000_000
"""Blocks that no load here fills."""


class Figures(msgspec.Struct, frozen=True):
    """The figures of a row: tokens per second, TTFT in s, TPOT in ms, the mean time to the last token in s, and tokens of KV
    that were computed again."""

    throughput: float
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    latency: float
    pauses: int
    recomputed: int

    @property
    def cells(self) -> list[str]:
        return [
            f"{self.throughput:,.0f}",
            *(f"{each:,.2f}" for each in self.ttft),
            *(f"{each:,.1f}" for each in self.tpot),
            f"{self.latency:,.1f}",
            f"{self.pauses:,}",
            f"{self.recomputed:,}",
        ]

    def beside(self, others: Sequence[Figures]) -> list[str]:
        """Return each figure as a multiple of the best one among `others`."""
        costs = [(each.throughput, *each.ttft, *each.tpot, each.latency) for each in (self, *others)]
        best = [max(row[0] for row in costs[1:]), *(min(column) for column in list(zip(*costs[1:], strict=True))[1:])]
        return [f"{mine / theirs:.2f}" for mine, theirs in zip(costs[0], best, strict=True)]


def jobs_of(trace: str, most: int, limits: str) -> list[Job]:
    """Return the first `most` requests of `trace`, with limits on their answers."""
    with open_trace(trace) as source:
        jobs = list(islice(source, most))
    return [_limited(job, job.output_tokens if limits == "answer" else max(int(limits), job.output_tokens)) for job in jobs]


def _limited(job: Job, limit: int) -> Job:
    return msgspec.structs.replace(job, request=msgspec.structs.replace(job.request, max_output_tokens=limit))


def figures(results: Results) -> Figures:
    gaps = np.maximum(results.output_tokens - 1, 1)
    tpot = ((results.finished - results.first_token) / gaps)[results.output_tokens > 1]
    ttft = results.first_token - results.arrival
    return Figures(
        throughput=float(results.output_tokens.sum() / (results.end - results.arrival.min()) * SECOND),
        ttft=tuple(float(each) / SECOND for each in np.percentile(ttft, (50, 99))),
        tpot=tuple(float(each) / 1000 for each in np.percentile(tpot, (50, 99))),
        latency=float((results.finished - results.arrival).mean()) / SECOND,
        pauses=int(results.preemptions.sum()),
        recomputed=int(results.wasted_tokens.sum()),
    )


def run(jobs: Iterable[Job], blocks: int, keys: Mapping[str, Any], sample: bool = False) -> Results:
    config = InstanceConfig(**{**GPUS, "total_kv_blocks": blocks, **keys})
    return simulate(jobs, ClusterConfig(), config, sample_every=SECOND if sample else None)


def demand(jobs: Sequence[Job], keys: Mapping[str, Any]) -> float:
    """Return the mean of the blocks in use, while requests arrive, if there are more than enough."""
    samples = run(jobs, PLENTY, {"flavour": "vllm", "enable_prefix_caching": False, **keys}, sample=True).samples
    assert samples is not None
    begin, end = jobs[len(jobs) // 10].request.arrival, jobs[-1].request.arrival
    return float(samples.blocks_used[(samples.at >= begin) & (samples.at <= end)].mean())


def table(options: argparse.Namespace) -> Iterator[str]:
    """Yield a table in Markdown for each limit."""
    size = {"tensor_parallel_size": options.tensor_parallel_size, "max_model_len": options.max_model_len}
    for limits in options.limits:
        jobs = jobs_of(options.trace, options.max_requests, limits)
        blocks = demand(jobs, size)
        seconds = (jobs[-1].request.arrival - jobs[0].request.arrival) / SECOND
        said = "the length of the answer" if limits == "answer" else f"{int(limits):,} tokens"
        name, gpus = options.trace.rpartition("/")[2], f"Llama 3.1 70B on {options.tensor_parallel_size} H200"
        memory = f"demand {blocks:,.0f} blocks of {GPUS['block_size_in_tokens']} tokens"
        yield f"{len(jobs):,} requests of `{name}` in {seconds:,.0f} s; {gpus}; {memory}; limit on answers: {said}."
        yield ""
        yield f"| load | batching | {' | '.join(HEADS)} | pauses | tokens computed again |"
        yield "|---|---|" + "---:|" * 8
        ours = []
        for load in LOADS:
            found = {name: figures(run(jobs, int(blocks / load), {**size, **keys})) for name, keys in ROWS.items()}
            for name, row in found.items():
                yield f"| {load:.0%} | {name} | {' | '.join(row.cells)} |"
            ours.append((load, found["`maitred`"].beside([found[name] for name in POLICIES])))
        yield ""
        yield "`maitred` relative to the better of guaranteed-no-evict and max-utilization, figure by figure:"
        yield ""
        yield f"| load | {' | '.join(head.partition(',')[0] for head in HEADS)} |"
        yield "|---|" + "---:|" * 6
        for load, ratios in ours:
            yield f"| {load:.0%} | {' | '.join(ratios)} |"
        yield ""


class CutPrompts(MaxUtilization):
    """As max-utilization in an engine that cuts what a paused request keeps, prompt and answer, to its first `max_input_len`
    tokens, and stops where it would have stopped before. So most of it is generated anew, one token a step, and nothing comes
    out of that until it is longer than what the client has.

    It changes the sequence itself, which is no scheduler's business: here it stands for what the engine did.
    """

    def __init__(self, max_num_requests: int, kv_cache_manager: KvCacheView, *, max_input_len: int = 2048) -> None:
        super().__init__(max_num_requests, kv_cache_manager)
        self._max_input_len = max_input_len
        self._cuts: dict[int, int] = {}
        """How often each request has been paused and cut."""

    def schedule_request(self, active_requests: RequestList) -> tuple[RequestList, RequestList, RequestList]:
        for request in active_requests:
            if isinstance(request, ActiveRequest) and request.num_pauses > self._cuts.get(request.request_id, 0):
                self._cuts[request.request_id] = request.num_pauses
                self._cut(request, max(0, request.prompt_len - self._max_input_len))
        return super().schedule_request(active_requests)

    def _cut(self, request: ActiveRequest, tokens: int) -> None:
        seq = request.seq
        seq.num_tokens_to_prefill -= tokens
        seq.num_output_tokens -= tokens  # below 0: so many tokens until it is where its client's answer begins
        seq.num_accounted_output_tokens -= tokens
        request.prompt_len -= tokens
        request.num_tokens_before -= tokens
        request.max_new_tokens += tokens
        request.context_chunk_size = request.prompt_len


def measured() -> Iterator[str]:
    """Yield a table of the measured requests, with memory for all of them and with memory for about 20."""
    users = Client(
        id="users",
        concurrency=32,
        think_time_us=0,
        input_distribution="16384",
        output_distribution="512",
        timeout=3600 * SECOND,
    )
    engine = {"model": "llama-3.3-70b-fp8", "tensor_parallel_size": 1, "max_model_len": 20_000, "max_num_seqs": 64}
    yield f"| memory for | batching | {' | '.join(HEADS)} | pauses | tokens computed again |"
    yield "|---|---|" + "---:|" * 8
    for requests in (40.0, 20.7):
        for said, batching in _MEASURED.items():
            jobs = Workload(clients=(users,), num_requests=128, seed=1).jobs()
            keys = {**engine, "enable_prefix_caching": False, "latency_scale": _SLOWNESS, **batching}
            cells = figures(run(jobs, int(requests * _BLOCKS_EACH), keys)).cells
            yield f"| {requests:g} requests | {said} | {' | '.join(cells)} |"


_HOUR = 3600 * SECOND
_SLOWNESS = 1.52
_BLOCKS_EACH = (16_384 + 512) // 32
_MEASURED: Mapping[str, Mapping[str, Any]] = {
    "guaranteed-no-evict": {"flavour": "trtllm"},
    "max-utilization": {"flavour": "trtllm", "batching": "max-utilization"},
    "max-utilization, paused prompts cut": {"flavour": "trtllm", "batching": f"{__name__}:CutPrompts"},
    "`maitred`": {"flavour": "maitred"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="sample:mixed", help="FORMAT:FILE or sample:NAME (default: %(default)s)")
    parser.add_argument("--max-requests", type=int, default=6000, help="only the first N requests (default: %(default)s)")
    parser.add_argument("--limits", nargs="+", default=["answer", "1000"], help="`answer`, or tokens (default: both of these)")
    parser.add_argument("--tensor-parallel-size", type=int, default=2)
    parser.add_argument("--max-model-len", type=int, default=16_384, help="tokens (default: %(default)s)")
    parser.add_argument("--measured", action="store_true", help="the measurement of a user of TensorRT-LLM instead")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document")
    options = parser.parse_args()
    lines = measured() if options.measured else table(options)
    what = " --measured" if options.measured else f": {Path(options.trace).name.partition('.')[0]}"
    maker = f"batching_table.py{what}"
    if options.write:
        write(options.write, maker, "\n".join(lines).rstrip())
        return
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
