"""What docs/routing.md recommends can be typed."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

from maitred.routing import RoutingConfig

DOCUMENT = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its two first lines."""
    section = DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_what_is_recommended_can_be_typed() -> None:
    recommended = [re.findall(r"`([^`]+)`", row[1]) for row in rows("Which one")]
    assert len(recommended) > 5
    for spellings in recommended:
        scorers = spellings.pop() if ":" in spellings[-1] else ""
        for policy in spellings:
            RoutingConfig(policy=policy, scorers=scorers).router(Random(0))
            assert RoutingConfig(policy=policy, scorers=scorers).warnings() == []
