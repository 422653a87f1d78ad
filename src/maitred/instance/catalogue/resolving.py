"""Resolving: everything that follows from the names in an `InstanceConfig`, and step tables as files.

The figures of its latency model, the number of KV blocks, the longest context and the published error of its latency model
follow from names. Step tables are written by `maitred calibrate` and read by `latency: {model: table, file: FILE}`.

The KV blocks are those that fit on the GPUs beside the model and its activations:

    room   = memory · utilisation · GPUs - weights - activations (5.5 GiB, 8 with experts; once per rank) - libraries of the
             engine (0.15 GiB, or with more than one GPU 0.6 GiB on each)
    blocks = room / (block size · 2 · layers · KV heads · head dim · bytes)

This is the formula of BLIS and of the capacity planner of llm-d. Llama-3.1-8B on one H100 gets 26,312 blocks, within about a
percent of what vLLM reports. Compressed KV (latent attention) is the same on every GPU of a rank. Each rank of data parallelism
has blocks of its own; here they count together, as one instance.
"""

from __future__ import annotations

from math import pi, sqrt
from pathlib import Path

import msgspec
from msgspec.structs import replace

from maitred.core.errors import JSON_ERRORS, ConfigError, describe_json_error, describe_os_error
from maitred.files import read_input
from maitred.instance import InstanceConfig
from maitred.instance.catalogue.measured import measured_blocks, measured_latency, silicon_config_of
from maitred.instance.catalogue.silicon_accuracy import nearest_deviation
from maitred.instance.catalogue.specs import config_path, find_hardware, find_model, read_model_config
from maitred.instance.config import DEFAULT_UTILISATION
from maitred.instance.latency import (
    AIConfiguratorLatency,
    AnyLatency,
    Deployment,
    LatencyConfig,
    LinearLatency,
    ModelSpec,
    RooflineLatency,
    StepTable,
    TableLatency,
    TrainedPhysicsLatency,
)

_GIB = 1 << 30
_ACTIVATIONS_DENSE = 5.5 * _GIB
_ACTIVATIONS_EXPERTS = 8.0 * _GIB
_LIBRARIES_ALONE = 0.15 * _GIB
_LIBRARIES = 0.6 * _GIB


def num_kv_blocks(deployment: Deployment, block_size: int, utilisation: float = DEFAULT_UTILISATION) -> int:
    """Return the number of blocks of `block_size` tokens, if this share of the memory is used.

    Raises ConfigError if the model does not fit, or if the memory is not known.
    """
    model, hardware, tp = deployment.model, deployment.hardware, deployment.tensor_parallel_size
    if not hardware.memory_gib:
        hint = "give memory_gib (MemoryGiB) there, or --total-kv-blocks here"
        raise ConfigError(f"the memory of {hardware.name} is not known", hint=hint)
    gpus = tp * deployment.data_parallel_size
    memory, taken = hardware.memory_gib * _GIB * utilisation * gpus, _bytes_beside_kv(deployment, gpus)
    # With more GPUs than KV heads, each head is stored on several of them.
    on_each = tp // model.kv_shards(tp)
    token = model.num_layers * model.kv_width * model.bytes_per_element * on_each
    blocks = int((memory - taken) / (token * block_size))
    if blocks < 1:
        wants = taken / _GIB
        what = f"{model.name} wants {wants:.0f} GiB before any KV, and {gpus} x {hardware.name} give it {memory / _GIB:.0f}"
        more = "" if utilisation >= DEFAULT_UTILISATION else "a larger --gpu-memory-utilization, "
        hint = f"{more}a larger --tensor-parallel-size, other --hardware, or give --total-kv-blocks"
        raise ConfigError(what, where="hardware", hint=hint)
    return blocks


def _bytes_beside_kv(deployment: Deployment, gpus: int) -> float:
    """Return the bytes that weights, activations and the libraries of the engine take on all GPUs together."""
    libraries = _LIBRARIES_ALONE if gpus == 1 else _LIBRARIES * gpus
    activations = _ACTIVATIONS_EXPERTS if deployment.model.expert_layers else _ACTIVATIONS_DENSE
    return _weight_bytes(deployment) + activations * deployment.data_parallel_size + libraries


def _weight_bytes(deployment: Deployment) -> float:
    """Return the bytes of the weights on all GPUs together: every rank has a copy of everything but the experts."""
    model = deployment.model
    experts = 3 * model.hidden_size * model.num_experts * model.expert_width * model.expert_layers
    return ((model.params - experts) * deployment.data_parallel_size + experts) * model.weight_width


_SD_BY_MEAN_ERROR = sqrt(pi / 2)


def read_step_table(path: Path) -> StepTable:
    """Read a step table. Raises ConfigError if the file cannot be read, or holds none."""
    hint = "maitred calibrate MEASURED --latency-model table makes one"
    try:
        table = msgspec.json.decode(read_input(path), type=StepTable)
    except OSError as error:
        raise ConfigError(f"cannot be read: {describe_os_error(error)}", where=str(path)) from error
    except JSON_ERRORS as error:
        raise ConfigError(f"no step table: {describe_json_error(str(error))}", where=str(path), hint=hint) from error
    curves = (table.tokens, table.sequences, table.all_tokens)
    if not any((*table.decode.us, *table.mixed.us, *(us for curve in curves for _, us in curve))):
        raise ConfigError("no step table: no step in it takes any time", where=str(path), hint=hint)
    return table


