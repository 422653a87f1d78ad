"""The files that docstrings, comments and pages name are there: a map of a package does not outlive what it shows."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "src" / "maitred"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = re.compile(r"(?<![\w./{-])((?:[a-z_][\w]*/)*[a-z_]\w*\.py)\b")
FIRST_CONTRIBUTION = {"src/maitred/queueing/shortest_output.py", "tests/queueing/test_sof.py"}
"""What CONTRIBUTING has a reader write; `test_first_contribution` tries it."""
ELSEWHERE = {"my_policies.py", "schedule_policy.py", *FIRST_CONTRIBUTION}
"""Files of the reader's own, and one of SGLang's."""


def prose(source: str) -> Iterator[str]:
    """Yield the comments and the strings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.string


def missing(text: str, *folders: Path) -> list[str]:
    named = set(NAMED.findall(text)) - ELSEWHERE
    return sorted(name for name in named if not any((folder / name).is_file() for folder in folders))


def everywhere(path: Path) -> list[Path]:
    """Return the folders that a path in the prose of `path` may start from."""
    within = [folder for folder in path.parents if folder.is_relative_to(PACKAGE)]
    return [*within, PACKAGE, ROOT, ROOT / "src", ROOT / "bench", ROOT / "tests", ROOT / "examples" / "plugins"]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_names_files_that_exist(path: Path) -> None:
    text = "\n".join(prose(path.read_text(encoding="utf-8")))
    assert missing(text, *everywhere(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_names_files_that_exist(path: Path) -> None:
    assert missing(path.read_text(encoding="utf-8"), *everywhere(path)) == []


def unnamed(docstring: str, stems: Iterable[str]) -> list[str]:
    return sorted(stem for stem in stems if not re.search(rf"\b{stem}\b", docstring))


def holds_plugins(path: Path) -> bool:
    """Return whether a module registers plug-ins. A new one need not be named: adding it is one file and its test."""
    return re.search(r"^@[A-Z_]+\.register\(", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


@pytest.mark.parametrize(
    "init", sorted(PACKAGE.glob("*/**/__init__.py")), ids=lambda path: str(path.parent.relative_to(PACKAGE))
)
def test_a_package_says_what_each_of_its_files_decides(init: Path) -> None:
    docstring = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
    stems = {path.stem for path in init.parent.glob("*.py") if not holds_plugins(path)} - {"__init__", "__main__"}
    assert unnamed(docstring, stems) == []


def test_a_file_that_its_package_does_not_name_is_noticed() -> None:
    assert holds_plugins(PACKAGE / "queueing" / "orders.py")
    assert not holds_plugins(PACKAGE / "queueing" / "base.py")
    assert unnamed("pools.py  what all pools have in common", {"pools", "pool"}) == ["pool"]


def test_a_file_that_is_not_there_is_noticed() -> None:
    assert missing("see `queueing/nothing.py` and units.py", PACKAGE / "core", PACKAGE) == ["queueing/nothing.py"]
