"""docs/admission.md and docs/simulate.md are true: their commands and Python run, their flags exist, figures hold, and every
decision that exists is named.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import maitred as product
from maitred.admission import Action, Reason
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.replay import replay
from maitred.report.export import to_frame

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "admission.md").read_text(encoding="utf-8")
CLASSES = ("interactive", "bulk")


def blocks(language: str) -> Iterator[str]:
    return (found[1] for found in re.finditer(rf"```{language}\n(.*?)```", DOC, re.DOTALL))


def rows(heading: str) -> dict[str, list[str]]:
    """Return the rows of the table whose first line begins with `heading`: first cells without their quotes, and the others."""
    lines = iter(DOC.splitlines())
    next(line for line in lines if line.startswith(f"| {heading} |"))
    next(lines)
    table: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        table[first.strip("`")] = cells
    return table


@pytest.fixture
def runs(maitred: Any) -> list[Any]:
    """Run each command that the page shows, in a folder with `examples`, and return its metrics."""
    Path("examples").symlink_to(ROOT / "examples")
    found = []
    for command in next(blocks("sh")).splitlines():
        result = maitred(*shlex.split(command)[1:], "--metrics-path", "metrics.json")
        assert result.code == 0, result.err
        found.append(json.loads(Path("metrics.json").read_text(encoding="utf-8")))
    return found


def ttft(run: Any, cls: str, percentile: int) -> float:
    return float(run["per_class"][cls][f"ttft_p{percentile}_ms"])


def test_chats_are_served_at_once_with_classes_and_wait_for_bulk_without(runs: list[Any]) -> None:
    legacy, reservations, preemption = runs
    for percentile in (50, 99):
        assert ttft(reservations, "interactive", percentile) < ttft(legacy, "interactive", percentile) / 10
    assert ttft(preemption, "interactive", 50) < ttft(legacy, "interactive", 50) / 10
    assert ttft(preemption, "interactive", 99) < ttft(legacy, "interactive", 99) / 5


def test_bulk_pays_for_idle_slots_and_hardly_for_preemption(runs: list[Any]) -> None:
    legacy, reservations, preemption = runs
    assert ttft(reservations, "bulk", 50) > 1.5 * ttft(legacy, "bulk", 50)
    assert ttft(preemption, "bulk", 50) < 1.2 * ttft(legacy, "bulk", 50)
    assert [run["retry_count"] > 0 for run in runs] == [False, False, True]
    assert {run["completed_requests"] for run in runs} == {476}


def test_the_figures_of_the_page_are_those_of_its_commands(runs: list[Any]) -> None:
    table = rows("time to first token, ms")
    assert len(table) == len(runs)
    for cells, run in zip(table.values(), runs, strict=True):
        measured = [ttft(run, cls, percentile) for cls in CLASSES for percentile in (50, 99)]
        assert [float(cell) for cell in cells[:4]] == pytest.approx(measured, rel=0.05)


def test_the_log_that_is_shown_is_such_a_log(runs: list[Any]) -> None:
    lines = Path("decisions.jsonl").read_bytes().splitlines(keepends=True)
    of_admission = [entry for entry in map(json.loads, lines) if entry["room"] == "admission"]
    decided = [entry["decision"] for entry in of_admission if "decision" in entry]
    shown = [json.loads(line)["decision"] for line in next(blocks("json")).splitlines()]
    assert {tuple(decision) for decision in decided} == {tuple(decision) for decision in shown}
    words = {(decision["action"], decision["reason"]) for decision in decided}
    assert {(decision["action"], decision["reason"]) for decision in shown} <= words
    again: list[bytes] = []
    replay(lines, DecisionLog(again.append))
    assert again == [line for line in lines if b'"seal"' not in line]


def test_every_action_and_every_reason_is_explained() -> None:
    table = rows("action")
    assert set(table) == set(Action)
    explained = {word for cells in table.values() for word in re.findall(r"`(\w+)`", cells[0])} & set(Reason)
    assert explained == set(Reason)


def test_the_classes_are_as_they_are_shipped() -> None:
    from maitred.admission import AdmissionConfig

    shipped = [AdmissionConfig().class_rules(cls) for cls in sorted(PriorityClass, reverse=True)]
    table = rows("by default")
    reserved = [int(cell.split()[0]) / 100 if "%" in cell else 0.0 for cell in table["reserved, of the capacity"]]
    assert reserved == [rules.reserved_per_slot for rules in shipped]
    assert [int(cell.split(",")[0]) for cell in table["may wait"]] == [rules.queue_size for rules in shipped]
    assert [cell == "yes" for cell in table["may preempt"]] == [rules.can_preempt for rules in shipped]


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
    rows = product.simulate("sample:mixed", sample_every_ms=None).rows
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
