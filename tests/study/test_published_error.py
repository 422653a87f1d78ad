"""A comparison uses the published error of a latency model, unless the configuration states one."""

from __future__ import annotations

import pytest

from maitred import Candidate, InstanceConfig, Load, compare
from maitred.core.errors import ConfigError
from maitred.study.candidate import draw_latency_scale

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


def test_an_unknown_error_is_not_called_exact() -> None:
    found = compare(candidate(), candidate(hardware="H200"), candidate(latency_error=0.0), workload=LOAD, seeds=2)

    assert found.latency_errors == (0.0689, None, 0.0)
    said = " ".join(str(found).split())
    assert "drawn anew for each seed: A 6.9%, C 0.0% (standard deviation; 0: exact)." in said
    assert "They do not include that of B: it is neither configured nor published" in said
    nothing = " ".join(str(compare(candidate(hardware="H200"), candidate(latency_error=0), workload=LOAD, seeds=1)).split())
    assert "No model error is in these figures: it is neither configured nor published" in nothing


def test_elsewhere_a_model_is_exact_if_nothing_is_said() -> None:
    assert draw_latency_scale(InstanceConfig(model=LLAMA), seed=42) == 1


def test_whose_hardware_is_unknown_is_said() -> None:
    with pytest.raises(ConfigError) as error:
        compare(candidate(), candidate(hardware="H10O"), workload=LOAD, seeds=1)

    assert str(error.value).startswith("B: hardware: unknown hardware 'H10O'")
