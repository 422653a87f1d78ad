"""Flags for models, hardware and step times."""

from __future__ import annotations

import pytest

from maitred.cli.engine import EngineFlags, names_real_model
from maitred.cli.shared_flags import InstanceFlags, latency_of_flags
from maitred.core.errors import ConfigError
from maitred.instance.latency import LatencyConfig, LinearLatency, RooflineLatency, TrainedPhysicsLatency

TEN = "0,0,0,0,0,50,5000,0,0,0"
PURELY_LINEAR = TrainedPhysicsLatency((1000.0, 500.0, 20.0), (0, 0, 0, 0, 0, 50, 5000, 0, 0, 0))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, None),
        ({"latency_model": "roofline"}, RooflineLatency()),
        ({"latency_model": "trained-physics"}, TrainedPhysicsLatency()),
        ({"latency_model": "linear"}, LinearLatency()),
        ({"latency_model": "linear:1,2,3"}, LinearLatency((1, 2, 3))),
        ({"beta_coeffs": "1,2,3"}, LinearLatency((1, 2, 3))),
        ({"beta_coeffs": "1,2,3", "alpha_coeffs": "500,1,100"}, LinearLatency((1, 2, 3), (500, 1, 100))),
        ({"latency_model": "blackbox", "beta_coeffs": "1,2,3"}, LinearLatency((1, 2, 3))),
        ({"latency_model": "linear", "alpha_coeffs": "500,1,100"}, LinearLatency(alpha=(500, 1, 100))),
        ({"beta_coeffs": TEN, "alpha_coeffs": "1000,500,20"}, PURELY_LINEAR),
        ({"latency_model": "trained-physics", "beta_coeffs": TEN, "alpha_coeffs": "1000,500,20"}, PURELY_LINEAR),
    ],
)
def test_a_latency_model_and_its_coefficients(flags: dict[str, str], expected: LatencyConfig | None) -> None:
    assert latency_of_flags(InstanceFlags(**flags)) == expected


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        ({"latency_model": "trained"}, "--latency-model: unknown latency model 'trained' .did you mean 'trained-physics'"),
        ({"latency_model": "roofline", "beta_coeffs": "1,2,3"}, "--beta-coeffs: roofline has no coefficients"),
        ({"latency_model": "roofline:1"}, "--latency-model: roofline has no coefficients"),
        ({"alpha_coeffs": "1,2,3"}, "--alpha-coeffs: without --beta-coeffs it has no effect"),
        ({"beta_coeffs": TEN}, "--beta-coeffs: trained-physics takes --alpha-coeffs and --beta-coeffs together"),
        ({"latency_model": "trained-physics", "alpha_coeffs": "1,2,3"}, "--alpha-coeffs: trained-physics takes"),
        ({"latency_model": "trained-physics:1,2"}, "--latency-model: trained-physics takes no coefficients here"),
        ({"beta_coeffs": "1,2"}, "--beta-coeffs: linear takes three β, not 2"),
        ({"latency_model": "linear", "beta_coeffs": TEN}, "--beta-coeffs: linear takes three β, not 10"),
        ({"latency_model": "trained-physics", "alpha_coeffs": "1,2,3", "beta_coeffs": "1,2,3"}, "from 7 to 11"),
        ({"alpha_coeffs": "1,2", "beta_coeffs": "1,2,3"}, "three numbers, not 2"),
        ({"beta_coeffs": "1,two,3"}, "--beta-coeffs: '1,two,3' is no list of numbers"),
        ({"beta_coeffs": "1,2,-3"}, "--beta-coeffs: beta must be three numbers from 0"),
        ({"latency_model": "linear:1,2,3", "beta_coeffs": "1,2,3"}, "two names for one thing"),
    ],
)
def test_what_does_not_go_together(flags: dict[str, str], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        latency_of_flags(InstanceFlags(**flags))


def test_the_name_of_an_emulated_engine_is_only_a_name_until_hardware_is_given() -> None:
    model = {"engine.model": "meta-llama/llama-3.1-8b-instruct"}
    assert not names_real_model(EngineFlags(values=model))
    assert names_real_model(EngineFlags(values={**model, "instance.hardware": "H100"}))
    assert names_real_model(EngineFlags(values=model, latency_model="roofline"))
