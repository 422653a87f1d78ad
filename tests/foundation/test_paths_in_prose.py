"""The files that docstrings, comments and pages name are there: a map of a package does not outlive what it shows."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "src" / "maitred"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"(?<![\w./{-])((?:[a-z_][\w]*/)*[a-z_]\w*\.py)\b")
ELSEWHERE = {"my_policies.py", "schedule_policy.py"}
"""A file of the reader's own, and one of SGLang's."""


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


def rows_of_the_map() -> list[tuple[list[str], list[str]]]:
    """Return the files and the names of each row of "Where it is decided"."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Where it is decided")[2].partition("\n## ")[0]
    cells = [line.split("|")[2:4] for line in section.splitlines() if line.startswith("| ") and ".py`" in line]
    return [(re.findall(r"`([^`]+\.py)`", files), re.findall(r"`([^`]+)`", names)) for files, names in cells]


@pytest.mark.parametrize(("files", "names"), rows_of_the_map())
def test_the_map_names_what_its_files_define(files: list[str], names: list[str]) -> None:
    sources = "\n".join((PACKAGE / file).read_text(encoding="utf-8") for file in files)
    defined = set(re.findall(r"^ *(?:class |def )?(\w+)", sources, re.MULTILINE))
    assert [name for name in names if not defined.issuperset(name.split("."))] == []


def test_a_file_that_is_not_there_is_noticed() -> None:
    assert missing("see `queueing/nothing.py` and units.py", PACKAGE / "core", PACKAGE) == ["queueing/nothing.py"]
