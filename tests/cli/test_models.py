"""`maitred models`, and the flags of `maitred simulate` for models, hardware and step times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maitred.cli.engine import EngineFlags, names_real_model
from maitred.cli.shared_flags import InstanceFlags, latency_of_flags
from maitred.core.errors import ConfigError
from maitred.instance.catalogue import hardware_names, model_names
from maitred.instance.latency import LatencyConfig, LinearLatency, RooflineLatency, TrainedPhysicsLatency

DOCUMENTED = ["--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "4", "--rate", "100", "--num-requests", "500"]
ORDER = ["--scheduler", "priority-fcfs", "--priority-policy", "slo-based"]


def test_every_model_has_its_line_with_the_kv_that_fits_beside_it(maitred: Any) -> None:
    result = maitred("models")
    rows = {row.split()[0]: row.split() for row in result.out.splitlines() if row.strip()}
    assert result.code == 0
    assert set(model_names()) <= set(rows)
    assert rows["llama-3.1-8b"][1:7] == ["8.0", "B", "131,072", "421", "@", "1"]  # 26,312 blocks of 16 tokens


def test_one_model_is_shown_on_every_kind_of_gpu(maitred: Any) -> None:
    result = maitred("models", "meta-llama/llama-3.1-70b-instruct", "--tp", 1)
    rows = {row.split()[0]: row.split() for row in result.out.splitlines() if row.strip()}
    assert set(hardware_names()) <= set(rows)
    assert rows["H100"][1:] == ["80", "3.35", "990", "1,979", "-"]  # 141 GB of weights
    assert rows["A10"][1:] == ["24", "0.60", "125", "-", "-"]
    assert rows["MI325X"][-2:] == ["@", "1"]


def test_other_kinds_of_gpu_are_asked_for(maitred: Any) -> None:
    result = maitred("models", "--hardware", "l4", "--hardware", "MI300X")
    assert result.code == 0
    assert "KV on L4" in result.out
    assert "KV on MI300X" in result.out


def test_its_tables_fit_into_80_columns(maitred: Any) -> None:
    for arguments in ((), ("llama-3.1-8b",), ("deepseek-v3", "--tp", 16)):
        assert max(map(len, maitred("models", *arguments).out.splitlines())) <= 80


def test_an_unknown_model_is_a_mistake_in_one_line(maitred: Any) -> None:
    result = maitred("models", "lama-3.1-8b")
    assert result.code == 2
    assert result.err.startswith("maitred: error: model: unknown model 'lama-3.1-8b' (did you mean 'llama-3.1-8b'?")
    assert maitred("simulate", *DOCUMENTED, "--hardware", "H10").err.startswith(
        "maitred: error: --hardware: unknown hardware 'H10'"
    )


def test_an_unknown_gpu_is_told_how_to_be_described(maitred: Any) -> None:
    error = maitred("simulate", *DOCUMENTED, "--hardware", "TPUv9").err
    assert "--hardware-config FILE" in error
    assert "TFlopsPeak" in error


def test_the_documented_command_line(maitred: Any, tmp_path: Path) -> None:
    result = maitred("simulate", *DOCUMENTED, *ORDER, "--metrics-path", "m.json", "--results-path", "r.json")
    assert result.code == 0, result.err
    results = json.loads((tmp_path / "r.json").read_text())
    assert len(results) == 500
    assert min(row["ttft_us"] for row in results) > 15563 + 45 + 6000  # the way in, a step, the way out of a token


def test_a_faster_gpu_is_faster(maitred: Any, tmp_path: Path) -> None:
    mean = {}
    for gpu in ("A100", "H200"):
        maitred("simulate", *DOCUMENTED, "--hardware", gpu, "--results-path", "r.json", "--quiet")
        rows = json.loads((tmp_path / "r.json").read_text())
        mean[gpu] = sum(row["e2e_us"] for row in rows) / len(rows)
    assert mean["H200"] < 0.8 * mean["A100"]


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
