"""CONTRIBUTING.md's first contribution: its test fails without its code, and passes with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from docs_text import ROOT, blocks

TEST, CODE = (block.text for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "py")


def outcome(folder: Path) -> str:
    """Run the tests of a folder in a process of their own, and return the last line of pytest."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "queueing"), str(folder)])
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder), str(folder)]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    return ran.stdout.strip().splitlines()[-1]


def test_its_test_fails_and_with_its_code_passes(tmp_path: Path) -> None:
    (tmp_path / "test_sof.py").write_text(TEST, encoding="utf-8")
    assert outcome(tmp_path).startswith("2 failed")
    (tmp_path / "shortest_output.py").write_text(CODE, encoding="utf-8")
    # In the package it would be found; here it is imported.
    (tmp_path / "conftest.py").write_text("import shortest_output\n", encoding="utf-8")
    assert outcome(tmp_path).startswith("2 passed")
