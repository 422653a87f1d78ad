"""InstanceConfig: the section `instance` of a configuration, for an emulated engine and for the instances of a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, Literal

import msgspec
from msgspec.structs import force_setattr

from maitred.batching import BatchLimits
from maitred.core.contracts import LatencyModel
from maitred.core.errors import ConfigError
from maitred.core.field_types import check_field_types
from maitred.core.units import Micros
from maitred.instance.flavours import FLAVOURS, NO_FLAVOUR, Flavour, FlavourName, flavour_keys
from maitred.instance.kv_offload import KvOffloadConfig
from maitred.instance.latency import LATENCY_MODELS, AnyLatency, LinearLatency, StepTable, TrainedPhysicsLatency, parse_latency
from maitred.instance.sglang_config import SGLangConfig
from maitred.instance.speculative import SpeculativeConfig, SpeculativeSteps
from maitred.instance.vllm_keys import VllmKeys
from maitred.kv import EVICTIONS, BlockPool, PrefixCache, RadixCache

DEFAULT_UTILISATION = 0.9
"""The share of the GPUs' memory that vLLM uses by default."""
_DEFAULT_KV_BLOCKS = 27_000
_UPPER_LIMITS = {
    "max_num_seqs": 1_000_000,
    "max_num_batched_tokens": 1_000_000_000,
    "max_chunk_tokens": 1_000_000_000,
    "total_kv_blocks": 1_000_000_000,
    "block_size_in_tokens": 65_536,
}
"""Far more than any engine has. A larger value is a slip of the keyboard, and would only exhaust memory."""
_MAX_GPUS = 4096
_MIN_BANDWIDTH = 1e-6
_EVERYWHERE = "long_prefill_token_threshold"
"""A key of vLLM that BLIS has, too."""
_HOUR: Micros = 3_600_000_000
_MAX_LATENCY_SCALE = 1_000_000
_SHORTEST_STEP = 100
"""Time of a step with one token of each kind, in µs, below which milliseconds are probably meant: no GPU is so fast."""


class _FlavouredStruct(msgspec.StructMeta):
    """Gives the keys of a new instance the defaults of its flavour, where its maker gives none. A converter of msgspec does not
    pass here: the sources of a configuration have done the same by then (`config.sources`)."""

    def __call__(self, *args: Any, **keys: Any) -> Any:
        return super().__call__(*args, **{**flavour_keys(keys.get("flavour")), **keys})


