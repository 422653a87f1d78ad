"""The tables and counts in README.md and docs/ that follow from the registries: written anew, or held against the code.

    python tools/docs.py            write them (`make docs`)
    python tools/docs.py --check    print what is out of date, and exit with 1
    python tools/docs.py --python DIR    write the blocks of Python in the pages as files into DIR, for mypy

A table stands between two marks, and a count between two others:

    <!-- made by make docs: scorer -->            <!-- count: scheduler -->19<!-- end -->
    | scorer | score, from 0 to 1 | ...
    <!-- end -->

The marks name a kind as messages do, a section of the configuration ("keys of gateway.upstream"), a port ("pages on
admin_port"), or "metrics". Nothing else in a page is touched.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from access_table import access_table
from key_tables import key_table
from maitred.config.root import KINDS
from maitred.core.registry import Registry
from metric_table import metric_table

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_TABLE = re.compile(r"(<!-- made by make docs: ([^>]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_KEYS_OF = "keys of "
_PAGES = "pages "
_COUNT = re.compile(r"(<!-- count: ([^>]+) -->)(.*?)(<!-- end -->)")


def made_anew(page: str) -> str:
    """Return the page with its tables and counts as the code has them. Raises KeyError for a kind that there is not."""
    kinds = {registry.kind: registry for registry in KINDS}

    def table_of(name: str) -> str:
        if name == "metrics":
            return "\n".join(_rows(metric_table()))
        if name.startswith(_PAGES):
            return "\n".join(_rows(access_table(name.removeprefix(_PAGES))))
        section = name.removeprefix(_KEYS_OF)
        return table(kinds[name]) if section == name else "\n".join(_rows(key_table(section)))

    page = _TABLE.sub(lambda found: f"{found[1]}\n{table_of(found[2])}\n\n{found[4]}", page)
    return _COUNT.sub(lambda found: f"{found[1]}{len(list(own(kinds[found[2]])))}{found[4]}", page)


def table(registry: Registry[Any]) -> str:
    """Return the table of one kind."""
    lines = [[registry.kind, *registry.headings.values()]]
    lines += ([f"`{registry.usage(name)}`", *registry.describe(name).values()] for name in own(registry))
    return "\n".join(_rows(lines))


def own(registry: Registry[Any]) -> Iterator[str]:
    """Yield the names of those that come with maitred, and not those that are installed beside it."""
    return (name for name in registry if registry.find(name).__module__.startswith("maitred."))


def _rows(lines: list[list[str]]) -> Iterator[str]:
    heading, *others = lines
    for cells in (heading, ["---"] * len(heading), *others):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def write_python(folder: Path) -> None:
    """Write each block of Python as a module, named after its page and its line there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        for block in re.finditer(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            line = page.count("\n", 0, block.start(1)) + 1
            (folder / f"{path.stem.lower()}_{line}.py").write_text(block[1], encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    parser.add_argument("--python", type=Path, metavar="DIR", help="write the pages' blocks of Python as files")
    asked = parser.parse_args()
    if asked.python is not None:
        write_python(asked.python)
        return 0
    check, stale = asked.check, 0
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = made_anew(before)
        if before == after:
            continue
        stale += 1
        name = path.relative_to(ROOT)
        if check:
            sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"{name}", "the code"))
        else:
            path.write_text(after, encoding="utf-8")
            print(f"{name} is written anew")
    if check and stale:
        print("write them anew: make docs", file=sys.stderr)
    return int(bool(check and stale))


if __name__ == "__main__":
    sys.exit(main())
