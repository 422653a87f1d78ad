"""docs/workloads.md names every key of a specification, and the specifications that it shows are valid."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from maitred.workload import ARRIVALS, LENGTHS, Workload
from maitred.workload.spec import (
    Arrival,
    Client,
    Cohort,
    Diurnal,
    Drain,
    GoodputTargets,
    Lifecycle,
    MultiTurn,
    Reasoning,
    Spike,
    Window,
)
from maitred.workload.synthetic import PRESETS

DOC = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
STRUCTS = [Arrival, Client, Cohort, Diurnal, Drain, GoodputTargets, Lifecycle, MultiTurn, Reasoning, Spike, Window, Workload]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_key_is_documented(struct: type[msgspec.Struct]) -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", DOC))))
    assert set(struct.__struct_fields__) <= words


def test_every_name_is_documented() -> None:
    for name in {*ARRIVALS, *LENGTHS, *PRESETS, "empirical"}:
        assert re.search(rf"`{name}\b", DOC), name


def test_the_file_that_is_shown_is_a_workload(tmp_path: Path) -> None:
    shown = [text for text in re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL) if "clients:" in text]
    for text in shown:
        (tmp_path / "w.yaml").write_text(text, encoding="utf-8")
        assert next(iter(Workload.from_yaml(tmp_path / "w.yaml").jobs())).request.id == 0
    assert shown
