"""What each way of batching makes of a recorded trace when KV memory is short.

    python bench/batching_table.py --trace azure:AzureLLMInferenceTrace_conv.csv.gz --max-requests 6000 --write docs/batching.md
    python bench/batching_table.py --paused-last

**Load.** The trace is run once with so many KV blocks that none is ever lacking, and the mean of the blocks in use is taken,
from the arrival of the tenth part of the requests to the last arrival. That is the demand at the offered rate. A load of 95 %
is an instance whose memory has demand / 0.95 blocks: requests, rate and GPUs are the same in every row, and only the memory is
not.

**Limits.** The traces do not say how many tokens a client allowed. `--limits answer` takes the length of the answer, as
benchmarks do that switch the end of the answer off: then guaranteed-no-evict knows every answer beforehand. A number is the
limit of all clients, as with programs that always ask for the same.

`--paused-last` is a small scene for a question: which rule would make max-utilization lose as much as a user of TensorRT-LLM
measured (its issue 16827)?
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from maitred import ClusterConfig, InstanceConfig, Job, Results
from maitred.batching import KvCacheView, MaxUtilization, RequestList
from maitred.core.request import Request
from maitred.core.units import SECOND
from maitred.sim import simulate
from maitred.workload import open_trace
from policies import write

LOADS = (0.70, 0.95, 1.20)
ROWS: Mapping[str, Mapping[str, Any]] = {
    "`vllm`": {"flavour": "vllm"},
    "`sglang`": {"flavour": "sglang"},
    "`trtllm`: guaranteed-no-evict": {"flavour": "trtllm"},
    "`trtllm`: max-utilization": {"flavour": "trtllm", "batching": "max-utilization"},
    "`trtllm`: static-batch": {"flavour": "trtllm", "batching": "static-batch"},
    "`maitred`": {"flavour": "maitred"},
}
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
    """The figures of a row: tokens per second, TTFT in s, TPOT in ms, and tokens of KV that were computed again."""

    throughput: float
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    pauses: int
    recomputed: int

    @property
    def cells(self) -> list[str]:
        return [
            f"{self.throughput:,.0f}",
            *(f"{each:,.2f}" for each in self.ttft),
            *(f"{each:,.1f}" for each in self.tpot),
            f"{self.pauses:,}",
            f"{self.recomputed:,}",
        ]


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
        pauses=int(results.preemptions.sum()),
        recomputed=int(results.wasted_tokens.sum()),
    )


def run(jobs: Sequence[Job], blocks: int, keys: Mapping[str, Any], sample: bool = False) -> Results:
    config = InstanceConfig.of_flavour(**{**GPUS, "total_kv_blocks": blocks, **keys})
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
        yield "| load | batching | tokens/s | TTFT p50, s | p99 | TPOT p50, ms | p99 | pauses | tokens computed again |"
        yield "|---|---|" + "---:|" * 7
        for load in LOADS:
            for name, keys in ROWS.items():
                cells = figures(run(jobs, int(blocks / load), {**size, **keys})).cells
                yield f"| {load:.0%} | {name} | {' | '.join(cells)} |"
        yield ""


class PausedLast(MaxUtilization):
    """As max-utilization, but a paused request goes behind all others, so it is the next to be paused again."""

    def __init__(self, max_num_requests: int, kv_cache_manager: KvCacheView) -> None:
        super().__init__(max_num_requests, kv_cache_manager)
        self._places: dict[int, int] = {}

    def schedule_request(self, active_requests: RequestList) -> tuple[RequestList, RequestList, RequestList]:
        order = sorted(active_requests, key=lambda request: self._places.get(request.request_id, 0))
        fitting, disagg, paused = super().schedule_request(order)
        self._places.update((request.request_id, len(self._places) + 1) for request in paused)
        return fitting, disagg, paused


def paused_last() -> Iterator[str]:
    """Yield a table of 256 requests for 512 tokens at once, 64 at a time, in memory for about 30 of them."""
    jobs = [Job(Request(id=n, arrival=0, prompt_tokens=4800 + n * 37 % 1000, max_output_tokens=512), 512) for n in range(256)]
    yield "| batching | tokens/s | TTFT p50, s | p99 | TPOT p50, ms | p99 | pauses | tokens computed again |"
    yield "|---|" + "---:|" * 7
    for name in ("guaranteed-no-evict", "max-utilization", f"{__name__}:PausedLast", "maitred"):
        keys = {"flavour": "trtllm", "batching": name, "enable_prefix_caching": False}
        size = {"max_num_seqs": 64, "tensor_parallel_size": 2, "max_model_len": 131_072}
        said = "max-utilization, paused requests behind all others" if ":" in name else name
        yield f"| {said} | {' | '.join(figures(run(jobs, 5400, {**size, **keys})).cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="sample:mixed", help="FORMAT:FILE or sample:NAME (default: %(default)s)")
    parser.add_argument("--max-requests", type=int, default=6000, help="only the first N requests (default: %(default)s)")
    parser.add_argument("--limits", nargs="+", default=["answer", "1000"], help="`answer`, or tokens (default: both of these)")
    parser.add_argument("--tensor-parallel-size", type=int, default=2)
    parser.add_argument("--max-model-len", type=int, default=16_384, help="tokens (default: %(default)s)")
    parser.add_argument("--paused-last", action="store_true", help="the small scene instead")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document")
    options = parser.parse_args()
    lines = paused_last() if options.paused_last else table(options)
    what = " --paused-last" if options.paused_last else f": {Path(options.trace).name.partition('.')[0]}"
    maker = f"bench/batching_table.py{what}"
    if options.write:
        write(options.write, maker, "\n".join(lines).rstrip())
        return
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
