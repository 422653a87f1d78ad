"""How long does a step take?

A latency model is described by a frozen struct of its own, told apart in a file by `model`, and is `compiled` once into what
answers quickly (`core.contracts.LatencyModel`). `linear` needs nothing but its numbers, `table` its measurements; `roofline`
and `trained-physics` work out arithmetic and memory traffic of a model on a GPU, a `Deployment`, which the catalogue fills in.

    base, parse             the registry, and how users write a model
    base, linear_steps      `linear`: β0 + β1 · prefill tokens + β2 · decode tokens
    affine, floor_sums      runs of steps summed exactly, and the bases of models that sum theirs so
    roofline, roofline_steps  limits of the hardware; what a step costs by them
    trained_physics         the parts of a roofline, times fitted coefficients
    table, step_table       measurements; interpolation: between the points of their grids
    silicon, silicon_steps, silicon_table  `aiconfigurator`: measured kernels, added up
    deployment              a model on GPUs, as data
"""

from __future__ import annotations

from maitred.instance.latency.affine import SpreadAwareModel
from maitred.instance.latency.base import LATENCY_MODELS, LatencyConfig, LatencySpec, LinearLatency, StepTimes
from maitred.instance.latency.deployment import AttentionRanks, Deployment, HardwareSpec, ModelSpec
from maitred.instance.latency.parse import AnyLatency, numbers, parse_latency, with_coefficients
from maitred.instance.latency.roofline import RooflineLatency
from maitred.instance.latency.silicon import AIConfiguratorLatency
from maitred.instance.latency.silicon_table import SiliconTable
from maitred.instance.latency.step_table import Grid, Skew, StepTable
from maitred.instance.latency.table import TableLatency
from maitred.instance.latency.trained_physics import TrainedPhysicsLatency

__all__ = [
    "LATENCY_MODELS",
    "AIConfiguratorLatency",
    "AnyLatency",
    "AttentionRanks",
    "Deployment",
    "Grid",
    "HardwareSpec",
    "LatencyConfig",
    "LatencySpec",
    "LinearLatency",
    "ModelSpec",
    "RooflineLatency",
    "SiliconTable",
    "Skew",
    "SpreadAwareModel",
    "StepTable",
    "StepTimes",
    "TableLatency",
    "TrainedPhysicsLatency",
    "numbers",
    "parse_latency",
    "with_coefficients",
]
