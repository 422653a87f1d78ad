"""The published errors of latency models."""

from __future__ import annotations

from importlib.util import find_spec
from math import pi, sqrt
from pathlib import Path
from typing import Any

import pytest

from maitred.core.errors import ConfigError
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue import published_latency_error
from maitred.instance.latency import RooflineLatency, TrainedPhysicsLatency

LLAMA = "meta-llama/llama-3.1-8b"


@pytest.mark.parametrize(("hardware", "mean_error"), [("H100", 0.055), ("a100-sxm", 0.157), ("L40S", 0.133)])
def test_a_mean_error_is_the_spread_of_a_normal_one(hardware: str, mean_error: float) -> None:
    found = published_latency_error(InstanceConfig(model=LLAMA, hardware=hardware, latency=TrainedPhysicsLatency()))

    assert found == pytest.approx(mean_error * sqrt(pi / 2), abs=1e-4)


@pytest.mark.parametrize(
    "said",
    [
        {"model": ""},
        {"hardware": "H200", "latency": TrainedPhysicsLatency()},
        pytest.param({}, marks=pytest.mark.skipif(find_spec("aiconfigurator_core") is not None, reason="measured then")),
        {"latency": RooflineLatency()},
        {"latency": LinearLatency()},
        {"latency": TrainedPhysicsLatency(beta=(1.0,) * 10)},
        {"latency": TrainedPhysicsLatency(alpha=(0.0, 0.0, 0.0))},
    ],
)
def test_of_others_nothing_is_published(said: dict[str, Any]) -> None:
    assert published_latency_error(InstanceConfig(**({"model": LLAMA} | said))) is None


def test_nor_of_gpus_that_a_file_describes(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    path.write_text('{"H100": {"TFlopsPeak": 989.5, "BwPeakTBs": 3.35, "MemoryGiB": 80, "mfuPrefill": 0.45, "mfuDecode": 0.3}}')

    said = InstanceConfig(model=LLAMA, hardware_config=str(path), latency=TrainedPhysicsLatency())
    assert published_latency_error(said) is None


def test_an_unknown_gpu_is_said() -> None:
    with pytest.raises(ConfigError, match="unknown hardware 'H10O'"):
        published_latency_error(InstanceConfig(model=LLAMA, hardware="H10O"))
