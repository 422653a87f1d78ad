"""A comparison reckons with what is published of a latency model's error, unless the configuration says how large it is."""

from __future__ import annotations

import pytest

from maitred import Candidate, InstanceConfig, Load, compare
from maitred.errors import ConfigError
from maitred.study.residual import drawn_scale

LOAD = Load(rate=2, num_requests=10)
LLAMA = "meta-llama/llama-3.1-8b"


def candidate(**said: object) -> Candidate:
    return Candidate(instance=InstanceConfig(model=LLAMA, **said))  # type: ignore[arg-type]


def test_the_published_error_is_drawn_from_where_none_is_said() -> None:
    sides = candidate(), candidate(latency_error=0.0689), candidate(latency_error=0.0)
    found = compare(*sides, workload=LOAD, seeds=2, metrics=["tpot_mean_ms"])

    assert found.latency_errors == (0.0689, 0.0689, 0.0)
    assert found.figures[0] == found.figures[1]
    assert found.figures[0] != found.figures[2]


def test_elsewhere_a_model_is_exact_if_nothing_is_said() -> None:
    assert drawn_scale(InstanceConfig(model=LLAMA), seed=42) == 1


def test_whose_hardware_is_unknown_is_said() -> None:
    with pytest.raises(ConfigError) as error:
        compare(candidate(), candidate(hardware="H10O"), workload=LOAD, seeds=1)

    assert str(error.value).startswith("B: hardware: unknown hardware 'H10O'")
