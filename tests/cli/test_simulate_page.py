"""docs/simulate.md is true: its flags exist, its Python runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import maitred as product
from maitred.report.export import to_frame

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return re.split(r"\n#+ ", PAGE.split(f"# {title}\n", 1)[1])[0]


def test_every_flag_of_the_page_is_one(maitred: Any) -> None:
    known = set(re.findall(r"--[a-z0-9-]+", maitred("simulate", "--help-all", env={"COLUMNS": "300"}).out)) | {"--help-all"}
    named = set(re.findall(r"`(--[a-z0-9-]+)", PAGE.split("## Beside other simulators")[0]))
    assert len(named) > 15
    assert named <= known


def test_its_columns_are_those_of_the_frame() -> None:
    names = re.findall(
        r"`([a-z0-9_]+)`", "".join(line.split(" | ")[0] for line in section("Columns").splitlines() if "|" in line)
    )
    rows = product.simulate("sample:mixed", sample_every=None).rows
    assert sorted(names) == sorted(to_frame(rows).columns)


def test_its_first_command_prints_its_table(maitred: Any) -> None:
    command = PAGE.split("    maitred ", 1)[1].split("\n\n")[0].replace("\\\n", " ").split()
    printed = [line.rstrip() for line in maitred(*command).out.splitlines() if line.strip()]
    shown = [line.rstrip() for line in PAGE.split("```text\n", 1)[1].split("```")[0].splitlines() if line.strip()]
    assert printed == shown


def test_its_python_runs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code = section("From Python").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace('by[By.TENANT]["acme"]', "by"), names)
    assert {path.name for path in tmp_path.iterdir()} == {"charts.svg", "report.html"}
