"""docs/studies.md has every key and every metric, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from maitred.study.metrics import RUN_METRICS
from maitred.study.sweep.points import SweepPlan
from maitred.study.sweep.spec import COST, GPUS, SearchRange, SearchSpec, SweepSpec

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "studies.md").read_text()


def test_every_key_is_in_a_table_and_no_other() -> None:
    of_sweep = DOC[DOC.index("| key |") : DOC.index("| key of `search` |")]
    assert set(re.findall(r"^\| `(\w+)` \|", of_sweep, re.MULTILINE)) == set(SweepSpec.__struct_fields__)
    of_search = DOC[DOC.index("| key of `search` |") :]
    assert set(re.findall(r"^\| `(\w+)` \|", of_search, re.MULTILINE)) == set(SearchSpec.__struct_fields__)
    assert all(f"`{key}" in of_search for key in SearchRange.__struct_fields__)


def test_every_metric_is_named() -> None:
    for name in (*RUN_METRICS, COST, GPUS):
        family, _, figure = name.partition("_")
        latency = re.fullmatch(r"(.+_)((?:mean|std|p\d{2,3})_ms)", name)
        said = latency.groups() if latency else (name,)
        assert all(f"`{part}`" in DOC for part in said), (family, figure)


def test_the_example_in_python_runs_and_says_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = DOC[DOC.index("```python\n") + len("```python\n") :].partition("```")[0]
    names: dict[str, object] = {}
    exec(code, names)
    assert names["swept"].best.values == {"cluster.num_instances": 2}  # type: ignore[attr-defined]
    assert (tmp_path / "pareto.svg").exists()


@pytest.mark.parametrize("name", ["grid.yaml", "cheapest.yaml"])
def test_the_sweeps_of_the_documentation_can_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "examples" / "studies" / name).read_text()
    assert f"```yaml\n{text.strip()}\n```" in DOC
    assert SweepPlan(Path("examples/studies") / name, {}).criteria.constraints


def test_the_capacity_command_prints_its_table(maitred: Any) -> None:
    section = DOC[DOC.index("## capacity") :]
    command = section.split("    maitred ", 1)[1].split("\n\n")[0].replace("\\\n", " ").split()
    printed = [line.rstrip() for line in maitred(*command, "--jobs", 1).out.splitlines() if line.strip()]
    shown = [line.rstrip() for line in section.split("```text\n", 1)[1].split("```")[0].splitlines() if line.strip()]
    assert printed == shown
