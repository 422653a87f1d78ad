"""The catalogue: models and GPUs as data, from which latency models and KV capacities are computed.

    models.py     models by name (models.toml), or from a Hugging Face config.json
    gpus.py       GPUs by name (hardware.toml), or from a hardware file as BLIS has it
    entries.py    the two data files
    capacity.py   the number of KV blocks that fit beside a model
    resolving.py  resolve_instance: fills an InstanceConfig with everything that follows from its names

It is the one part of `instance` that reads files. Nothing else in `instance` imports it, so that instances stay free of I/O.
"""

from __future__ import annotations

from maitred.instance.catalogue.capacity import num_kv_blocks
from maitred.instance.catalogue.gpus import find_hardware, hardware_names
from maitred.instance.catalogue.models import find_model, model_names
from maitred.instance.catalogue.resolving import find_deployment, published_latency_error, resolve_instance

__all__ = [
    "find_deployment",
    "find_hardware",
    "find_model",
    "hardware_names",
    "model_names",
    "num_kv_blocks",
    "published_latency_error",
    "resolve_instance",
]
