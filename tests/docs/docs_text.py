"""What README.md and docs/ tell readers to type: commands, and blocks of Python and YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PROGRAMS = r"maitred|python3?|make|pip|curl|helm|kubectl|podman|docker|systemctl|promtool|\.ci/run"
_COMMAND = re.compile(rf"(?:\$ )?((?:[A-Z_]+=\S+ )?(?:{_PROGRAMS})\b(?!:).*)")  # `maitred: ...` is what maitred says
_SHELL = ("", "sh", "bash", "console")


class Block(msgspec.Struct, frozen=True):
    """A fenced block. `number` counts those of its page, from 1."""

    page: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page} {self.number}"


def blocks(page: Path) -> list[Block]:
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(page.name, number, language, text) for number, (language, text) in enumerate(found, 1)]


def commands(page: Path) -> list[str]:
    """The commands of a page, one line each, without comments: those in shell blocks, and in indented ones."""
    text = page.read_text(encoding="utf-8")
    indented = "\n".join(line.removeprefix("    ") for line in _FENCE.sub("", text).splitlines() if line.startswith("    "))
    fenced = "\n".join(block.text for block in blocks(page) if block.language in _SHELL)
    return list(dict.fromkeys([*_commands(indented), *_commands(fenced)]))


def _commands(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if found := _COMMAND.fullmatch(line.strip()):
            yield re.sub(r"\s+#\s.*", "", found[1]).strip()
