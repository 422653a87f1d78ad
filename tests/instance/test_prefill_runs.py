"""Equal chunks of a prompt are counted at once, and nothing tells: no event, and nothing that is seen of an instance at any
instant, is other than one step after the other, in every flavour that computes prompts in chunks."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.compat.instance_rules import new_instance
from maitred.core.contracts import BatchShape
from maitred.core.request import Request
from maitred.instance import Instance, InstanceConfig, LinearLatency
from maitred.instance.catalogue import find_hardware, find_model
from maitred.instance.latency import Deployment, RooflineLatency
from maitred.instance.latency.base import LatencySpec, StepTimes
from maitred.instance.sglang_config import SGLangConfig
from maitred.instance.step_meter import ItlLog, StepMeter
from maitred.kv import PromptTokenIds

BLOCK = 4
FLAVOURS: dict[str, dict[str, Any]] = {
    "no prefix cache": {},
    "threshold": {"long_prefill_token_threshold": 12},
    "adaptive threshold": {"long_prefill_token_threshold": 6, "long_prefill_token_threshold_adaptive": True},
    "first chunk must fit": {"enable_prefix_caching": True, "scheduler_reserve_full_isl": False},
    "prefix cache": {"enable_prefix_caching": True},
    "radix tree": {"enable_prefix_caching": True, "prefix_cache": "radix"},
    "ahead": {"async_scheduling": True},
    "vllm": {"flavour": "vllm"},
    "by the cache": {"flavour": "vllm", "scheduler": "lpm"},
    "by service": {"scheduler": "vtc"},
    "ageing": {"scheduler": "aged-sjf"},
    "sglang": {"flavour": "sglang"},
    "sglang, mixed": {"flavour": "sglang", "sglang": SGLangConfig(enable_mixed_chunk=True)},
    "sglang, no cache": {"flavour": "sglang", "scheduler": "fcfs", "enable_prefix_caching": False},
    "trtllm": {"flavour": "trtllm"},
    "trtllm, chunks in turn": {"flavour": "trtllm", "context_chunking_policy": "equal-progress"},
    "trtllm, first come": {"flavour": "trtllm", "context_chunking_policy": "first-come-first-served"},
    "trtllm, evicts": {"flavour": "trtllm", "batching": "max-utilization"},
    "maitred": {"flavour": "maitred"},
    "blis": {"flavour": "blis", "long_prefill_token_threshold": 24},
}


class Uneven(StepTimes):
    """Times that fall and rise with the tokens before a chunk, so that no two steps need be alike."""

    def micros(self, batch: BatchShape) -> float:
        before = sum(chunk.num_computed_tokens * chunk.num_tokens for chunk in batch.chunks)
        return 30 + 2 * batch.prefill_tokens + 3 * batch.num_decodes + before * 7919 % 61 + batch.context_tokens * 0.3


ON_H100 = RooflineLatency(Deployment(model=find_model("meta-llama/llama-3.1-8b-instruct"), hardware=find_hardware("H100")))


def latency(name: str) -> LatencySpec:
    if name == "linear":
        return LinearLatency((40, 1, 2.5))
    return Uneven() if name == "uneven" else ON_H100


def jobs_of(rng: Random) -> list[tuple[Request, int]]:
    """Return requests with long prompts, of which some begin alike, and short answers."""
    jobs, now = [], 0
    for number in range(rng.randint(2, 12)):
        now += rng.choice([0, 0, 10, 150, 900, 4000])
        common, own = rng.choice([0, 30, 130]), rng.choice([1, 25, 90, 260])
        tokens = (*range(common), *(1000 * number + i for i in range(own)))
        request = Request(
            id=number,
            arrival=now,
            prompt_tokens=len(tokens),
            max_output_tokens=rng.choice([None, 30]),
            tenant=rng.choice("ab"),
            deadline=rng.choice([None, None, None, now + 1500]),
            prefix=PromptTokenIds(tokens),
        )
        jobs.append((request, rng.randint(1, 40)))
    return jobs


def driven(config: InstanceConfig, jobs: list[tuple[Request, int]], looks: set[int], aborts: dict[int, int]) -> list[Any]:
    """Return all that can be seen of an instance: its events, what is used and cached at the instants `looks`, and the gaps."""
    engine, coming, seen, log = new_instance(config, Random(5)), list(jobs), list[Any](), ItlLog()
    engine.observe(meter := StepMeter(config.latency_model(), log), log)
    instants = sorted(looks | aborts.keys())
    while True:
        due = engine.next_event()
        others = [request.arrival for request, _ in coming[:1]] + instants[:1]
        if due is None and not others:
            gaps = meter.itl_sketch
            return [*seen, meter.busy_time, gaps.count, gaps.total, [*log.stretch_steps], [*log.stretch_times]]
        now = min([*others, *([] if due is None else [due])])
        if now in aborts:
            engine.abort(aborts[now], now)
        while coming and coming[0][0].arrival == now:
            engine.enqueue(*coming.pop(0), now)
        seen += [
            (e.at, int(e.kind), e.seq.request.id, e.seq.num_output_tokens, e.seq.num_cached_tokens) for e in engine.advance(now)
        ]
        if instants[:1] == [now]:
            seen.append((now, instants.pop(0), engine.running, engine.waiting, engine.free_blocks, *cached(engine, jobs)))
        engine.check()


def cached(engine: Instance, jobs: list[tuple[Request, int]]) -> list[int]:
    cache = engine.prefix_cache
    return [] if cache is None else [cache.num_cached_blocks(cache.block_hashes(request)) for request, _ in jobs]


@pytest.mark.parametrize("flavour", FLAVOURS)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    model=st.sampled_from(["linear", "linear", "uneven", "roofline"]),
    seqs=st.sampled_from([2, 64]),
    blocks=st.sampled_from([100, 120, 400]),
    tokens=st.sampled_from([24, 32, 500]),
    looks=st.sets(st.integers(0, 9000), max_size=6),
    aborts=st.dictionaries(st.integers(0, 5000), st.integers(0, 5), max_size=3),
)
def test_nothing_tells_how_many_chunks_were_counted_at_once(
    flavour: str, seed: int, model: str, seqs: int, blocks: int, tokens: int, looks: set[int], aborts: dict[int, int]
) -> None:
    keys = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens, "total_kv_blocks": blocks, "latency": latency(model)}
    keys |= {"block_size_in_tokens": BLOCK, **FLAVOURS[flavour]}
    jobs = jobs_of(Random(seed))
    skipping, stepping = (
        driven(InstanceConfig(**keys, step_by_step=by_step), jobs, looks, aborts) for by_step in (False, True)
    )
    assert skipping == stepping


def test_few_steps_are_asked_for_in_vain_while_arrivals_cut_the_run_of_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, micros = list[BatchShape](), Uneven.micros

    def noted(model: Uneven, batch: BatchShape) -> float:
        if batch.chunks:
            asked.append(batch)
        return micros(model, batch)

    monkeypatch.setattr(Uneven, "micros", noted)
    config = InstanceConfig(latency=Uneven(), long_prefill_token_threshold=4, total_kv_blocks=2000, block_size_in_tokens=BLOCK)
    prompts = [(Request(id=0, arrival=0, prompt_tokens=1), 2000), (Request(id=1, arrival=0, prompt_tokens=4000), 1)]
    prompts += [(Request(id=i, arrival=300 * i, prompt_tokens=2), 1) for i in range(2, 200)]
    driven(config, prompts, set(), {})
    steps = 4000 // 4
    assert len(asked) < 12 * steps
