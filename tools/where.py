"""The rows of docs/where.md that have some words, and of the table in CONTRIBUTING.md, each with the source of what decides.

    python tools/where.py client leaves        the rows with both words, and what they name
    python tools/where.py --list slot          the rows alone, with the lines of each name
    python tools/where.py                      all questions

Words match in any case, in a question or in a name. Where no row has them all, files, functions and classes are listed that
do, in their names or docstrings. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "maitred"
PAGE = ROOT / "docs" / "where.md"
PAGES = (PAGE, ROOT / "CONTRIBUTING.md")
_WHOLE_CLASS = 40
"""Lines up to which a class is printed whole."""
_MOST_ROWS = 2
"""Rows that are printed with their source."""


class Row(NamedTuple):
    """A question, and the names that answer it."""

    line: str
    question: str
    names: Sequence[tuple[str, str]]
    """The file and the name of each, in order; the name is empty where a file stands alone."""


class Definition(NamedTuple):
    """A function, a class or a value."""

    node: ast.stmt
    first: int
    """Its first line, that of a decorator if there is one."""
    last: int
    """Its last line; of a value the last one of its docstring."""

    @property
    def lines(self) -> str:
        return f"{self.first}-{self.last}"


def rows_of(page: str) -> list[Row]:
    """Return the rows of the page that name a file. Names are in the last column; a name belongs to the file before it, and
    `.name` to the class before it, or to that of the file. `./` is the folder of the file before it."""
    rows = []
    for line in page.splitlines():
        if line.startswith("| ") and ".py" in line:
            question, _, names = line.strip(" |").rpartition(" | ")
            rows.append(Row(line, question, list(_names_in(re.findall(r"`([^`]+)`", names)))))
    return rows


def _names_in(spans: Iterable[str]) -> Iterator[tuple[str, str]]:
    file, owner = "", ""
    for span in spans:
        names = span
        if found := re.match(r"((?:\./)?[\w/]+\.py)(: |$)", span):
            file, names = _file_of(found[1], beside=file), span[found.end() :]
            owner = "".join(word.capitalize() for word in Path(file).stem.split("_"))
        if found and not names:
            yield file, ""
        for name in names.split(", "):
            if file and re.fullmatch(r"[\w.]+", name):
                full = owner + name if name.startswith(".") else name
                owner = full.rpartition(".")[0]
                yield file, full


def _file_of(written: str, *, beside: str) -> str:
    """Return a file with its folder. `./` is that of the file `beside` it."""
    return str(Path(beside).with_name(written[2:])) if written.startswith("./") else written


@cache
def syntax(file: str) -> ast.Module:
    """Return the syntax tree of a module of the package."""
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"))


@cache
def definitions(file: str) -> dict[str, Definition]:
    """Return what a module of the package defines by name; what is in a class is called `Class.name`."""
    found: dict[str, Definition] = {}
    for name, definition in _defined(syntax(file).body):
        found[name] = definition
        if isinstance(definition.node, ast.ClassDef):
            found.update((f"{name}.{member}", inner) for member, inner in _defined(definition.node.body))
    return found


def _defined(body: Sequence[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    for node, after in zip(body, [*body[1:], None], strict=True):
        last = node.end_lineno or node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, Definition(node, min([node.lineno, *(mark.lineno for mark in node.decorator_list)]), last)
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            last = after.end_lineno or last
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        yield from ((target.id, Definition(node, node.lineno, last)) for target in targets if isinstance(target, ast.Name))


def source(file: str, name: str) -> str:
    """Return the source of a name; of a long class its head and its methods, and of a file what it defines."""
    lines = (PACKAGE / file).read_text(encoding="utf-8").splitlines()
    if not name:
        top = (definition for name, definition in definitions(file).items() if "." not in name)
        return _contents(lines, (one for one in top if not isinstance(one.node, ast.Assign | ast.AnnAssign)))
    node, first, last = definitions(file)[name]
    if not isinstance(node, ast.ClassDef) or last - first < _WHOLE_CLASS:
        return "\n".join(lines[first - 1 : last])
    head = node.body[0].end_lineno if ast.get_docstring(node) else node.lineno
    methods = (one for one in definitions(file).values() if one.node in node.body and isinstance(one.node, ast.FunctionDef))
    return "\n".join([*lines[first - 1 : head], _contents(lines, methods)])


def _contents(lines: Sequence[str], found: Iterable[Definition]) -> str:
    return "\n".join(f"{one.lines}: {lines[one.node.lineno - 1]}" for one in found)


def rows_with(words: Sequence[str], rows: Iterable[Row]) -> list[Row]:
    """Return the rows that have all of `words`, in their text or in a whole name."""
    return [row for row in rows if all(word.lower() in f"{row.line} {row.names}".lower() for word in words)]


def answer(row: Row, *, with_source: bool) -> Iterator[str]:
    """Yield the question of a row, and what it names."""
    yield f"# {row.question}"
    for file, name in row.names:
        lines = f":{definitions(file)[name].lines}" if name else ""
        yield f"## {name or 'defines'}  src/maitred/{file}{lines}"
        if with_source:
            yield source(file, name) + "\n"


def mentions(words: Sequence[str]) -> Iterator[str]:
    """Yield the files, functions and classes of the package that have all of `words` in their path, name and docstring."""
    for path in sorted(PACKAGE.rglob("*.py")):
        file = str(path.relative_to(PACKAGE))
        text = f"{file} {path.read_text(encoding='utf-8')}".lower()
        if not all(word.lower() in text for word in words):  # spares taking it apart
            continue
        named: list[tuple[str, str, ast.AST]] = [("", "", syntax(file))]
        named += [(name, f":{one.lines}", one.node) for name, one in definitions(file).items()]
        for name, lines, node in named:
            if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                said = ast.get_docstring(node) or ""
                if all(word.lower() in f"{file} {name} {said}".lower() for word in words):
                    yield f"{name}  src/maitred/{file}{lines}  {said.partition(chr(10))[0]}".strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--list", action="store_true", help="no source, only where it is")
    given = parser.parse_args()
    rows = [row for page in PAGES for row in rows_of(page.read_text(encoding="utf-8"))]
    if not given.words:
        print(*(row.question for row in rows), sep="\n")
        return 0
    if matching := rows_with(given.words, rows):
        is_short = given.list or len(matching) > _MOST_ROWS
        for row in matching:
            print(*answer(row, with_source=not is_short), sep="\n")
        if is_short and not given.list:
            print(f"\n{len(matching)} rows: for their source give a further word")
        return 0
    if found := list(mentions(given.words)):
        print("no row has all of these words, but this has:", *found, sep="\n  ")
        return 0
    print("nothing has all of these words; the questions are:", *(row.question for row in rows), sep="\n  ", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
