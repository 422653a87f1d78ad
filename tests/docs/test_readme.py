"""The first result in README.md: its commands print the figures of its table, and its Python runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## A first result\n")[2].partition("\n## ")[0]


def milliseconds(cell: str) -> int:
    return round(float(cell.replace(",", "").removesuffix(" ms")))


def ttft(printed: str, label: str) -> list[int]:
    """p50 and p99 of the TTFT of a class, in the table that `maitred simulate` prints."""
    rows = printed.partition("TTFT ms")[2].splitlines()
    (cells,) = [row.split()[1:] for row in rows[:2] if row.split()[0] == label]
    _mean, _sd, p50, _p90, p99, _p999 = map(milliseconds, cells)
    return [p50, p99]


def test_the_table_has_the_figures_that_the_commands_print(maitred: Callable[..., Any]) -> None:
    commands = re.findall(r"^    maitred (simulate .*)$", SECTION, re.MULTILINE)
    printed = [maitred(*shlex.split(command)).out for command in commands]
    for label in ("interactive", "bulk"):
        (cells,) = re.findall(rf"^\| `{label}` \|(.*)\|$", SECTION, re.MULTILINE)
        without, with_classes = (ttft(out, label) for out in printed)
        assert [milliseconds(cell.strip()) for cell in cells.split("|")] == [*without, *with_classes]


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert re.search(r"p99=[1-9]", capsys.readouterr().out)
    assert (tmp_path / "run.html").stat().st_size > 10_000
