"""The files that docstrings, comments and pages name are there: a map of a package does not outlive what it shows."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
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


def definitions(file: str) -> set[str]:
    """Return the names that a module defines, those in classes as `Class.name`."""

    def names(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name, node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, node
            elif isinstance(node, ast.Assign):
                yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))

    found = set[str]()
    for name, node in names(ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body):
        found.add(name)
        if isinstance(node, ast.ClassDef):
            found.update(f"{name}.{member}" for member, _ in names(node.body))
    return found


def rows_of_the_map(page: str) -> list[list[tuple[str, str]]]:
    """Return the files and the names of each row of the page, from its last column; a name belongs to the file before it, and
    `.name` to the class before it."""
    rows = [
        re.findall(r"`([^`]+)`", line.rstrip(" |").rpartition(" | ")[2])
        for line in page.splitlines()
        if line.startswith("| ") and ".py" in line
    ]
    named: list[list[tuple[str, str]]] = []
    for words in rows:
        file, owner, row = "", "", list[tuple[str, str]]()
        for word in words:
            if found := re.match(r"([\w/]+\.py)(: |$)", word):
                file, owner = found[1], ""
            for name in re.split(", ", word[found.end() :] if found else word):
                if file and re.fullmatch(r"[\w.]+", name):
                    full = owner + name if name.startswith(".") else name
                    owner = full.rpartition(".")[0]
                    row.append((file, full))
        named.append(row)
    return named


MAP_PAGE = (ROOT / "docs" / "where.md").read_text(encoding="utf-8")
MAP = rows_of_the_map(MAP_PAGE)


@pytest.mark.parametrize("row", MAP, ids=lambda row: row[0][1] if row else "files only")
def test_the_map_names_what_its_files_define(row: list[tuple[str, str]]) -> None:
    assert [(file, name) for file, name in row if name not in definitions(file)] == []


def test_a_name_of_the_map_that_is_not_there_is_noticed() -> None:
    page = "## A part\n| which | `core/units.py: SECOND, Nothing.at_all` (x), `.nor_this`; `core/errors.py: quote` |\n## Next"
    assert rows_of_the_map(page) == [
        [
            ("core/units.py", "SECOND"),
            ("core/units.py", "Nothing.at_all"),
            ("core/units.py", "Nothing.nor_this"),
            ("core/errors.py", "quote"),
        ]
    ]
    assert "SECOND" in definitions("core/units.py")
    assert "Nothing.at_all" not in definitions("core/units.py")
    assert "DecisionLog.log_input" in definitions("core/decisions.py")


def test_the_map_is_one_print() -> None:
    assert len(MAP_PAGE) < 24_000, "a reader prints the page whole: shorten a row for each that is added"
    for page in ("README.md", "CONTRIBUTING.md", "docs/architecture.md"):
        assert "where.md)" in (ROOT / page).read_text(encoding="utf-8").partition("\n## ")[0]


def test_a_file_that_is_not_there_is_noticed() -> None:
    assert missing("see `queueing/nothing.py` and units.py", PACKAGE / "core", PACKAGE) == ["queueing/nothing.py"]
