"""The pages of engines that write their metrics as JSON: the iterations of TensorRT-LLM, and the engines behind SkyRL.

What they mean is in `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from maitred.admission.terms.config import MAX_SLOTS
from maitred.core.errors import JSON_ERRORS
from maitred.scheduler.engines.report import EngineCounts, EngineReport, KvMemory, num_requests, plausible, positive, sum_if_all

SKYRL_TOKENS_PER_ENGINE: Final = 200_000
"""The capacity that ThunderAgent assumes for an engine behind SkyRL, which reports none."""


class _KvCacheStats(msgspec.Struct, rename="camel"):
    max_num_blocks: Any = None
    used_num_blocks: Any = None
    tokens_per_block: Any = None


class _BatchStats(msgspec.Struct, rename="camel"):
    num_scheduled_requests: Any = None


class Iteration(msgspec.Struct, rename="camel"):
    """One iteration of TensorRT-LLM, as far as it is read."""

    max_num_active_requests: Any = None
    max_batch_size_static: Any = None
    max_batch_size_runtime: Any = None
    num_active_requests: Any = None
    num_queued_requests: Any = None
    attention_dp_rank: Any = None
    inflight_batching_stats: _BatchStats | None = None
    kv_cache_stats: _KvCacheStats | None = None

    @property
    def slots(self) -> int | None:
        """Requests that one rank runs at once, or None if the iteration does not say it."""
        for value in (self.max_batch_size_runtime, self.max_batch_size_static, self.max_num_active_requests):
            if type(value) is int and value:
                return value if 1 <= value <= MAX_SLOTS else None
        return None

    @property
    def scheduled(self) -> int | None:
        """Requests in the batch of one rank."""
        return None if self.inflight_batching_stats is None else _count(self.inflight_batching_stats.num_scheduled_requests)

    @property
    def kv_usage(self) -> float | None:
        """Share of the KV blocks in use, 0 to 1."""
        stats = self.kv_cache_stats
        most, used = (None, None) if stats is None else (positive(stats.max_num_blocks), plausible(stats.used_num_blocks))
        return None if most is None or used is None else min(used / most, 1.0)

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that fit into the KV memory."""
        stats = self.kv_cache_stats
        blocks, size = (None, None) if stats is None else (positive(stats.max_num_blocks), positive(stats.tokens_per_block))
        return None if blocks is None or size is None else blocks * size


def read_trtllm(page: bytes | bytearray) -> EngineReport | None:
    """Return the report of the last iteration of each rank, or None if `page` is no list of iterations. Without an iteration
    since the page was last read the report is empty."""
    try:
        iterations = msgspec.json.decode(page, type=list[Iteration])
    except JSON_ERRORS:
        return None
    ranks = list({str(each.attention_dp_rank): each for each in iterations}.values())
    usage = _mean(each.kv_usage for each in ranks)
    # With attention data parallelism each row repeats what is active in all; the batches are those of the ranks.
    running = (
        sum_if_all(each.scheduled for each in ranks) if len(ranks) > 1 else _sum(each.num_active_requests for each in ranks)
    )
    counts = EngineCounts(
        num_requests_running=num_requests(running),
        num_requests_waiting=num_requests(_sum(each.num_queued_requests for each in ranks)),
        kv_cache_usage_perc=usage,
    )
    capacity, slots = sum_if_all(each.kv_tokens for each in ranks), sum_if_all(each.slots for each in ranks)
    return EngineReport(
        engine="trtllm",
        memories=(_only_memory(capacity, counts),),
        counts=counts,
        slots=None if slots is None else min(slots, MAX_SLOTS),
    )


class _SkyEngine(msgspec.Struct):
    """One engine behind SkyRL."""

    error: Any = None
    num_running_reqs: Any = None
    num_waiting_reqs: Any = None
    num_cumulative_preemption: Any = None
    kv_cache_usage_pct: Any = None


class _SkyPage(msgspec.Struct):
    engines: list[_SkyEngine]


def read_skyrl(page: bytes | bytearray) -> EngineReport | None:
    """Return the report of the engines behind SkyRL, or None if `page` has none."""
    try:
        engines = [engine for engine in msgspec.json.decode(page, type=_SkyPage).engines if engine.error is None]
    except JSON_ERRORS:
        return None
    if not engines:
        return None
    percents = [percent for engine in engines if (percent := plausible(engine.kv_cache_usage_pct)) is not None]
    counts = EngineCounts(
        num_requests_running=num_requests(_sum(engine.num_running_reqs for engine in engines)),
        num_requests_waiting=num_requests(_sum(engine.num_waiting_reqs for engine in engines)),
        kv_cache_usage_perc=_mean(percent / 100 for percent in percents),
        num_preemptions=_sum(engine.num_cumulative_preemption for engine in engines),
    )
    return EngineReport(engine="skyrl", memories=(_only_memory(SKYRL_TOKENS_PER_ENGINE * len(engines), counts),), counts=counts)


def _only_memory(capacity: int | None, counts: EngineCounts) -> KvMemory:
    """Return the memory of an engine that chooses the rank of a request itself."""
    running, waiting = counts.num_requests_running, counts.num_requests_waiting
    return KvMemory(capacity=capacity, usage=counts.kv_cache_usage_perc, running=running, waiting=waiting)


def _count(value: Any) -> int | None:
    number = plausible(value)
    return None if number is None else round(number)


def _sum(values: Iterable[Any]) -> int | None:
    known: Sequence[float] = [number for value in values if (number := plausible(value)) is not None]
    return round(sum(known)) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return min(sum(known) / len(known), 1.0) if known else None
