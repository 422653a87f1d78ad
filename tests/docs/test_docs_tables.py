"""The tables and counts of README.md and docs/ are those of the code: `make docs` writes them, and they name every plug-in."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from maitred.config.root import KINDS

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
TABLES = (
    "scheduler",
    "priority policy",
    "length predictor",
    "admission policy",
    "routing policy",
    "scorer",
    "latency model",
    "acting estimator",
    "autoscaling policy",
    "trace format",
)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))  # where the script finds its other half, as when it is run
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(tool: ModuleType, name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert tool.made_anew(page) == page, "write it anew: make docs"


@pytest.mark.parametrize("kind", TABLES)
def test_each_plug_in_has_its_row(tool: ModuleType, kind: str) -> None:
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in PAGES)
    _, _, rest = text.partition(f"<!-- made by make docs: {kind} -->\n")
    rows = re.findall(r"^\| `([^(`]+)", rest.partition("<!-- end -->")[0], re.MULTILINE)
    registry = next(registry for registry in KINDS if registry.kind == kind)
    assert rows == list(tool.own(registry))
    assert len(rows) > 2


def test_a_page_that_is_out_of_date_is_written_anew(tool: ModuleType) -> None:
    count, table = "<!-- count: scorer -->99<!-- end -->", "<!-- made by make docs: length predictor -->\n\nold\n\n<!-- end -->"
    page = f"before {count}\n{table}\nafter\n"
    found = tool.made_anew(page)
    scorers = len(list(tool.own(next(kind for kind in KINDS if kind.kind == "scorer"))))
    assert found.startswith(f"before <!-- count: scorer -->{scorers}<!-- end -->\n")
    assert "| `quantile(q=0.5)` | " in found
    assert "old" not in found
    assert found.endswith("<!-- end -->\nafter\n")
