"""What follows from the names in an `InstanceConfig`: figures for its latency model, KV blocks, the longest context."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from maitred.catalogue.capacity import kv_blocks
from maitred.catalogue.gpus import find_hardware
from maitred.catalogue.hugging_face import read_config
from maitred.catalogue.models import find_model
from maitred.catalogue.step_table import read_table
from maitred.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.latency import (
    Deployment,
    LatencyConfig,
    LinearLatency,
    TableLatency,
    TrainedPhysicsLatency,
)


def resolved(config: InstanceConfig) -> InstanceConfig:
    """`config` with all that is to be derived, and nothing changed that is said. Doing it again changes nothing.

    Raises ConfigError for unknown names, files that cannot be read, and models that do not fit.
    """
    if isinstance(config.latency, TableLatency) and config.latency.table is None and config.latency.file:
        table = read_table(Path(config.latency.file))
        config = replace(config, latency=replace(config.latency, table=table))
    if not (config.model or config.model_config_folder):
        return _without_model(config)
    on = deployment(config)
    latency = TrainedPhysicsLatency() if config.latency is None else config.latency
    if isinstance(latency, LatencyConfig) and getattr(latency, "deployment", on) is None:
        latency = replace(latency, deployment=on)
    blocks = config.total_kv_blocks
    if blocks is None:
        blocks = kv_blocks(on, config.block_size_in_tokens, config.gpu_memory_utilization)
    longest = config.max_model_len
    if longest is None and on.model.max_position_embeddings:
        longest = min(on.model.max_position_embeddings, blocks * config.block_size_in_tokens)
    try:
        return replace(config, latency=latency, total_kv_blocks=blocks, max_model_len=longest)
    except ValueError as error:
        raise ConfigError(f"{on.model.name} on {on.hardware.name}: {error}", where="model") from error


def deployment(config: InstanceConfig) -> Deployment:
    """The model and the GPUs that `config` names. Raises ConfigError."""
    folder = config.model_config_folder
    model = find_model(config.model) if folder is None else read_config(_in_folder(Path(folder)))
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


def _in_folder(folder: Path) -> Path:
    return folder if folder.suffix == ".json" else folder / "config.json"


def _without_model(config: InstanceConfig) -> InstanceConfig:
    found = replace(config, latency=LinearLatency()) if config.latency is None else config
    found.latency_model()  # raises for what it lacks
    return found