class InstanceConfig(VllmKeys, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=_FlavouredStruct):
    """One instance. Names and meanings are those of vLLM's and BLIS's flags, and so are the defaults, with the KV memory of an
    80 GB GPU beside an 8B model. `InstanceConfig(flavour="vllm")` has vLLM's defaults for all keys that are not given, as
    `flavour: vllm` has in a file. Raises ValueError for keys that do not go together, and TypeError for an unknown key."""

    model: str = ""
    """What runs: a name in the catalogue (`maitred models`), any case, or the path of a Hugging Face `config.json`; empty:
    steps take what `latency` says."""
    model_config_folder: str | None = None
    """Folder with the `config.json` of `model`, instead of the catalogue."""
    hardware: str = "H100"
    """The kind of GPU: a name in the catalogue, any case."""
    hardware_config: str | None = None
    """JSON file with kinds of GPU, in BLIS's format, instead of the catalogue."""
    tensor_parallel_size: int = 1
    """GPUs that share every layer."""
    data_parallel_size: int = 1
    """Ranks that share the experts. Each has its own part of the requests; together they are one instance."""
    max_chunk_tokens: int | None = None
    """Largest chunk of one prompt in one step, in tokens, whether or not other requests are here: the budget of one rank where
    several ranks are one instance. Null: no limit but those above."""
    total_kv_blocks: int | None = None
    """KV blocks. Null: what fits on `hardware` beside `model`, and without a model 27,000."""
    block_size_in_tokens: int = 16
    """Tokens in a KV block."""
    enable_prefix_caching: bool = False
    """Keep the KV blocks of a prompt in memory for later prompts with the same prefix."""
    prefix_cache: Literal["blocks", "radix"] = "blocks"
    """How cached prefixes are kept: `blocks`, one by one as in vLLM; `radix`, in a tree as in SGLang."""
    radix_eviction_policy: str = "lru"
    """Which leaf of the radix tree is evicted first: `lru`, `mru`, `lfu`, `fifo`, `filo`, `priority`, `slru`, or
    `module:Class`."""
    preemption_policy: Literal["fcfs", "priority"] = "fcfs"
    """Which sequence is preempted when KV blocks run out: `fcfs`, the last admitted; `priority`, the least urgent by the score
    of `priority_policy`."""
    batching: str | None = None
    """What decides which requests each step serves: `guaranteed-no-evict`, `max-utilization`, `static-batch`, `max-requests`,
    `batch-waiting(...)`, or `module:Class`. Null: continuous batching as vLLM does."""
    context_chunking_policy: Literal["first-come-first-served", "equal-progress", "force-chunk", "none"] = (
        "first-come-first-served"
    )
    """How prompts share the token budget of a step under `batching`: `first-come-first-served`, `equal-progress`,
    `force-chunk`, or `none`: whole prompts only, so that prompt and output together are at most `max_num_batched_tokens`. A
    chunk that does not end its prompt is a multiple of `block_size_in_tokens`."""
    flavour: FlavourName | None = None
    """The engine whose queueing, batching and KV memory the instance follows: `vllm`, `sglang`, `trtllm`, `maitred`, which is
    ours, or `blis` to compare with its results (BLIS always caches prefixes, block by block). It gives other keys their
    defaults (`maitred check` prints them); what is given for a key holds. Null: the rules of vLLM, and the keys as they are."""
    sglang: SGLangConfig = SGLangConfig()
    """Options of `flavour: sglang`."""
    kv_cpu_blocks: int = 0
    """KV blocks in main memory, to which those of running requests are copied and from which prompts load them (`flavour: blis`
    only); 0: none."""
    kv_transfer_bandwidth: float = 100.0
    """Rate at which KV blocks come back from main memory, in tokens per µs. Each block takes at least 1 µs."""
    kv_transfer_base_latency: Micros = 0
    """Time that each block from main memory takes in addition, in µs."""
    async_scheduling: bool = False
    """Plan the next step while one runs, as vLLM does since 0.14: an arriving request joins one step later, and what
    a completed one held is free one step later."""
    gpu_memory_utilization: float = DEFAULT_UTILISATION
    """Share of the GPUs' memory that is used, from which `total_kv_blocks` is derived."""
    max_model_len: int | None = None
    """Longest prompt and output together, in tokens. Null: what the KV blocks hold and, with a model, its context length."""
    latency: AnyLatency | None = None
    """How long a step takes: a section of its own, or one text such as `linear` or `module:Class`. Null:
    with `model`, `aiconfigurator` where it is installed and knows the deployment, and otherwise `roofline` (with
    `flavour: blis`, `trained-physics`); without, `linear`."""
    kv_offload: KvOffloadConfig = KvOffloadConfig()
    """KV blocks in the memory of the host (continuous batching with a prefix cache of blocks, or `flavour: sglang`)."""
    speculative: SpeculativeConfig = SpeculativeConfig()
    """Speculative decoding."""
    latency_scale: float = 1.0
    """Factor on the duration of every step, to see what the error of a latency model would do."""
    latency_error: float | None = None
    """Relative standard deviation of the step times, as `maitred calibrate` found it. Null: in `maitred compare` what is
    published of `trained-physics` on this GPU, else none."""
    step_by_step: bool = False
    """Simulate every step by itself: slower, with the same results."""

    def __post_init__(self) -> None:
        check_field_types(self)
        self._latency_from_text()
        for name, most in _UPPER_LIMITS.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name} must be from 1 to {most:,}, not {value}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}")
        self._check_vllm_keys(self.max_model_len)
        if self.scheduling_policy == "priority" and self.preemption_policy != "fcfs":
            raise ValueError("scheduling_policy priority has victims of its own: leave out one of it and preemption_policy")
        self._check_host_memory()
        self._check_batching()
        self._check_flavour()
        self._check_offload()
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(f"max_model_len must be at least 2 (a token in and a token out), not {self.max_model_len}")
        for name in ("tensor_parallel_size", "data_parallel_size"):
            if not 1 <= getattr(self, name) <= _MAX_GPUS:
                raise ValueError(f"{name} must be from 1 to {_MAX_GPUS:,}, not {getattr(self, name)}")
        if not 0 < self.latency_scale <= _MAX_LATENCY_SCALE:
            raise ValueError(f"latency_scale must be above 0 and at most {_MAX_LATENCY_SCALE:,}, not {self.latency_scale}")
        if self.latency_error is not None and not 0 <= self.latency_error < 1:
            raise ValueError(f"latency_error must be from 0 to below 1, not {self.latency_error}")

    def _latency_from_text(self) -> None:
        """Make a struct of a latency model that is written in one text, where it has one."""
        if isinstance(self.latency, str):
            try:
                force_setattr(self, "latency", parse_latency(self.latency))
            except ConfigError as error:
                raise ValueError(f"latency: {error}") from error

    def _check_flavour(self) -> None:
        """Raise ValueError for a key that the flavour does not take, or does not do without."""
        flavour = self.flavour_rules
        if self.async_scheduling and not flavour.takes_async_scheduling:
            problem = f"async_scheduling is not for flavour {self.flavour}"
            raise ValueError(f"{problem}: leave out one of async_scheduling and flavour {self.flavour}")
        if self.batching is not None and not flavour.takes_batching:
            raise ValueError(f"batching is not for flavour {self.flavour}, which has its own: leave out one of the two")
        changed = [] if flavour.takes_vllm_keys else [name for name in self._changed_switches() if name != _EVERYWHERE]
        if changed:
            raise ValueError(
                f"{changed[0]} is not for flavour {self.flavour}: leave out one of {changed[0]} and flavour {self.flavour}"
            )
        if self.batching is None and "batching" in flavour.keys:
            problem = f"flavour {self.flavour} needs batching"
            raise ValueError(f"{problem}: {', '.join(f'{key}={value!r}' for key, value in flavour.keys.items())}")

        if flavour.takes_sglang_keys:
            self._check_sglang()

    def _check_sglang(self) -> None:
        """Raise ValueError for what SGLang's rules have no place for."""
        if self.long_prefill_token_threshold:
            raise ValueError("long_prefill_token_threshold is not for flavour sglang, which cuts at max_num_batched_tokens")
        if self.preemption_policy != "fcfs":
            raise ValueError("preemption_policy is not for flavour sglang: sglang.retraction_policy takes its place")
        if not self.sglang.disable_chunked_prefill and self.max_num_batched_tokens < self.block_size_in_tokens:
            size = f"block_size_in_tokens {self.block_size_in_tokens}"
            raise ValueError(f"max_num_batched_tokens {self.max_num_batched_tokens} holds no chunk of {size}")

    def _check_batching(self) -> None:
        """Raise ValueError for what does not combine with `batching`."""
        if self.batching is None:
            return
        if changed := self._changed_switches():
            raise ValueError(f"{changed[0]} has no effect with batching: leave out one of the two")
        chunked = self.context_chunking_policy != "none"
        if chunked and self.max_num_batched_tokens < self.block_size_in_tokens:
            size = f"block_size_in_tokens {self.block_size_in_tokens}"
            raise ValueError(f"max_num_batched_tokens {self.max_num_batched_tokens} holds no chunk of {size}")

    def _check_offload(self) -> None:
        """Raise ValueError where no blocks are kept in the memory of the host."""
        if not self.kv_offload:
            return
        for key, is_wrong in (
            # First, because it states the others, which the user may never have heard of.
            (f"flavour {self.flavour}", self.flavour not in (None, "vllm", "sglang")),
            ("no prefix cache (enable_prefix_caching)", not self.enable_prefix_caching),
            (
                f"prefix_cache {self.prefix_cache} with flavour {self.flavour}",
                (self.prefix_cache == "radix") != (self.flavour == "sglang"),
            ),
            (f"batching {self.batching}", self.batching is not None),
        ):
            if is_wrong:
                raise ValueError(f"kv_offload is not for {key}: leave out one of the two")

    def _check_host_memory(self) -> None:
        if not 0 <= self.kv_cpu_blocks <= _UPPER_LIMITS["total_kv_blocks"]:
            raise ValueError(f"kv_cpu_blocks must be from 0 to {_UPPER_LIMITS['total_kv_blocks']:,}, not {self.kv_cpu_blocks}")
        if self.kv_cpu_blocks and not self.flavour_rules.takes_host_memory:
            raise ValueError("kv_cpu_blocks must be 0 unless flavour is blis: only BLIS has this second tier of KV memory")
        if not _MIN_BANDWIDTH <= self.kv_transfer_bandwidth < inf:
            raise ValueError(f"kv_transfer_bandwidth must be a number above 0, not {self.kv_transfer_bandwidth}")
        if not 0 <= self.kv_transfer_base_latency <= _HOUR:
            raise ValueError(
                f"kv_transfer_base_latency must be from 0 to {_HOUR:,} (an hour), not {self.kv_transfer_base_latency}"
            )

    def warnings(self, *, prefix_cache: bool) -> list[str]:
        """Return a warning for each key without effect or sense, in sentences. `prefix_cache`: whether there is one."""
        return [
            *super().warnings(prefix_cache=prefix_cache),
            *self._vllm_warnings(),
            *self._cache_warnings(),
            *self._unit_warnings(),
            *self._model_warnings(),
            *self._preemption_warnings(),
            *self._batching_warnings(),
            *self.speculative.warnings(),
        ]

    @property
    def scores_matter_elsewhere(self) -> bool:
        return self.preemption_policy == "priority"

    def _preemption_warnings(self) -> Iterator[str]:
        """Warn of victims by priority where all sequences may have the same."""
        if not self.scores_matter_elsewhere:
            return
        alike = "the latest to arrive gives way"
        if self.has_constant_scores():
            yield f"preemption_policy priority has nothing to go by: all scores are alike; {alike}"
        elif self.priority_policy is None and self.enable_priority_scheduling:
            if self.schedule_low_priority_values_first:
                yield "preemption_policy priority preempts low numbers, which schedule_low_priority_values_first puts first"
        elif self.priority_policy is None:
            none = f"of those that say none {alike}"
            yield f"preemption_policy priority goes by what clients say, without priority_policy; {none}"

    def _batching_warnings(self) -> Iterator[str]:
        if self.batching is not None and self.preemption_policy != "fcfs":
            yield f"preemption_policy {self.preemption_policy} has no effect with batching, which chooses what to pause"
        if self.batching is None and self.context_chunking_policy != "first-come-first-served":
            yield f"context_chunking_policy {self.context_chunking_policy} has no effect without batching"
        if self.sglang != SGLangConfig() and not self.flavour_rules.takes_sglang_keys:
            yield "the keys of sglang have no effect without flavour sglang"

    def _cache_warnings(self) -> Iterator[str]:
        if self.prefix_cache != "blocks" and not self.enable_prefix_caching:
            yield f"prefix_cache {self.prefix_cache} has no effect without enable_prefix_caching"
        for name, default in (("kv_transfer_bandwidth", 100.0), ("kv_transfer_base_latency", 0)):
            if getattr(self, name) != default and not self.kv_cpu_blocks:
                yield f"{name} {getattr(self, name)} has no effect without kv_cpu_blocks"
        if self.radix_eviction_policy != "lru" and self.prefix_cache != "radix":
            yield f"radix_eviction_policy {self.radix_eviction_policy} has no effect without prefix_cache radix"
        yield from self.kv_offload.warnings(is_tree=self.prefix_cache == "radix")

    def _unit_warnings(self) -> Iterator[str]:
        """Warn of linear step times that are probably meant as ms."""
        if isinstance(self.latency, LinearLatency) and 0 < sum(self.latency.beta) < _SHORTEST_STEP:
            base, per_prefill, per_decode = self.latency.beta
            yield f"a step takes {base:g} + {per_prefill:g} per prefill token + {per_decode:g} per decode µs (not ms?)"

    def _model_warnings(self) -> Iterator[str]:
        """Warn of keys that only a model gives a meaning. A key that needs a model is an error elsewhere."""
        if self.has_model:
            share = self.gpu_memory_utilization
            if self.total_kv_blocks is not None and share != DEFAULT_UTILISATION:
                yield f"gpu_memory_utilization {share} has no effect beside total_kv_blocks, which it is to find"
            return
        for name, default in (
            ("hardware", "H100"),
            ("tensor_parallel_size", 1),
            ("data_parallel_size", 1),
            ("hardware_config", None),
            ("gpu_memory_utilization", DEFAULT_UTILISATION),
        ):
            if getattr(self, name) != default:
                yield f"{name} {getattr(self, name)} has no effect without model"

    def step_time_warnings(self) -> Iterator[str]:
        """Warn of steps that may come and that the latency model was not measured for. After `catalogue.resolve_instance`."""
        if isinstance(self.latency, TrainedPhysicsLatency) and not self.flavour_rules.takes_blis_step_times:
            yield from self.latency.warnings(self.max_num_batched_tokens)
        yield from self.table_warnings()

    def table_warnings(self) -> Iterator[str]:
        """Warn of steps that may come and that the measurements of a table do not reach. After `catalogue.resolve_instance`."""
        table = getattr(self.latency, "table", None)
        if not isinstance(table, StepTable) or not (table.decode.bounded or table.mixed.bounded):
            return
        limits = self.max_num_seqs, self.max_num_batched_tokens
        for what, key, most, limit in zip(
            ("sequences that decode", "prompt tokens"),
            ("max_num_seqs", "max_num_batched_tokens"),
            table.measured_up_to,
            limits,
            strict=True,
        ):
            if limit > most:
                yield (
                    f"the table was measured up to {most:,.0f} {what} in a step, and {key} allows {limit:,}: "
                    "beyond, a step takes at least as long as there, and at most in proportion"
                )

    @property
    def flavour_rules(self) -> Flavour:
        """What the flavour says about the keys."""
        return NO_FLAVOUR if self.flavour is None else FLAVOURS[self.flavour]

    @property
    def caches_prefixes(self) -> bool:
        """Whether KV blocks of equal prompts are reused, by the key or by the flavour."""
        return self.enable_prefix_caching or self.flavour_rules.always_caches_prefixes

    @property
    def has_model(self) -> bool:
        """Whether it says which model runs."""
        return bool(self.model or self.model_config_folder)

    def latency_model(self) -> LatencyModel:
        """Return the latency model, ready to be asked. Raises ConfigError before `catalogue.resolve_instance`."""
        if self.latency is None and self.has_model:
            what = f"the model {self.model or self.model_config_folder!r} has not been looked up yet"
            raise ConfigError(what, hint="catalogue.resolve_instance(config) does")
        latency = self.latency or LinearLatency()
        model = LATENCY_MODELS.create(latency) if isinstance(latency, str) else latency
        compiled = model.compiled(self.latency_scale)
        return SpeculativeSteps(compiled, self.speculative) if self.speculative else compiled

    @property
    def kv_blocks(self) -> int:
        """`total_kv_blocks`, or the default where it is neither given nor derived."""
        return _DEFAULT_KV_BLOCKS if self.total_kv_blocks is None else self.total_kv_blocks

    @property
    def batch_limits(self) -> BatchLimits:
        """What one step of an instance may hold."""
        return BatchLimits(
            self.max_num_active_seqs or self.max_num_seqs,
            self.max_num_batched_tokens,
            self.long_prefill_token_threshold,
            self.long_prefill_token_threshold_adaptive,
            self.enable_chunked_prefill,
            self.scheduler_reserve_full_isl,
            int(self.watermark * (self.kv_blocks + 1)),  # vLLM counts its null block, too
            self.max_chunk_tokens or self.max_num_batched_tokens,
            goes_on_after_own_preemption=self.vllm_release != "0.32",
            prefill_schedule_interval=1 if self.vllm_release == "0.32" else self.prefill_schedule_interval,
        )

    def new_prefix_cache(self) -> PrefixCache[Any] | None:
        """Return an empty one, or None without prefix caching. Raises ConfigError for an unknown eviction policy."""
        if not self.enable_prefix_caching:
            return None
        if self.prefix_cache == "blocks":
            return BlockPool(self.kv_blocks, self.block_size_in_tokens)
        return RadixCache(self.block_size_in_tokens, self.kv_blocks, EVICTIONS.create(self.radix_eviction_policy))

    @property
    def model_len(self) -> int:
        """Longest prompt and output together that fits, in tokens."""
        held = self.kv_blocks * self.block_size_in_tokens
        if not self.enable_chunked_prefill or (self.batching is not None and self.context_chunking_policy == "none"):
            held = min(held, self.max_num_batched_tokens)  # a paused request computes prompt and output again in one step
        if self.flavour_rules.takes_sglang_keys:
            held -= self.sglang.unused_tokens(self.block_size_in_tokens)
        return held if self.max_model_len is None else min(held, self.max_model_len)
