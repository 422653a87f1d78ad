"""`maitred compare` and `maitred sweep`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

LOAD = ("--rate", "30", "--num-requests", "60")
SPEC = """\
base: base.yaml
workload: {rate: 30, num_requests: 60}
grid:
  cluster.num_instances: [1, 2]
constraints: [ttft_p99_ms <= 100000]
"""


@pytest.fixture
def files(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("instance: {max_num_seqs: 32}\n")
    (tmp_path / "two.yaml").write_text("cluster: {num_instances: 2}\n")
    (tmp_path / "sweep.yaml").write_text(SPEC)


def test_a_comparison_is_printed_and_written(maitred: Any, files: None) -> None:
    result = maitred("compare", "base.yaml", "two.yaml", *LOAD, "--seeds", 3, "--jobs", 1, "--json", "c.json")
    assert result.code == 0
    said = " ".join(result.out.split())
    assert said.startswith("A = base.yaml: generic linear model, no particular GPU; 1 instance; ")
    assert " B = two.yaml: generic linear model, no particular GPU; 2 instances; " in said
    assert said.count("; 3 seeds from 42 on; maitred ") == 2
    assert "60 requests, 30 per second; 3 seeds" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    written = msgspec.json.decode(Path("c.json").read_bytes())
    assert written["seeds"] == [42, 43, 44]
    assert len(written["figures"][1]) == 3
    again = maitred("compare", "base.yaml", "two.yaml", *LOAD, "--seeds", 3, "--jobs", 2)
    assert again.out == result.out


def test_metrics_seeds_and_targets_of_a_comparison(maitred: Any, files: None) -> None:
    more = ("--metric", "slo_attainment,default.ttft_p50_ms", "--metric", "ttft_p50_ms", "--slo-ttft-ms", "0.001")
    flags = ("--seeds", 1, "--seed", 7, "--jobs", 1, "--json", "c.json", *more)
    result = maitred("compare", "base.yaml", "two.yaml", *LOAD, *flags)
    assert result.code == 0
    written = msgspec.json.decode(Path("c.json").read_bytes())
    assert written["seeds"] == [7]
    (figures,) = written["figures"][0]
    assert figures["slo_attainment"] == 0
    assert figures["default.ttft_p50_ms"] == figures["ttft_p50_ms"] > 0
    assert "SLO: TTFT ≤ 0.001 ms" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "base.yaml", *LOAD), "there is nothing to compare"),
        (("compare", "base.yaml", "base.yaml", *LOAD), "one file is given twice"),
        (("compare", "base.yaml", "nowhere.yaml", *LOAD), "nowhere.yaml: cannot be read"),
        (("compare", "base.yaml", "two.yaml"), "there is no workload"),
        (("compare", "base.yaml", "two.yaml", "--rate", "3"), "--num-requests is missing"),
        (("compare", "base.yaml", "two.yaml", *LOAD, "--seeds", "0"), "--seeds: 0 seeds cannot be used"),
        (("compare", "base.yaml", "two.yaml", *LOAD, "--metric", "ttft"), "--metric: there is no metric 'ttft'"),
        (("compare", "base.yaml", "two.yaml", *LOAD, "--jobs", "0"), "--jobs: 0 processes"),
        (("sweep",), "there is nothing to sweep"),
        (("sweep", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("sweep", "sweep.yaml", "--jobs", "2", "--ray", "auto"), "--jobs does not go with --ray"),
        (("sweep", "sweep.yaml", "--plot", "p.gif"), "--plot: "),
        (("sweep", "sweep.yaml", "--out", "base.yaml"), "base.yaml: cannot be used"),
    ],
)
def test_a_mistake_is_one_line(maitred: Any, files: None, arguments: tuple[str, ...], message: str) -> None:
    ended = maitred(*arguments)
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_a_sweep_is_printed_and_written(maitred: Any, files: None) -> None:
    result = maitred("sweep", "sweep.yaml", "--jobs", 1, "--plot", "p.png", "--report", "sweep.sweep/page.html")
    assert result.code == 0, result.err
    assert "best" in result.out
    assert result.out.startswith("Best: generic linear model, no particular GPU; ")
    assert "2 candidates, 2 runs" in result.out
    folder = Path("sweep.sweep")
    written = ["page.html", "results.jsonl", "results.parquet", "runs.jsonl", "sweep.json"]
    assert sorted(path.name for path in folder.iterdir()) == written
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    again = maitred("sweep", "sweep.yaml", "--jobs", 1)
    assert again.code == 2
    assert "sweep.sweep: it holds a sweep already (--resume goes on with it" in again.err
    assert maitred("sweep", "sweep.yaml", "--jobs", 1, "--resume").out == result.out


def test_a_key_that_is_wrong_has_its_line(maitred: Any, files: None) -> None:
    Path("sweep.yaml").write_text(SPEC.replace("num_instances", "num_instnces"))
    assert maitred("sweep", "sweep.yaml").err.startswith(
        "maitred: error: sweep.yaml:4: unknown key 'cluster.num_instnces' (did you mean 'num_instances'?)"
    )


def test_ctrl_c_leaves_what_can_be_resumed(maitred: Any, files: None, tmp_path: Path) -> None:
    """Interrupt a sweep when its first run is written; it has more runs than can be done until then."""
    Path("sweep.yaml").write_text(
        SPEC.replace("[1, 2]", "[1, 2, 3]").replace("num_requests: 60", "num_requests: 4000") + "seeds: 400\n"
    )
    command = [sys.executable, "-m", "maitred", "sweep", "sweep.yaml", "--out", "out", "--jobs", "2"]
    sweep = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    journal = tmp_path / "out" / "runs.jsonl"
    try:
        while sweep.poll() is None and not (journal.exists() and journal.stat().st_size):
            time.sleep(0.05)
        os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does: to its workers as well
        _, err = sweep.communicate()  # ends when no process holds the other end: no worker is left
    finally:
        with suppress(ProcessLookupError):
            os.killpg(sweep.pid, signal.SIGKILL)
    assert sweep.returncode == 130
    done = journal.read_bytes().count(b"\n")
    assert 0 < done < 1200
    assert err == f"maitred: stopped: {done} of 1200 runs are in out; go on with: maitred sweep sweep.yaml --out out --resume\n"


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (
            ("compare", "c.yaml", "d.yaml", "--rate", "1", "--num-requests", "1", "--report", "d.yaml"),
            "--report: d.yaml is already what CONFIG reads",
        ),
        (("sweep", "c.yaml", "--report", "./c.yaml"), "--report: c.yaml is already what SPEC reads"),
        (("sweep", "c.yaml", "--plot", "p.svg", "--report", "./p.svg"), "--report: p.svg is already what --plot writes to"),
        (
            ("capacity", "--rate", "1", "--num-requests", "1", "--plot", "p.svg", "--report", "p.svg"),
            "--report: p.svg is already what --plot writes to",
        ),
        (
            ("capacity", "--config", "c.yaml", "--rate", "1", "--num-requests", "1", "--json", "c.yaml"),
            "--json: c.yaml is already what --config reads",
        ),
        (("replay", "c.yaml", "--record", "d.yaml", "--json", "d.yaml"), "--json: d.yaml is already what --record reads"),
        (("tune", "c.yaml", "--record", "d.yaml", "--write", "c.yaml"), "--write: c.yaml is already what LOG reads"),
    ],
)
def test_a_study_writes_over_nothing_that_it_reads(maitred: Any, run: tuple[str, ...], says: str) -> None:
    for name in ("c.yaml", "d.yaml"):
        Path(name).write_text("routing: {policy: round-robin}\n", encoding="utf-8")
    assert says in maitred(*run).err
    assert {Path(name).read_text(encoding="utf-8") for name in ("c.yaml", "d.yaml")} == {"routing: {policy: round-robin}\n"}
