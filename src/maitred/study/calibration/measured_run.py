"""A measured run: a folder with the configuration of an engine, its layer profile, and the timeline of its requests.

    meta.json      vLLM's version and arguments, the model's configuration, links and memory of the cluster, KV blocks if known
    profile/       see `layer_profile`
    requests.csv   see `measurements`

The `bench` examples of LLMServingSim have this form.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from maitred.core.errors import JSON_ERRORS, ConfigError, describe_json_error, describe_os_error
from maitred.core.python_json import decode_python_json
from maitred.core.units import SECOND
from maitred.files import read_input
from maitred.instance import InstanceConfig
from maitred.instance.latency import LatencyConfig, TableLatency
from maitred.sim import Outcome, simulate
from maitred.study.calibration.fitting import Fit
from maitred.study.calibration.layer_profile import STEP_OVERHEAD_US, ProfiledDeployment, compile_profile, read_profile
from maitred.study.calibration.measurements import read_timeline, timeline_jobs
from maitred.study.calibration.residuals import compute_residuals

_GIB = 1 << 30
_BLOCK = 16
_BYTES_PER_ELEMENT = 2
"""Bytes of a weight, and of an element of KV."""
_USABLE_MEMORY_SHARE = 0.85
"""Share of the memory for weights and KV. vLLM leaves the rest free, or uses it for activations."""
_ASYNC_BY_DEFAULT_SINCE = (0, 14)
"""The vLLM version since which async scheduling is on by default (its release notes, "Breaking Changes")."""


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
_CountOrNone: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
_Amount: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class EngineArguments(msgspec.Struct, frozen=True):
    """Arguments of vLLM, for one rank."""

    max_num_seqs: _Count
    max_num_batched_tokens: _Count
    tensor_parallel_size: _Count = 1
    data_parallel_size: _Count = 1
    max_model_len: _Count | None = None
    async_scheduling: bool | None = None
    """None if it was not given; the default of the version applies then."""


class ModelShape(msgspec.Struct, frozen=True):
    """The fields of a Hugging Face config.json. Raises ValueError if a token has more experts than there are."""

    num_hidden_layers: _Count
    hidden_size: _Count
    num_attention_heads: _Count
    num_key_value_heads: _Count
    intermediate_size: _Count
    vocab_size: _Count
    head_dim: _Count | None = None
    num_experts: _CountOrNone = 0
    num_experts_per_tok: _CountOrNone = 0
    moe_intermediate_size: _CountOrNone = 0

    def __post_init__(self) -> None:
        if self.num_experts and not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(f"num_experts_per_tok must be from 1 to num_experts {self.num_experts}")


class GpuMemory(msgspec.Struct, frozen=True):
    """The memory of a GPU."""

    mem_size: _Amount
    """In GiB."""


class GpuInstance(msgspec.Struct, frozen=True):
    """The GPUs of one instance."""

    npu_mem: GpuMemory


class ClusterNode(msgspec.Struct, frozen=True):
    """A machine."""

    instances: tuple[GpuInstance, ...]


class MeasuredCluster(msgspec.Struct, frozen=True):
    """The links and the machines."""

    link_bw: _Amount
    """In GiB/s."""
    link_latency: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    """In ns."""
    nodes: tuple[ClusterNode, ...] = ()


class KvCache(msgspec.Struct, frozen=True):
    """The KV cache as vLLM reported it."""

    num_gpu_blocks: Annotated[int, msgspec.Meta(ge=2, le=1_000_000_000)] | None = None


class RunMetadata(msgspec.Struct, frozen=True):
    """The part of a meta.json that is needed."""

    engine_kwargs: EngineArguments
    model_config: ModelShape
    cluster: MeasuredCluster
    kv_cache: KvCache | None = None
    vllm_version: str = ""
    """Empty if it is not known; a recent version is assumed then."""

    @property
    def async_scheduling(self) -> bool:
        """Whether the engine planned the next step while one ran."""
        if self.engine_kwargs.async_scheduling is not None:
            return self.engine_kwargs.async_scheduling
        version = re.match(r"v?(\d+)\.(\d+)", self.vllm_version)
        return version is None or (int(version[1]), int(version[2])) >= _ASYNC_BY_DEFAULT_SINCE


class MeasuredRun(msgspec.Struct, frozen=True):
    """The folder of a measured run."""

    path: Path
    meta: RunMetadata

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def requests(self) -> Path:
        return self.path / "requests.csv"

    @property
    def deployment(self) -> ProfiledDeployment:
        engine, model, cluster = self.meta.engine_kwargs, self.meta.model_config, self.meta.cluster
        return ProfiledDeployment(
            layers=model.num_hidden_layers,
            hidden_size=model.hidden_size,
            num_experts=model.num_experts,
            experts_per_token=model.num_experts_per_tok,
            tensor_parallel_size=engine.tensor_parallel_size,
            data_parallel_size=engine.data_parallel_size,
            max_num_seqs=engine.max_num_seqs,
            link_bytes_per_us=cluster.link_bw * _GIB / 1e6,
            link_latency_us=cluster.link_latency / 1e3,
        )

    def instance(self, overhead_us: float = STEP_OVERHEAD_US) -> InstanceConfig:
        """Return the engine as an instance. Several ranks are one instance with as many times the room. Raises ConfigError."""
        engine, serving = self.meta.engine_kwargs, self.deployment
        profile = read_profile(self.path / "profile", serving.tensor_parallel_size)
        ranks, budget = engine.data_parallel_size, engine.max_num_batched_tokens
        table = compile_profile(profile, serving, overhead_us=overhead_us, source=self.name)
        try:
            return InstanceConfig(
                max_num_seqs=ranks * engine.max_num_seqs,
                max_num_batched_tokens=ranks * budget,
                max_chunk_tokens=budget if ranks > 1 else None,
                total_kv_blocks=ranks * self._blocks(),
                block_size_in_tokens=_BLOCK,
                enable_prefix_caching=True,
                async_scheduling=self.meta.async_scheduling,
                max_model_len=engine.max_model_len,
                latency=TableLatency(table=table),
            )
        except ValueError as error:
            raise ConfigError(str(error), where=str(self.path / "meta.json")) from error

    def _blocks(self) -> int:
        """Return the KV blocks of one rank: those recorded (vLLM keeps one to itself), or what fits beside the weights."""
        recorded = self.meta.kv_cache
        if recorded is not None and recorded.num_gpu_blocks is not None:
            return recorded.num_gpu_blocks - 1
        model, engine = self.meta.model_config, self.meta.engine_kwargs
        instances = [gpus for node in self.meta.cluster.nodes for gpus in node.instances]
        if not instances:
            hint = "give kv_cache.num_gpu_blocks, or cluster.nodes[].instances[].npu_mem.mem_size"
            raise ConfigError("the number of KV blocks is not known", where=str(self.path / "meta.json"), hint=hint)
        kv_heads = max(1, model.num_key_value_heads // engine.tensor_parallel_size)
        block = _BLOCK * model.num_hidden_layers * 2 * kv_heads * _head(model) * _BYTES_PER_ELEMENT
        weights = _parameters(model, engine.data_parallel_size) * _BYTES_PER_ELEMENT / engine.tensor_parallel_size
        return max(1, int((instances[0].npu_mem.mem_size * _GIB * _USABLE_MEMORY_SHARE - weights) / block))


def read_measured_run(path: Path) -> MeasuredRun:
    """Read the meta.json of a folder. Raises ConfigError for missing or wrong fields."""
    file = path / "meta.json"
    try:
        return MeasuredRun(path, msgspec.convert(decode_python_json(read_input(file)), RunMetadata))
    except OSError as error:
        hint = "a folder with meta.json, requests.csv and profile/"
        raise ConfigError(f"cannot be read: {describe_os_error(error)}", where=str(file), hint=hint) from error
    except JSON_ERRORS as error:
        raise ConfigError(f"it is not a valid meta.json: {describe_json_error(str(error))}", where=str(file)) from error


def _head(model: ModelShape) -> int:
    return model.head_dim or model.hidden_size // model.num_attention_heads


def _parameters(model: ModelShape, ranks: int) -> float:
    """Return the parameters of one of the ranks that share the experts."""
    attention = model.hidden_size * _head(model) * 2 * (model.num_attention_heads + model.num_key_value_heads)
    mlp = 3.0 * model.hidden_size * model.intermediate_size
    if model.num_experts:
        mlp = 3.0 * model.hidden_size * model.moe_intermediate_size * model.num_experts / ranks
    return model.num_hidden_layers * (attention + mlp) + 2 * model.vocab_size * model.hidden_size


def fit_profile(path: Path) -> Fit:
    """Compile the profile of a folder. Residuals are of the latencies of single simulated requests. Raises ConfigError."""
    folder = read_measured_run(path)
    instance, rows = folder.instance(), read_timeline(folder.requests)
    results = simulate(timeline_jobs(rows), instance=instance)
    if (results.outcome != Outcome.COMPLETED).any():
        raise ConfigError("some of its requests do not fit into the engine that it describes", where=str(path))
    assert isinstance(instance.latency, LatencyConfig)
    predicted = (results.finished - results.queued) / SECOND
    return Fit(instance.latency, compute_residuals([row.latency for row in rows], predicted.tolist()), instance)
