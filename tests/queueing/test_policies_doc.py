"""docs/policies.md explains every policy, and recommends only what can be typed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from maitred.queueing import PRIORITIES, SCHEDULERS
from maitred.report.table import format_number

DOCUMENT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
TABLE = DOCUMENT.partition("## Which one")[2].partition("Four rules")[0]


def test_each_policy_is_explained() -> None:
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`\n]+)`", DOCUMENT))))
    assert {name for name in [*SCHEDULERS, *PRIORITIES] if ":" not in name} <= named


def test_what_the_decision_table_recommends_can_be_typed() -> None:
    rows = [row.split("|")[2] for row in TABLE.splitlines() if row.startswith("|")]
    recommended = [spec for cell in rows for spec in re.findall(r"`([^`]+)`", cell)]
    assert len(recommended) > 15
    for spec in recommended:
        SCHEDULERS.get(spec.replace("POLICY", "sjf"))()


def test_its_first_commands_print_the_figures_below_them(maitred: Any) -> None:
    """And no two of them the same: a reader who types them is to see a difference."""
    beginning = DOCUMENT.partition("## Which one")[0]
    commands = [shlex.split(line) for line in re.findall(r"^    maitred (.*)$", beginning, re.MULTILINE)]
    rows = [[cell.strip() for cell in row.split("|")[2:-1]] for row in re.findall(r"^\| `.*$", beginning, re.MULTILINE)]
    assert [ttft(maitred(*command, "--json").out) for command in commands] == rows
    assert len({tuple(row) for row in rows}) == len(rows) == 3


def ttft(printed: str) -> list[str]:
    classes = json.loads(printed)["per_class"]
    return [format_number(classes[name][f"ttft_{figure}_ms"]) for name in ("interactive", "bulk") for figure in ("p50", "p99")]
