"""What pages of an engine say of its KV memory: how large it is, how much of it is in use, and whether it is still the same.

    vLLM     /metrics       vllm:cache_config_info (labels), vllm:kv_cache_usage_perc; a series for each data-parallel rank
    SGLang   /server_info   max_total_num_tokens, internal_states[].memory_usage.token_capacity
             /metrics       sglang:token_usage; a series for each data-parallel rank
    SkyRL    /metrics       JSON: engines[] with kv_cache_usage_pct (0 to 100); the capacity is 200,000 tokens for each engine

**A memory** is what one program must fit into. vLLM and SGLang let a client choose the data-parallel rank of a request, so each
rank is a memory of its own where the page tells them apart, vLLM by the label `engine`, SGLang by `dp_rank`. SGLang's
/server_info does not say which of its ranks a capacity belongs to; all have the least of them. SkyRL chooses for itself; all
that is behind its address is one memory, and capacities are added up. So they are where SGLang's page has no ranks.

**What is not said is unknown**, not 0: a series that is absent, has no number (`num_gpu_blocks="None"` while an engine starts,
`NaN`) or one that makes no sense is left out. A sum of which a part is unknown is unknown.

Example: `vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1` and the same for engine 1 are two memories
of 1,600 tokens. Where the page has `kv_cache_size_tokens`, that counts: with hybrid models a block holds tokens of some layers
only, and the product is too large.

**A restart** shows in counters that fall, since counters of one process only grow, and in a later start of the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, Literal, TypeAlias

import msgspec

from maitred.core.errors import JSON_ERRORS

BackendType: TypeAlias = Literal["auto", "vllm", "sglang", "skyrl"]
"""The kind of an engine; `auto` goes by what the page is."""
SKYRL_TOKENS_PER_ENGINE: Final = 200_000
"""The capacity that ThunderAgent assumes for an engine behind SkyRL, which reports none."""
MAX_RANKS: Final = 1024
"""Data-parallel ranks that are told apart. A page with higher ones describes one memory."""
MAX_CAPACITY: Final = 2**48
"""Tokens; a larger number is not believed."""
_NAMES: Final = (
    *("vllm:cache_config_info", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prefix_cache_queries", "vllm:prefix_cache_queries_total"),
    *("vllm:prefix_cache_hits", "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    *("vllm:num_preemptions_total", "vllm:request_success_total"),
    *("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage", "sglang:cache_hit_rate"),
    *("sglang:prompt_tokens_total", "sglang:generation_tokens_total", "process_start_time_seconds"),
)
"""What is read. A page has a thousand more lines, most of them buckets, and to parse them all takes the event loop 10 ms."""
_VLLM_RANK: Final = "engine"
_SGLANG_RANK: Final = "dp_rank"
"""The labels of the data-parallel rank."""
_SERIES: Final = re.compile(rf"^({'|'.join(_NAMES)})(\{{.*\}})?[ \t]+(\S+)", re.MULTILINE)
_LABEL: Final = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


class KvMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One memory of an engine. None stands for what is not reported."""

    rank: int | None = None
    """The data-parallel rank, or None if the memory is all that is behind the address."""
    capacity: int | None = None
    """Tokens."""
    usage: float | None = None
    """Share that running requests use, 0 to 1. Blocks that are only cached count as free."""
    running: int | None = None
    waiting: int | None = None


class EngineCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine counts, all ranks together, under ThunderAgent's names. None stands for what is not reported."""

    num_requests_running: int | None = None
    num_requests_waiting: int | None = None
    kv_cache_usage_perc: float | None = None
    """Mean over the ranks, 0 to 1."""
    prefix_cache_hit_rate: float | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    num_preemptions: int | None = None
    requests_completed: int | None = None


class KvReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one reading of an engine has shown."""

    engine: Literal["vllm", "sglang", "skyrl"]
    memories: tuple[KvMemory, ...]
    """By rank. At least one."""
    counts: EngineCounts = EngineCounts()
    block_size: int | None = None
    """Tokens of a block, if all ranks agree."""
    num_blocks: int | None = None
    """Blocks of all ranks."""
    started_at: float | None = None
    """When the process started, s."""

    @property
    def capacity(self) -> int | None:
        """Tokens of all memories together, or None if one is unknown."""
        return _sum_if_all(memory.capacity for memory in self.memories)


Labels: TypeAlias = Mapping[str, str]
_Samples: TypeAlias = Sequence[tuple[Labels, float]]


class MetricsPage:
    """The series of a page in Prometheus' text format that this module reads."""

    def __init__(self, body: bytes | bytearray) -> None:
        self._series: dict[str, list[tuple[Labels, float]]] = {}
        for name, labels, text in _SERIES.findall(body.decode("utf-8", "replace")):
            value = parse_number(text)
            if value is not None:
                found = dict(_LABEL.findall(labels)) if labels else {}
                self._series.setdefault(name, []).append((found, value))

    @property
    def names(self) -> Iterable[str]:
        """The names of all series with a value."""
        return self._series

    def samples(self, *names: str) -> _Samples:
        """Return the samples of the first of these series that is there."""
        return next((self._series[name] for name in names if name in self._series), ())

    def total(self, *names: str) -> int | None:
        """Return the sum of the first of these series that is there, or None if none is."""
        samples = self.samples(*names)
        return round(sum(value for _, value in samples)) if samples else None


