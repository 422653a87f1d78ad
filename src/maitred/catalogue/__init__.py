"""Models and hardware, as data: what latency models and KV capacities are computed from.

`models.toml` and `hardware.toml` hold what is known by name; a Hugging Face config.json and a hardware file as BLIS has it
will do as well. `resolved` fills an `InstanceConfig` with what follows from its names: the figures that its latency model
computes with, KV blocks, the longest context.
"""

from __future__ import annotations

from maitred.catalogue.capacity import kv_blocks
from maitred.catalogue.gpus import find_hardware, hardware_names
from maitred.catalogue.models import find_model, model_names
from maitred.catalogue.published import published_error
from maitred.catalogue.resolving import deployment, resolved

__all__ = [
    "deployment",
    "find_hardware",
    "find_model",
    "hardware_names",
    "kv_blocks",
    "model_names",
    "published_error",
    "resolved",
]
