"""`maitred models`, and models on the command line of `maitred simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maitred.instance.catalogue import hardware_names, model_names

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
