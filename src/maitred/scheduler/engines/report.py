"""EngineReport: what one reading of an engine's `/metrics` says, whatever the engine and the format of its page.

`metrics` makes reports. Everything that goes by the load or the memory of an engine reads one: routing and flow control
(`Backend.waiting`, `running`, `kv_usage`), learned slots (`EngineReport.reading`), and agent programs (`memories`, `counts`).

**What is not said is unknown**, not 0: a series that is absent, has no number (`num_gpu_blocks="None"` while an engine starts,
`NaN`) or one that makes no sense is None. A sum of which a part is unknown is unknown.

**A memory** is what one program must fit into. vLLM and SGLang let a client choose the data-parallel rank of a request, so each
rank is a memory of its own where the page tells them apart. SkyRL and TensorRT-LLM choose for themselves: all that is behind
the address is one memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any, Final, Literal, TypeAlias

import msgspec

from maitred.admission.learned_slots import EngineReading

EngineName: TypeAlias = Literal["vllm", "sglang", "trtllm", "llamacpp", "skyrl"]
MAX_RANKS: Final = 1024
"""Data-parallel ranks that are told apart. A page with higher ones describes one memory."""
MAX_CAPACITY: Final = 2**48
"""Tokens; a larger number is not believed."""
_MAX_VALUE: Final = 1e15
"""A gauge or counter of an engine is smaller; a larger number is not believed."""
MAX_REQUESTS: Final = 1_000_000
"""Requests that an engine runs or keeps waiting; a larger number is not believed."""


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


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one reading of an engine has shown."""

    engine: EngineName
    memories: tuple[KvMemory, ...]
    """By rank. At least one."""
    counts: EngineCounts = EngineCounts()
    blocked: int | None = None
    """Waiting requests that wait for capacity, where the engine tells why they wait."""
    progress: int | None = None
    """A counter that grows with each step of the engine."""
    slots: int | None = None
    """Requests that the engine runs at once, where the page says so."""
    block_size: int | None = None
    """Tokens of a block, if all ranks agree."""
    num_blocks: int | None = None
    """Blocks of all ranks."""
    started_at: float | None = None
    """When the process started, s."""
    has_waiting: bool = False
    """Whether the page has a gauge of waiting requests, be its number known or not."""
    misfits: tuple[str, ...] = ()
    """What on the page fits no row of the table, in words; such a metric is unknown."""

    @property
    def capacity(self) -> int | None:
        """Tokens of all memories together, or None if one is unknown."""
        return sum_if_all(memory.capacity for memory in self.memories)

    @property
    def has_load(self) -> bool:
        """Whether the engine says how many requests it runs."""
        return self.counts.num_requests_running is not None

    @property
    def running(self) -> int | None:
        """Requests in the running batch."""
        return self.counts.num_requests_running

    @property
    def kv_usage(self) -> float | None:
        """Share of the KV memory in use, 0 to 1."""
        return self.counts.kv_cache_usage_perc

    @property
    def waiting(self) -> int | None:
        """Requests in the engine's own queue; 0 if it has no such gauge, as vLLM has none until something has waited. None if
        what the gauge says makes no sense, or its rows fit no row of the table."""
        waiting = self.counts.num_requests_waiting
        return 0 if waiting is None and not self.has_waiting else waiting

    @property
    def reading(self) -> EngineReading | None:
        """What learned slots go by, or None if the engine does not say how many requests it runs. Of the waiting requests only
        those count that wait for capacity: others may never leave, and are no sign of a limit."""
        running = self.counts.num_requests_running
        if running is None:
            return None
        return EngineReading(
            running=running,
            waiting=(self.waiting or 0) if self.blocked is None else self.blocked,
            kv_usage=self.counts.kv_cache_usage_perc or 0.0,
            kv_preemptions=self.counts.num_preemptions or 0,
            progress=self.progress,
        )


def has_restarted(before: EngineReport, after: EngineReport) -> bool:
    """Return whether the engine that `after` describes has started since `before`: counters of one process only grow."""
    if before.started_at is not None and after.started_at is not None and after.started_at > before.started_at + 1:
        return True
    return any(
        old is not None and new is not None and new < old
        for name in ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries", "requests_completed")
        for old, new in [(getattr(before.counts, name), getattr(after.counts, name))]
    )


def parse_number(text: str) -> float | None:
    """Return the value of a sample, or None for one that no gauge or counter of an engine can have."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and 0 <= value < _MAX_VALUE else None


def plausible(value: Any) -> float | None:
    """Return a number, or a text that is one, or None for anything else."""
    return parse_number(str(value)) if type(value) in (int, float, str) else None


def positive(value: Any) -> int | None:
    """Return a number of tokens or blocks, or None for anything else."""
    number = plausible(value)
    return int(number) if number is not None and 1 <= number <= MAX_CAPACITY else None


def num_requests(value: float | None) -> int | None:
    """Return a number of requests in an engine, or None if no engine can have so many, or it is not known."""
    return round(value) if value is not None and value <= MAX_REQUESTS else None


def sum_if_all(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None if there is no value or one is unknown."""
    total = None
    for value in values:
        if value is None:
            return None
        total = value if total is None else total + value
    return total
