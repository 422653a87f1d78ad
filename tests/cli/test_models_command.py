"""`maitred models`, and models on the command line of `maitred simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maitred.instance.catalogue import model_names

DOCUMENTED = ["--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "4", "--rate", "100", "--num-requests", "500"]
ORDER = ["--scheduler", "priority-fcfs", "--priority-policy", "slo-based"]


def test_every_model_has_its_line_with_the_kv_that_fits_beside_it(maitred: Any) -> None:
    result = maitred("models")
    rows = {row.split()[0]: row.split() for row in result.out.splitlines() if row.strip()}
    assert result.code == 0
    assert set(model_names()) <= set(rows)
    assert rows["llama-3.1-8b"][1:7] == ["8.0", "B", "131,072", "421", "@", "1"]  # 26,312 blocks of 16 tokens


def test_one_model_on_so_many_gpus(maitred: Any) -> None:
    result = maitred("models", "meta-llama/llama-3.1-70b-instruct", "--tp", 1)
    row = next(row for row in result.out.splitlines() if row.split()[:1] == ["llama-3.1-70b"])
    assert row.split()[4:] == ["-"] * 6


def test_an_unknown_model_is_a_mistake_in_one_line(maitred: Any) -> None:
    result = maitred("models", "lama-3.1-8b")
    assert result.code == 2
    assert result.err.startswith("maitred: error: model: unknown model 'lama-3.1-8b' (did you mean 'llama-3.1-8b'?")
    assert maitred("simulate", *DOCUMENTED, "--hardware", "H10").err.startswith(
        "maitred: error: --hardware: unknown hardware 'H10'"
    )


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
