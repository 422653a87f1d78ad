"""The catalogue: models and GPUs as data, from which latency models and KV capacities are computed.

    specs.py      models (models.toml, or a Hugging Face config.json) and GPUs (hardware.toml, or a file as BLIS has it) by name
    resolving.py  resolve_instance: fills an InstanceConfig with everything that follows from its names; KV blocks that fit
    measured.py   step times and KV blocks of AIConfigurator, if it is installed; silicon.py asks it, refining.py places points,
                  silicon_accuracy.py has overheads and errors (silicon.toml)

It is the one part of `instance` that reads files. Nothing else in `instance` imports it, so that instances stay free of I/O.
"""

from __future__ import annotations

from maitred.instance.catalogue.resolving import (
    deviation_of,
    find_deployment,
    num_kv_blocks,
    published_latency_error,
    resolve_instance,
)
from maitred.instance.catalogue.silicon import SILICON_HINT, installed_version
from maitred.instance.catalogue.silicon_accuracy import (
    beyond_kernels,
    described_overheads,
    nearest_deviation,
    nearest_error,
    without_request_overhead,
)
from maitred.instance.catalogue.specs import find_hardware, find_model, hardware_name, hardware_names, model_names

__all__ = [
    "SILICON_HINT",
    "beyond_kernels",
    "described_overheads",
    "deviation_of",
    "find_deployment",
    "find_hardware",
    "find_model",
    "hardware_name",
    "hardware_names",
    "installed_version",
    "model_names",
    "nearest_deviation",
    "nearest_error",
    "num_kv_blocks",
    "published_latency_error",
    "resolve_instance",
    "without_request_overhead",
]
