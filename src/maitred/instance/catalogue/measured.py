"""From the names in an `InstanceConfig` to what AIConfigurator is asked, and back: its step times and its KV blocks.

A model is found by its name on Hugging Face without publisher, `Meta-` and what says how it was tuned (`-Instruct`), in any
case; a name that ends in -fp8 and that the package has in 16 bits alone is asked for in FP8. Of a model with its own folder
the package gets the configuration. A GPU says its name there itself (`HardwareSpec.aiconfigurator`).
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.catalogue.silicon import (
    IncompletePackageError,
    SiliconQuery,
    installed_version,
    require_package,
    silicon_blocks,
    silicon_model_files,
    silicon_table,
)
from maitred.instance.catalogue.silicon_accuracy import with_overheads
from maitred.instance.catalogue.specs import config_path, read_json
from maitred.instance.latency import AIConfiguratorLatency, Deployment

_TUNED: Final = re.compile(r"-(?:instruct|chat|base|it|hf)(?=-|$)|^meta-")
_EIGHT_BITS: Final = "-fp8"
_CONFIG: Final = "config.json"
_QUANTIZATION: Final = "hf_quant_config.json"


def silicon_config_of(model: str) -> Path | None:
    """Return the config.json that AIConfigurator has of `model`, or None if it knows none of this name."""
    known = find_silicon_name(model)
    return None if known is None else silicon_model_files()[known[0]]


def measured_latency(
    config: InstanceConfig, latency: AIConfiguratorLatency, deployment: Deployment, *, required: bool = True
) -> AIConfiguratorLatency | None:
    """Return `latency` with its deployment and its table, or None if it has none and is not `required`. Raises ConfigError."""
    if not required and not (installed_version() and deployment.hardware.aiconfigurator and _known_model(config)):
        return None
    try:
        query = _query(config, latency, deployment)
        measured = replace(latency, engine=query.engine, deployment=deployment, table=silicon_table(query))
        return with_overheads(measured, query.engine, query.system)
    except IncompletePackageError:
        raise
    except ConfigError:
        if required:
            raise
        return None


def measured_blocks(config: InstanceConfig, latency: AIConfiguratorLatency, deployment: Deployment) -> int:
    """Return the KV blocks of all ranks together by the memory model of AIConfigurator. Raises ConfigError."""
    of_rank = silicon_blocks(
        _query(config, latency, deployment),
        config.block_size_in_tokens,
        config.max_num_batched_tokens,
        config.max_num_seqs,
        config.gpu_memory_utilization,
    )
    return of_rank * deployment.data_parallel_size


def _query(config: InstanceConfig, latency: AIConfiguratorLatency, deployment: Deployment) -> SiliconQuery:
    """Return the question about a deployment. Raises ConfigError for names that AIConfigurator does not know."""
    require_package()
    known, hint = _known_model(config), "--latency-model roofline"
    if known is None:
        raise ConfigError(f"AIConfigurator knows no model {deployment.model.name!r}", where="model", hint=hint)
    if not deployment.hardware.aiconfigurator:
        raise ConfigError(f"AIConfigurator knows no {deployment.hardware.name}", where="hardware", hint=hint)
    gpus = deployment.tensor_parallel_size * deployment.data_parallel_size
    experts = latency.expert_parallel_size or (gpus if deployment.data_parallel_size > 1 else 1)
    if gpus % experts:
        raise ConfigError(f"expert_parallel_size must divide the {gpus} GPUs, not {experts}", where="latency")
    name, precision = known
    return SiliconQuery(
        model=name,
        files=_files_of(config),
        system=deployment.hardware.aiconfigurator,
        engine=latency.engine or (config.flavour if config.flavour in ("sglang", "trtllm") else "vllm"),
        tensor_parallel_size=deployment.tensor_parallel_size,
        pipeline_parallel_size=latency.pipeline_parallel_size,
        data_parallel_size=deployment.data_parallel_size,
        expert_parallel_size=experts,
        precision=latency.precision or precision,
        expert_precision=latency.expert_precision,
        kv_precision=latency.kv_precision,
    )


def _known_model(config: InstanceConfig) -> tuple[str, str] | None:
    """Return the package's name of the model of an instance, and the precision to ask for, or None. With a folder of its own a
    model needs no name there."""
    return find_silicon_name(config.model) if config.model_config_folder is None else (config.model, "")


def _files_of(config: InstanceConfig) -> tuple[tuple[str, str], ...]:
    """Return the configuration files of a model that has a folder of its own: names and texts. Raises ConfigError."""
    if config.model_config_folder is None:
        return ()
    path = config_path(Path(config.model_config_folder))
    quantization = path.with_name(_QUANTIZATION)
    files = {_CONFIG: path, **({_QUANTIZATION: quantization} if quantization.is_file() else {})}
    return tuple((name, json.dumps(read_json(file, name, "a file of Hugging Face"))) for name, file in files.items())


def find_silicon_name(model: str) -> tuple[str, str] | None:
    """Return the name of `model` in AIConfigurator and the precision to ask for, or None."""
    known, plain = _plain_names(), _plain(model)
    if plain in known:
        return known[plain], ""
    if plain.endswith(_EIGHT_BITS) and (narrow := plain.removesuffix(_EIGHT_BITS)) in known:
        return known[narrow], "fp8"
    return None


@lru_cache(maxsize=1)
def _plain_names() -> dict[str, str]:
    return {_plain(name): name for name in reversed(silicon_model_files())}


def _plain(name: str) -> str:
    return _TUNED.sub("", name.strip().lower().rsplit("/", 1)[-1])