def parse_kv_report(
    page: bytes | bytearray | None, backend_type: BackendType, info_capacities: Sequence[int] = ()
) -> KvReport | None:
    """Return what `page`, the answer to /metrics, says; or None if it says nothing of an engine of this type. `page` is None if
    there is none. `info_capacities` are what /server_info says (`parse_info_capacities`)."""
    if page is not None and page.lstrip()[:1] == b"{":
        return _read_skyrl(page) if backend_type in ("auto", "skyrl") else None
    series = MetricsPage(page or b"")
    if backend_type in ("auto", "vllm") and any(name.startswith("vllm:") for name in series.names):
        return _read_vllm(series)
    has_series = any(name.startswith("sglang:") for name in series.names)
    if backend_type in ("auto", "sglang") and (has_series or info_capacities):
        return _read_sglang(series, info_capacities)
    return None


def has_restarted(before: KvReport, after: KvReport) -> bool:
    """Return whether the engine that `after` describes has started since `before`."""
    if before.started_at is not None and after.started_at is not None and after.started_at > before.started_at + 1:
        return True
    return any(
        old is not None and new is not None and new < old
        for name in ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries", "requests_completed")
        for old, new in [(getattr(before.counts, name), getattr(after.counts, name))]
    )


def parse_number(text: str) -> float | None:
    """Return the value of a sample, or None for one that is no number, not finite or negative."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def _read_vllm(page: MetricsPage) -> KvReport:
    configs = page.samples("vllm:cache_config_info")
    usage = page.samples("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    running, waiting = page.samples("vllm:num_requests_running"), page.samples("vllm:num_requests_waiting")
    memories = [
        KvMemory(
            rank=rank,
            capacity=_sum_if_all(_capacity_of(labels) for labels, _ in _of_rank(configs, _VLLM_RANK, rank)),
            usage=_mean_share(_of_rank(usage, _VLLM_RANK, rank)),
            running=_sum_values(_of_rank(running, _VLLM_RANK, rank)),
            waiting=_sum_values(_of_rank(waiting, _VLLM_RANK, rank)),
        )
        for rank in _ranks_of((*configs, *usage, *running), _VLLM_RANK)
    ]
    sizes = {labels.get("block_size") for labels, _ in configs}
    queries = page.total("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries")
    hits = page.total("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits")
    counts = EngineCounts(
        num_requests_running=_sum_values(running),
        num_requests_waiting=_sum_values(waiting),
        kv_cache_usage_perc=_mean_share(usage),
        prefix_cache_hit_rate=hits / queries if queries and hits is not None else None,
        prefix_cache_queries=queries,
        prefix_cache_hits=hits,
        prompt_tokens_total=page.total("vllm:prompt_tokens_total"),
        generation_tokens_total=page.total("vllm:generation_tokens_total"),
        num_preemptions=page.total("vllm:num_preemptions_total"),
        requests_completed=page.total("vllm:request_success_total"),
    )
    return KvReport(
        engine="vllm",
        memories=tuple(memories),
        counts=counts,
        block_size=_positive(sizes.pop()) if len(sizes) == 1 else None,
        num_blocks=_sum_if_all(_positive(labels.get("num_gpu_blocks")) for labels, _ in configs),
        started_at=_started_at(page),
    )


def _ranks_of(samples: _Samples, label: str) -> Sequence[int | None]:
    """Return the ranks in the labels with this name, or [None] for one memory."""
    ranks = {labels.get(label, "0") for labels, _ in samples}
    if len(ranks) < 2 or not all(rank.isdecimal() and int(rank) < MAX_RANKS for rank in ranks):
        return [None]
    return sorted(int(rank) for rank in ranks)


def _of_rank(samples: _Samples, label: str, rank: int | None) -> _Samples:
    return [sample for sample in samples if rank is None or sample[0].get(label, "0") == str(rank)]


def _capacity_of(labels: Labels) -> int | None:
    """Return the tokens that a vllm:cache_config_info describes."""
    size = _positive(labels.get("kv_cache_size_tokens"))
    if size is not None:
        return size
    block, blocks = _positive(labels.get("block_size")), _positive(labels.get("num_gpu_blocks"))
    return None if block is None or blocks is None else block * blocks


def _read_sglang(page: MetricsPage, capacities: Sequence[int]) -> KvReport:
    usage = page.samples("sglang:token_usage")
    running, waiting = page.samples("sglang:num_running_reqs"), page.samples("sglang:num_queue_reqs")
    counts = EngineCounts(
        num_requests_running=_sum_values(running),
        num_requests_waiting=_sum_values(waiting),
        kv_cache_usage_perc=_mean_share(usage),
        prefix_cache_hit_rate=_mean_share(page.samples("sglang:cache_hit_rate")),
        prompt_tokens_total=page.total("sglang:prompt_tokens_total"),
        generation_tokens_total=page.total("sglang:generation_tokens_total"),
    )
    ranks = _ranks_of((*usage, *running), _SGLANG_RANK)
    memories = [
        KvMemory(
            rank=rank,
            capacity=_sum_if_all(capacities) if rank is None else min(capacities, default=None),
            usage=_mean_share(_of_rank(usage, _SGLANG_RANK, rank)),
            running=_sum_values(_of_rank(running, _SGLANG_RANK, rank)),
            waiting=_sum_values(_of_rank(waiting, _SGLANG_RANK, rank)),
        )
        for rank in ranks
    ]
    return KvReport(engine="sglang", memories=tuple(memories), counts=counts, started_at=_started_at(page))


class _SkyEngine(msgspec.Struct):
    """One engine behind SkyRL."""

    error: Any = None
    num_running_reqs: Any = None
    num_waiting_reqs: Any = None
    num_cumulative_preemption: Any = None
    kv_cache_usage_pct: Any = None


class _SkyPage(msgspec.Struct):
    engines: list[_SkyEngine]


def _read_skyrl(page: bytes | bytearray) -> KvReport | None:
    try:
        engines = [engine for engine in msgspec.json.decode(page, type=_SkyPage).engines if engine.error is None]
    except JSON_ERRORS:
        return None
    if not engines:
        return None
    usage = [share / 100 for engine in engines if (share := _plausible(engine.kv_cache_usage_pct)) is not None]
    counts = EngineCounts(
        num_requests_running=_sum_plausible(engine.num_running_reqs for engine in engines),
        num_requests_waiting=_sum_plausible(engine.num_waiting_reqs for engine in engines),
        kv_cache_usage_perc=min(sum(usage) / len(usage), 1.0) if usage else None,
        num_preemptions=_sum_plausible(engine.num_cumulative_preemption for engine in engines),
    )
    memory = KvMemory(
        capacity=SKYRL_TOKENS_PER_ENGINE * len(engines),
        usage=counts.kv_cache_usage_perc,
        running=counts.num_requests_running,
        waiting=counts.num_requests_waiting,
    )
    return KvReport(engine="skyrl", memories=(memory,), counts=counts)


class _MemoryUsage(msgspec.Struct):
    token_capacity: Any = None


class _RankState(msgspec.Struct):
    memory_usage: _MemoryUsage | None = None


class _InfoFields(msgspec.Struct):
    """What is looked for, at the top and under `server_info`."""

    max_total_num_tokens: Any = None
    dp_size: Any = None
    internal_states: list[_RankState] | None = None


class _InfoPage(_InfoFields):
    server_info: _InfoFields | None = None


_decode_info = msgspec.json.Decoder(_InfoPage).decode


def parse_info_capacities(body: bytes | bytearray) -> Sequence[int]:
    """Return the tokens of each data-parallel rank that SGLang's /server_info reports, in any order; nothing if it reports none
    or is no such page. `max_total_num_tokens` is that of one rank."""
    try:
        page = _decode_info(body)
    except JSON_ERRORS:
        return ()
    for fields in (page, page.server_info):
        if fields is None:
            continue
        states = fields.internal_states or []
        ranks = [None if state.memory_usage is None else _positive(state.memory_usage.token_capacity) for state in states]
        known = [rank for rank in ranks if rank is not None]
        of_one = _positive(fields.max_total_num_tokens)
        if known and len(known) == len(ranks) and (len(ranks) > 1 or of_one is None):
            return known
        if of_one is not None:
            return [of_one] * min(max(_positive(fields.dp_size) or 1, len(ranks)), MAX_RANKS)
    return ()


def _started_at(page: MetricsPage) -> float | None:
    samples = page.samples("process_start_time_seconds")
    return max(value for _, value in samples) if samples else None


def _mean_share(samples: _Samples) -> float | None:
    return min(sum(value for _, value in samples) / len(samples), 1.0) if samples else None


def _sum_values(samples: _Samples) -> int | None:
    return round(sum(value for _, value in samples)) if samples else None


def _sum_if_all(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None if there is no value or one is unknown."""
    total = None
    for value in values:
        if value is None:
            return None
        total = value if total is None else total + value
    return total


def _sum_plausible(values: Iterable[Any]) -> int | None:
    known = [number for value in values if (number := _plausible(value)) is not None]
    return round(sum(known)) if known else None


def _plausible(value: Any) -> float | None:
    """Return a number, or a text that is one, or None for anything else."""
    return parse_number(str(value)) if type(value) in (int, float, str) else None


def _positive(value: Any) -> int | None:
    number = _plausible(value)
    return int(number) if number is not None and 1 <= number <= MAX_CAPACITY else None