def encode_step_table(table: StepTable) -> bytes:
    """Return the content of a step table's file, rounded to 4 decimals (of a µs, for example)."""
    return msgspec.json.encode(_rounded(msgspec.to_builtins(table)))


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(held) for key, held in value.items()}
    return [_rounded(held) for held in value] if isinstance(value, list | tuple) else value


def resolve_instance(config: InstanceConfig) -> InstanceConfig:
    """Return `config` with everything that can be derived, without changing what it states. Resolving twice changes nothing.

    Raises ConfigError for unknown names, files that cannot be read, and models that do not fit.
    """
    if isinstance(config.latency, TableLatency) and config.latency.table is None and config.latency.file:
        table = read_step_table(Path(config.latency.file))
        config = replace(config, latency=replace(config.latency, table=table))
    if not config.has_model:
        return _latency_without_model(config)
    deployment = find_deployment(config)
    latency = _latency_of(config, deployment)
    blocks = config.total_kv_blocks
    if blocks is None and isinstance(latency, AIConfiguratorLatency):
        blocks = measured_blocks(config, latency, deployment)
    elif blocks is None:
        blocks = num_kv_blocks(deployment, config.block_size_in_tokens, config.gpu_memory_utilization)
    offload = config.kv_offload
    if offload and offload.kv_bytes_per_token is None:
        model = deployment.model
        offload = replace(offload, kv_bytes_per_token=model.num_layers * model.kv_width * model.bytes_per_element)
    longest = config.max_model_len
    if longest is None and deployment.model.max_position_embeddings:
        longest = min(deployment.model.max_position_embeddings, blocks * config.block_size_in_tokens)
    try:
        return replace(config, latency=latency, total_kv_blocks=blocks, max_model_len=longest, kv_offload=offload)
    except ValueError as error:
        raise ConfigError(f"{deployment.model.name} on {deployment.hardware.name}: {error}", where="model") from error


def _latency_of(config: InstanceConfig, deployment: Deployment) -> AnyLatency:
    """Return the latency model of an instance with a model, and with its deployment. Raises ConfigError.

    Where none is named, it is that of measured kernels if these are installed and known for the deployment, and the roofline
    otherwise; what follows BLIS has its own.
    """
    latency = config.latency
    if latency is None and config.flavour_rules.takes_blis_step_times:
        latency = TrainedPhysicsLatency()
    if latency is None:
        latency = measured_latency(config, AIConfiguratorLatency(), deployment, required=False) or RooflineLatency()
    if isinstance(latency, AIConfiguratorLatency) and latency.table is None:
        return measured_latency(config, latency, deployment) or latency
    if isinstance(latency, LatencyConfig) and getattr(latency, "deployment", deployment) is None:
        return replace(latency, deployment=deployment)
    return latency


def find_deployment(config: InstanceConfig) -> Deployment:
    """Return the model and the GPUs that `config` names. Raises ConfigError."""
    model = _find_model(config)
    hardware = find_hardware(config.hardware, file=None if config.hardware_config is None else Path(config.hardware_config))
    if config.flavour_rules.takes_blis_step_times:
        hardware = replace(hardware, efficiency=None)
    try:
        return Deployment(
            model=model,
            hardware=hardware,
            tensor_parallel_size=config.tensor_parallel_size,
            data_parallel_size=config.data_parallel_size,
        )
    except ValueError as error:
        raise ConfigError(str(error), where="tensor_parallel_size") from error


def _find_model(config: InstanceConfig) -> ModelSpec:
    if config.model_config_folder is not None:
        return read_model_config(config_path(Path(config.model_config_folder)))
    try:
        return find_model(config.model)
    except ConfigError:
        path = silicon_config_of(config.model)
        if path is None:
            raise
        return replace(read_model_config(path), name=config.model)


def _latency_without_model(config: InstanceConfig) -> InstanceConfig:
    found = replace(config, latency=LinearLatency()) if config.latency is None else config
    found.latency_model()  # raises for what it lacks
    return found


def published_latency_error(config: InstanceConfig) -> float | None:
    """Return the published error of the latency model as a `latency_error`, or None if none is published.

    It is known for measured kernels with their fitted overheads, by measured pairs (`silicon_accuracy`); and for
    `trained-physics` with the shipped coefficients, on the GPUs for which BLIS reports the error of the E2E latency. Both are
    errors of a run as a whole, as one draw of `latency_error` is. Raises ConfigError for unknown names.
    """
    if not config.has_model:
        return None
    deployment = find_deployment(config)
    latency = _latency_of(config, deployment)
    if isinstance(latency, AIConfiguratorLatency):
        return nearest_deviation(latency)
    if not isinstance(latency, TrainedPhysicsLatency) or not latency.shipped:
        return None
    return deviation_of(deployment.hardware.trained_physics_error) or None


def deviation_of(mean_error: float) -> float:
    """Return the standard deviation of a normal error, by its mean absolute value."""
    return round(_SD_BY_MEAN_ERROR * mean_error, 4)
