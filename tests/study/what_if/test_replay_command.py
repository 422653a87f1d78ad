"""`maitred replay`: what it prints and writes, its exit codes, and what it says of bad input."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))
from recorded_runs import candidate, mixed_jobs, write_run

RULES = "gateway: {slots_per_backend: 6}\nadmission: {mode: priority, default_max_class: system}\n"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("what_if")
    write_run(folder, mixed_jobs(200), candidate())
    (folder / "other.yaml").write_text(RULES)
    (folder / "wrong.yaml").write_text("admission: {mode: priority, classes: {bulk: {queue_sise: 3}}}\n")
    (folder / "notes.txt").write_text("nothing\n")
    return folder


FILES = ("decisions.jsonl", "--record", "record.csv", "--config", "other.yaml", "--jobs", 1)


def test_it_says_what_changes_and_how_well_it_knows(maitred: Any, scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene)
    bounds = ("--constraint", "bulk.ttft_p99_ms <= 90%", "--constraint", "completed_requests >= 200")
    result = maitred("replay", *FILES, *bounds, "--json", "found.json", "--report", "page.html", "--seeds", 3)
    assert result.code == 0
    said = result.out
    assert max(map(len, said.splitlines())) <= 80
    assert re.search(r"bulk: p99 TTFT [\d,.]+ → [\d,.]+ ms \[[\d,.]+, [\d,.]+\], makespan [-+][\d.]+ %", said)
    assert re.search(r"Replayed under the rules of the recording, p50 and p90 are off by [\d.]+% on\s+average", said)
    assert "Slots: 8 when it was recorded, 12 under the other rules." in said
    found = json.loads((scene / "found.json").read_text())
    by_name = {each["figure"]: each for each in found["differences"]}
    assert {"ttft_p99_ms", "interactive.ttft_p99_ms", "auth:acme.makespan_s"} <= set(by_name)
    assert by_name["bulk.ttft_p99_ms"]["interval"]["high"] < 0
    assert [bound["holds"] for bound in found["bounds"]] == [True, True]
    page = (scene / "page.html").read_text()
    assert "What other.yaml changes" in page
    assert "The replay, held against the record" in page


def test_a_bound_that_is_missed_ends_with_1(maitred: Any, scene: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene)
    result = maitred("replay", *FILES, "--seeds", 0, "--constraint", "interactive.ttft_p99_ms <= 1")
    assert result.code == 1
    assert re.search(r"interactive\.ttft_p99_ms <= 1 +[\d.,]+ +NO", result.out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "LOG: no log is named"),
        ("decisions.jsonl --config other.yaml", "--record: a log has no answers: the record of the same run is missing"),
        ("decisions.jsonl --record record.csv", "--config: no other configuration is named"),
        ("notes.txt --record record.csv --config other.yaml", "notes.txt, line 1: it is no decision log"),
        ("missing --record record.csv --config other.yaml", "cannot read missing"),
        ("decisions.jsonl --record notes.txt --config other.yaml", "notes.txt: it is no record of maitred serve"),
        ("decisions.jsonl --record record.csv --config wrong.yaml", "wrong.yaml:1: .*queue_sise.*did you mean"),
        ("decisions.jsonl --record record.csv --config other.yaml --metric ttft_p98_ms", "no figure 'ttft_p98_ms'"),
        (
            "decisions.jsonl --record record.csv --config other.yaml --constraint system.ttft_p99_ms<=5",
            "class or tenant 'system'",
        ),
    ],
)
def test_bad_input_is_one_line(maitred: Any, scene: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, said: str) -> None:
    monkeypatch.chdir(scene)
    result = maitred("replay", *arguments.split(), "--jobs", 1)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert re.search(said, result.err)
