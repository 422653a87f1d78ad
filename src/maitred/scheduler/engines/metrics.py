"""The table of engines: which metric says what, and which of its rows count; and the parser of a page, which goes by it.

    field                vLLM                                        SGLang                            llama.cpp
    running              num_requests_running                        num_running_reqs                  requests_processing
    waiting              num_requests_waiting                        num_queue_reqs                    requests_deferred
    blocked              num_requests_waiting_by_reason (capacity)
    KV usage, 0 to 1     kv_cache_usage_perc, gpu_cache_usage_perc   token_usage                       kv_cache_usage_ratio
    progress             generation_tokens_total                     realtime_tokens_total,
                                                                     generation_tokens_total
    rows that are parts  engine (rank), model_name                   dp_rank, model_name, engine_type
    rows that are copies                                             pp_rank, tp_rank, moe_ep_rank, ...
    rows with a total                                                priority

How rows combine is in `metrics_page`. Over the rows that count, requests and counters are added up and usage is averaged.
SGLang counts generation_tokens_total only when a request has ended, and realtime_tokens_total in each step.

**TensorRT-LLM** writes JSON, a list of the iterations since it was last read. The last one counts, or the last of each
attention data-parallel rank, of which each runs a batch of its own. What it runs at once is the batch of its runtime
(`maxBatchSizeRuntime`), as its tuner sets it, or the configured one; `maxNumActiveRequests` is the limit of requests that it
has taken in, and counts only where the other two are 0, as its PyTorch backend leaves them.

**SkyRL** writes JSON: `engines[]` with kv_cache_usage_pct (0 to 100); the capacity is 200,000 tokens for each engine.

*Example.* `vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1` and the same for engine 1 are two
memories of 1,600 tokens. Where the page has `kv_cache_size_tokens`, that counts: with hybrid models a block holds tokens of
some layers only, and the product is too large."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from maitred.scheduler.engines.json_pages import read_skyrl, read_trtllm
from maitred.scheduler.engines.metrics_page import Labels, MetricsPage, Misfit, RowLabels, Samples, samples_pattern
from maitred.scheduler.engines.report import (
    MAX_RANKS,
    EngineCounts,
    EngineName,
    EngineReport,
    KvMemory,
    num_requests,
    positive,
    sum_if_all,
)

_Names = tuple[str, ...]


class EngineMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: the names of its metrics, of which the first that is on the page counts, and what its labels tell apart."""

    engine: EngineName
    rows: RowLabels
    running: _Names
    waiting: _Names
    blocked: _Names = ()
    blocked_where: tuple[str, str] = ("", "")
    """The label and its value of the rows of `blocked` that count."""
    kv_usage: _Names = ()
    progress: _Names = ()
    cache_config: _Names = ()
    """A metric whose labels are the configuration of the KV memory."""
    hit_rate: _Names = ()
    prefix_queries: _Names = ()
    prefix_hits: _Names = ()
    prompt_tokens: _Names = ()
    generation_tokens: _Names = ()
    kv_preemptions: _Names = ()
    completed: _Names = ()

    @property
    def names(self) -> Iterable[str]:
        """The names of all metrics."""
        for field in self.__struct_fields__:
            if field not in ("engine", "rows", "blocked_where"):
                yield from getattr(self, field)


VLLM: Final = EngineMetrics(
    engine="vllm",
    rows=RowLabels(rank="engine", parts=("model_name",)),
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    blocked=("vllm:num_requests_waiting_by_reason",),
    blocked_where=("reason", "capacity"),
    kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    progress=("vllm:generation_tokens_total",),
    cache_config=("vllm:cache_config_info",),
    prefix_queries=("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"),
    prefix_hits=("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"),
    prompt_tokens=("vllm:prompt_tokens_total",),
    generation_tokens=("vllm:generation_tokens_total",),
    kv_preemptions=("vllm:num_preemptions_total",),
    completed=("vllm:request_success_total",),
)
SGLANG: Final = EngineMetrics(
    engine="sglang",
    rows=RowLabels(
        rank="dp_rank",
        parts=("model_name", "engine_type"),
        copies=("pp_rank", "tp_rank", "moe_ep_rank", "attn_tp_rank", "attn_cp_rank"),
        totals=("priority",),
    ),
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    kv_usage=("sglang:token_usage",),
    progress=("sglang:realtime_tokens_total", "sglang:generation_tokens_total"),
    hit_rate=("sglang:cache_hit_rate",),
    prompt_tokens=("sglang:prompt_tokens_total",),
    generation_tokens=("sglang:generation_tokens_total",),
)
LLAMACPP: Final = EngineMetrics(
    engine="llamacpp",
    rows=RowLabels(),
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    kv_usage=("llamacpp:kv_cache_usage_ratio",),
    prompt_tokens=("llamacpp:prompt_tokens_total",),
    generation_tokens=("llamacpp:tokens_predicted_total",),
)
ENGINES: Final = (VLLM, SGLANG, LLAMACPP)
_STARTED_AT: Final = ("process_start_time_seconds",)
METRIC_NAMES: Final = tuple(dict.fromkeys([*(name for engine in ENGINES for name in engine.names), *_STARTED_AT]))
"""All metrics that are read, of all engines."""
_PATTERN: Final = samples_pattern(METRIC_NAMES)


def parse_engine_report(body: bytes | bytearray) -> EngineReport | None:
    """Return the report in `body`, the answer to /metrics, or None if it is of no engine that the table has."""
    first = body.lstrip()[:1]
    if first == b"{":
        return read_skyrl(body)
    if first == b"[":
        return read_trtllm(body)
    page = MetricsPage(body, _PATTERN)
    for engine in ENGINES:
        if any(name in page.names for name in engine.names):
            return _Reader(page, engine).report()
    return None


