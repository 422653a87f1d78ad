"""Models and hardware, as data: what latency models and KV capacities are computed from.

`models.toml` and `hardware.toml` hold what is known by name; a Hugging Face config.json and a hardware file as BLIS has it
will do as well. `resolved` fills an `InstanceConfig` with what follows from its names: the figures that its latency model
computes with, KV blocks, the longest context.
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
