"""docs/policies.md explains every policy, and recommends only what can be typed."""

from __future__ import annotations

import re
from pathlib import Path

from maitred.queueing import PRIORITIES, SCHEDULERS

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