class _Reader:
    """Reads the page of one engine."""

    def __init__(self, page: MetricsPage, engine: EngineMetrics) -> None:
        self._page, self._engine = page, engine
        self._misfits: list[str] = []

    def report(self) -> EngineReport:
        """Return the report on the page."""
        engine = self._engine
        running, waiting, usage = (self._gauge(names) for names in (engine.running, engine.waiting, engine.kv_usage))
        configs = self._page.samples(engine.cache_config)
        started = [row.value for row in self._page.samples(_STARTED_AT) if row.value is not None]
        sizes = {labels.get("block_size") for labels, _ in configs}
        return EngineReport(
            engine=engine.engine,
            memories=tuple(self._memories(configs, usage, running, waiting)),
            counts=self._counts(running, waiting, usage),
            blocked=num_requests(_total(self._blocked())),
            progress=self._counter(engine.progress),
            block_size=positive(sizes.pop()) if len(sizes) == 1 else None,
            num_blocks=sum_if_all(positive(labels.get("num_gpu_blocks")) for labels, _ in configs),
            started_at=max(started, default=None),
            has_waiting=bool(self._page.samples(engine.waiting)),
            misfits=tuple(self._misfits),
        )

    def _counts(self, running: Samples, waiting: Samples, usage: Samples) -> EngineCounts:
        engine = self._engine
        queries, hits = self._counter(engine.prefix_queries), self._counter(engine.prefix_hits)
        hit_rate = hits / queries if queries and hits is not None else _mean_share(self._gauge(engine.hit_rate))
        return EngineCounts(
            num_requests_running=num_requests(_total(running)),
            num_requests_waiting=num_requests(_total(waiting)),
            kv_cache_usage_perc=_mean_share(usage),
            prefix_cache_hit_rate=hit_rate,
            prefix_cache_queries=queries,
            prefix_cache_hits=hits,
            prompt_tokens_total=self._counter(engine.prompt_tokens),
            generation_tokens_total=self._counter(engine.generation_tokens),
            num_preemptions=self._counter(engine.kv_preemptions),
            requests_completed=self._counter(engine.completed),
        )

    def _memories(self, configs: Samples, usage: Samples, running: Samples, waiting: Samples) -> Iterable[KvMemory]:
        for rank in self._ranks((*configs, *usage, *running)):
            yield KvMemory(
                rank=rank,
                capacity=sum_if_all(_capacity_of(labels) for labels, _ in self._of_rank(configs, rank)),
                usage=_mean_share(self._of_rank(usage, rank)),
                running=num_requests(_total(self._of_rank(running, rank))),
                waiting=num_requests(_total(self._of_rank(waiting, rank))),
            )

    def _ranks(self, samples: Samples) -> Iterable[int | None]:
        """Return the data-parallel ranks of these rows, or [None] for one memory."""
        ranks = {labels.get(self._engine.rows.rank or "", "0") for labels, _ in samples}
        if len(ranks) < 2 or not all(rank.isdecimal() and int(rank) < MAX_RANKS for rank in ranks):
            return [None]
        return sorted(int(rank) for rank in ranks)

    def _of_rank(self, samples: Samples, rank: int | None) -> Samples:
        label = self._engine.rows.rank or ""
        return [row for row in samples if rank is None or row.labels.get(label, "0") == str(rank)]

    def _gauge(self, names: _Names) -> Samples:
        """Return the rows of a gauge that count, or none if that is not known."""
        return self._counted(self._page.samples(names), names)

    def _blocked(self) -> Samples:
        label, value = self._engine.blocked_where
        rows = [row for row in self._page.samples(self._engine.blocked) if row.labels.get(label) == value]
        return self._counted(rows, self._engine.blocked)

    def _counted(self, rows: Samples, names: _Names) -> Samples:
        try:
            return self._engine.rows.counted(rows)
        except Misfit as misfit:
            where = f"the rows of {names[0]} differ in the label `{misfit}`"
            self._misfits.append(f"{where}, and whether they are parts of one number or copies of it is not known")
            return ()

    def _counter(self, names: _Names) -> int | None:
        """Return a counter. Whatever its rows differ in beside copies and totals, they are parts of what was counted."""
        rows = self._engine.rows
        known = msgspec.structs.replace(rows, parts=(*rows.parts, *_labels_of(self._page.samples(names))))
        return _total(known.counted(self._page.samples(names)))


def _labels_of(samples: Samples) -> Iterable[str]:
    return {label for row in samples for label in row.labels}


def _sum(samples: Samples) -> float | None:
    """Return the sum of these rows, or None if there are none, or the value of one is unknown."""
    known = [row.value for row in samples if row.value is not None]
    return sum(known) if known and len(known) == len(samples) else None


def _total(samples: Samples) -> int | None:
    total = _sum(samples)
    return None if total is None else round(total)


def _mean_share(samples: Samples) -> float | None:
    total = _sum(samples)
    return None if total is None else min(total / len(samples), 1.0)


def _capacity_of(labels: Labels) -> int | None:
    """Return the tokens that a vllm:cache_config_info describes."""
    size = positive(labels.get("kv_cache_size_tokens"))
    if size is not None:
        return size
    block, blocks = positive(labels.get("block_size")), positive(labels.get("num_gpu_blocks"))
    return None if block is None or blocks is None else block * blocks
