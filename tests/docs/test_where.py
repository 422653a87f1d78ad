"""docs/where.md is true: each name is in its file; and tools/where.py finds the code of a row."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("where_tool", ROOT / "tools" / "where.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where `NamedTuple` looks for the types of its fields
    spec.loader.exec_module(module)
    return module


TOOL = loaded()
PAGE = TOOL.PAGE.read_text(encoding="utf-8")
ROWS = [row for page in TOOL.PAGES for row in TOOL.rows_of(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.question[:40])
def test_the_map_names_what_its_files_define(row: tuple[str, str, list[tuple[str, str]]]) -> None:
    _, _, names = row
    assert names
    assert [(file, name) for file, name in names if name and name not in TOOL.definitions(file)] == []


def test_the_map_stays_short_enough_to_be_read_at_once() -> None:
    assert len(PAGE) < 29_500


def test_a_file_is_beside_the_one_before_it_and_has_the_class_of_its_name() -> None:
    (row,) = TOOL.rows_of("| which | `sim/pipeline.py: ._route`; `./rows.py: ResultRows.write, .begin`; `replay.py: replay` |")
    assert row.names == [
        ("sim/pipeline.py", "Pipeline._route"),
        ("sim/rows.py", "ResultRows.write"),
        ("sim/rows.py", "ResultRows.begin"),
        ("replay.py", "replay"),
    ]


def test_a_name_of_the_map_that_is_not_there_is_noticed() -> None:
    page = "## A part\n| which | `core/units.py: SECOND, Nothing.at_all` (x), `.nor_this`; `core/errors.py` |\n## Next"
    (row,) = TOOL.rows_of(page)
    assert row.question == "which"
    assert row.names == [
        ("core/units.py", "SECOND"),
        ("core/units.py", "Nothing.at_all"),
        ("core/units.py", "Nothing.nor_this"),
        ("core/errors.py", ""),
    ]
    assert "SECOND" in TOOL.definitions("core/units.py")
    assert "Nothing.at_all" not in TOOL.definitions("core/units.py")
    assert "DecisionLog.log_input" in TOOL.definitions("core/decisions.py")


def test_the_map_is_the_first_thing_that_pages_name() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "docs/architecture.md"):
        assert "where.md)" in (ROOT / page).read_text(encoding="utf-8").partition("\n## ")[0]


def test_the_source_of_a_name_is_printed_with_its_decorator_and_its_docstring() -> None:
    assert TOOL.source("admission/terms/tenants.py", "TenantAccount.at_limit").startswith("    @property\n    def at_limit")
    assert TOOL.source("core/units.py", "to_ms").endswith("return span / MILLISECOND")
    limit = TOOL.source("scheduler/config.py", "FleetConfig.max_models")
    assert limit.splitlines()[0].startswith("    max_models: int =")
    assert limit.endswith('"""')


def test_of_a_long_class_and_of_a_file_there_are_the_contents() -> None:
    pool = TOOL.source("admission/classes/pool.py", "ClassPool")
    assert pool.startswith("class ClassPool(SlotPool):")
    assert "def submit(self" in pool
    assert "self.slots" not in pool
    assert "def quote(" in TOOL.source("core/errors.py", "")


def test_names_come_with_their_first_and_their_last_line() -> None:
    (property_of_tenants,) = TOOL.rows_of("| a limit | `admission/terms/tenants.py: TenantAccount.at_limit` |")
    *_, place = TOOL.answer(property_of_tenants, with_source=False)
    first, last = map(int, place.rpartition(":")[2].split("-"))
    lines = (ROOT / "src/maitred/admission/terms/tenants.py").read_text(encoding="utf-8").splitlines()
    assert lines[first - 1 : first + 1] == ["    @property", "    def at_limit(self) -> bool:"]
    assert lines[last - 1].startswith("        return ")
    assert all(re.search(r"\.py:\d+-\d+  ", line) for line in TOOL.mentions(["quote", "what", "error message"]))


def test_words_find_rows() -> None:
    rows = TOOL.rows_of("| a cat | `core/units.py: SECOND` |\n| a dog | `core/errors.py: quote` |")
    (dog,) = TOOL.rows_with(["A", "dog"], rows)
    assert next(TOOL.answer(dog, with_source=False)) == "# a dog"
    assert "def quote(" in "\n".join(TOOL.answer(dog, with_source=True))
    assert not TOOL.rows_with(["cat", "dog"], rows)


def test_what_no_row_names_is_found_by_its_docstring() -> None:
    (watch,) = TOOL.mentions(["watches", "descriptors"])
    assert watch.startswith("DescriptorWatch  src/maitred/gateway/observe/descriptor_watch.py:")
    assert any(
        line.startswith("src/maitred/gateway/observe/descriptor_watch.py  DescriptorWatch:")
        for line in TOOL.mentions(["no file descriptors"])
    )
    assert not list(TOOL.mentions(["zeppelin"]))


def test_the_tool_runs_without_anything_installed() -> None:
    command = [sys.executable, "-S", "tools/where.py", "--list", "client", "leaves"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "## SlotPool._free_slot  src/maitred/admission/pool/slot_pool.py:" in printed
    questions = subprocess.run(command[:3], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert questions == [row.question for row in ROWS]
    unknown = subprocess.run([*command[:-2], "zeppelin"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert unknown.returncode == 1
    assert "may a newcomer enter" in unknown.stderr
