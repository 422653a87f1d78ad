"""What an engine's `/server_info` says: how many requests the engine runs at once, and how many tokens its KV memory holds.

**Slots.** SGLang's page holds its arguments beside their results: `max_running_requests` as configured, or null, and for each
data-parallel rank an internal state with `effective_max_running_requests_per_dp`, which that rank really runs. The sum over the
ranks counts if all report it, otherwise what is configured. Two ranks that run 256 each make 512 slots. Other engines and
routers report `max_running_requests` at the top, or pass their arguments on as `server_args`. vLLM, started with
`VLLM_SERVER_DEV_MODE=1`, has `vllm_config.scheduler_config.max_num_seqs`, which counts for each of the data-parallel engines
that are behind the address.

**KV memory.** SGLang reports `max_total_num_tokens`, that of one rank, and `internal_states[].memory_usage.token_capacity`. It
does not say which of its ranks a capacity belongs to, so all count with the least of them; where the metrics page has no ranks,
capacities are added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from maitred.admission.terms.config import MAX_SLOTS
from maitred.core.errors import JSON_ERRORS
from maitred.scheduler.engines.report import MAX_RANKS, positive

SERVER_INFO_PATHS: Final = ("/server_info", "/get_server_info")
"""Where the arguments are; the second is the older path."""
AS_JSON: Final = "?config_format=json"
"""The query with which vLLM writes its configuration as JSON. Without it, the configuration is one text."""


class ServerArguments(msgspec.Struct):
    """The arguments that are looked for, at the top and inside the answer."""

    max_running_requests: Any = None
    effective_max_running_requests_per_dp: Any = None


class VllmSchedulerConfig(msgspec.Struct):
    """The scheduler's part of vLLM's configuration."""

    max_num_seqs: Any = None


class ParallelConfig(msgspec.Struct):
    """How vLLM spreads its data-parallel engines."""

    data_parallel_size: Any = None
    data_parallel_size_local: Any = None
    data_parallel_external_lb: Any = None
    data_parallel_hybrid_lb: Any = None

    @property
    def engines(self) -> int:
        """Data-parallel engines behind one address: with an external load balancer one, with a hybrid one those of the node."""
        size = self.data_parallel_size_local if self.data_parallel_hybrid_lb is True else self.data_parallel_size
        return size if _is_plausible(size) and self.data_parallel_external_lb is not True else 1


class VllmConfig(msgspec.Struct):
    """vLLM's configuration."""

    scheduler_config: VllmSchedulerConfig | None = None
    parallel_config: ParallelConfig | None = None

    @property
    def slots(self) -> int | None:
        """Requests that the engines behind the address run at once, or None if that is not said."""
        seqs: int | None = None if self.scheduler_config is None else self.scheduler_config.max_num_seqs
        if seqs is None or not _is_plausible(seqs):
            return None
        return min(seqs * (1 if self.parallel_config is None else self.parallel_config.engines), MAX_SLOTS)


class ServerInfo(ServerArguments):
    """The answer to `/server_info`, as far as slots go by it."""

    vllm_config: VllmConfig | str | None = None
    internal_states: list[ServerArguments] | None = None
    server_args: ServerArguments | None = None


_decode_server_info = msgspec.json.Decoder(ServerInfo).decode


def parse_reported_slots(body: bytes | bytearray) -> int | None:
    """Return how many requests the backend can run at once, or None if it does not report it. Raises msgspec.DecodeError."""
    info = _decode_server_info(body)
    states = info.internal_states or []
    ranks: list[int] = [state.effective_max_running_requests_per_dp for state in states]
    if ranks and all(map(_is_plausible, ranks)):
        return min(sum(ranks), MAX_SLOTS)
    if isinstance(info.vllm_config, VllmConfig) and info.vllm_config.scheduler_config is not None:
        return info.vllm_config.slots
    for arguments in (info, info.server_args, *states):
        if arguments is not None and _is_plausible(arguments.max_running_requests):
            slots: int = arguments.max_running_requests
            return slots
    return None


def has_text_config(body: bytes | bytearray) -> bool:
    """Return whether this is vLLM's answer with its configuration as text. Raises msgspec.DecodeError."""
    return isinstance(_decode_server_info(body).vllm_config, str)


def _is_plausible(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SLOTS


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
        ranks = [None if state.memory_usage is None else positive(state.memory_usage.token_capacity) for state in states]
        known = [rank for rank in ranks if rank is not None]
        of_one = positive(fields.max_total_num_tokens)
        if known and len(known) == len(ranks) and (len(ranks) > 1 or of_one is None):
            return known
        if of_one is not None:
            return [of_one] * min(max(positive(fields.dp_size) or 1, len(ranks)), MAX_RANKS)
    return ()
