"""The notebook in examples runs from its first cell to its last, and prints the results that it describes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.py"


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two instances are too few for the chats. Three suffice, and so do two with classes, at the cost of bulk work."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(NOTEBOOK))
    lines = capsys.readouterr().out.splitlines()
    attained = {line.split(":")[0]: float(line.split()[2].rstrip("%")) for line in lines if " of the chats" in line}
    assert attained["2 instances"] < 50
    assert attained["3 instances"] >= 99
    within = [line for line in lines if line.startswith(("interactive", "bulk"))]
    assert within[2].endswith(", 100.0% within the SLO")
    assert within[3].startswith("bulk")
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "charts.png"}
