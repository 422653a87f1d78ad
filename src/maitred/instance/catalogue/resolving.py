"""Step tables as files: what `maitred calibrate` writes, and `latency: {model: table, file: FILE}` reads.

What follows from the names in an `InstanceConfig`: figures for its latency model, KV blocks, the longest context.

How far the latency model of an instance is off, by what others have published.
"""

from __future__ import annotations

from math import pi, sqrt
from pathlib import Path

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.catalogue.capacity import num_kv_blocks
from maitred.instance.catalogue.gpus import find_hardware
from maitred.instance.catalogue.models import find_model, read_model_config
from maitred.instance.latency import (
    Deployment,
    LatencyConfig,
    LinearLatency,
    StepTable,
    TableLatency,
    TrainedPhysicsLatency,
)


def read_step_table(path: Path) -> StepTable:
    """Raises ConfigError if it cannot be read, or is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=StepTable)
    except OSError as error:
        raise ConfigError(f"cannot be read: {(error.strerror or str(error)).lower()}", where=str(path)) from error
    except msgspec.DecodeError as error:
        hint = "maitred calibrate MEASURED --latency-model table makes one"
        raise ConfigError(f"no step table: {error}", where=str(path), hint=hint) from error


def encode_step_table(table: StepTable) -> bytes:
    """What a file holds, to 4 decimals (of a µs, say)."""
    return msgspec.json.encode(_rounded(msgspec.to_builtins(table)))


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(held) for key, held in value.items()}
    return [_rounded(held) for held in value] if isinstance(value, list | tuple) else value


def resolve_instance(config: InstanceConfig) -> InstanceConfig:
    """`config` with all that is to be derived, and nothing changed that is said. Doing it again changes nothing.

    Raises ConfigError for unknown names, files that cannot be read, and models that do not fit.
    """
    if isinstance(config.latency, TableLatency) and config.latency.table is None and config.latency.file:
        table = read_step_table(Path(config.latency.file))
        config = replace(config, latency=replace(config.latency, table=table))
    if not (config.model or config.model_config_folder):
        return _latency_without_model(config)
    on = find_deployment(config)
    latency = TrainedPhysicsLatency() if config.latency is None else config.latency
    if isinstance(latency, LatencyConfig) and getattr(latency, "deployment", on) is None:
        latency = replace(latency, deployment=on)
    blocks = config.total_kv_blocks
    if blocks is None:
        blocks = num_kv_blocks(on, config.block_size_in_tokens, config.gpu_memory_utilization)
    longest = config.max_model_len
    if longest is None and on.model.max_position_embeddings:
        longest = min(on.model.max_position_embeddings, blocks * config.block_size_in_tokens)
    try:
        return replace(config, latency=latency, total_kv_blocks=blocks, max_model_len=longest)
    except ValueError as error:
        raise ConfigError(f"{on.model.name} on {on.hardware.name}: {error}", where="model") from error


def find_deployment(config: InstanceConfig) -> Deployment:
    """The model and the GPUs that `config` names. Raises ConfigError."""
    folder = config.model_config_folder
    model = find_model(config.model) if folder is None else read_model_config(_config_path(Path(folder)))
    hardware = find_hardware(config.hardware, file=None if config.hardware_config is None else Path(config.hardware_config))
    try:
        return Deployment(
            model=model,
            hardware=hardware,
            tensor_parallel_size=config.tensor_parallel_size,
            data_parallel_size=config.data_parallel_size,
        )
    except ValueError as error:
        raise ConfigError(str(error), where="tensor_parallel_size") from error


def _config_path(folder: Path) -> Path:
    return folder if folder.suffix == ".json" else folder / "config.json"


def _latency_without_model(config: InstanceConfig) -> InstanceConfig:
    found = replace(config, latency=LinearLatency()) if config.latency is None else config
    found.latency_model()  # raises for what it lacks
    return found


_SD_BY_MEAN_ERROR = sqrt(pi / 2)
"""Standard deviation of a normal error, by its mean size."""


def published_latency_error(config: InstanceConfig) -> float | None:
    """For `latency_error`, where it does not say; None where nothing is published.

    Known of `trained-physics` alone, with the coefficients that are shipped, on the GPUs for which BLIS reports the error of
    E2E latency: what a run as a whole is off by, as one draw of `latency_error` is. Raises ConfigError for unknown names.
    """
    if not (config.model or config.model_config_folder):
        return None
    latency = TrainedPhysicsLatency() if config.latency is None else config.latency
    if not isinstance(latency, TrainedPhysicsLatency) or not latency.shipped:
        return None
    return round(_SD_BY_MEAN_ERROR * find_deployment(config).hardware.trained_physics_error, 4) or None
