"""The file of a sweep as documents: its own keys, and what it says of every candidate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from maitred.errors import ConfigError
from maitred.reading.document import Document, KeyPath
from maitred.reading.problems import dotted


def sweep_document(said: str | Path | Mapping[str, Any]) -> Document:
    """A file, or what a program says instead of one. Raises ConfigError for what cannot be read, or could stand in no file."""
    if not isinstance(said, Mapping):
        return Document.read(Path(said))
    import yaml

    try:
        return _FromProgram(yaml.safe_dump(msgspec.to_builtins(said), sort_keys=False, allow_unicode=True), "sweep")
    except (TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"it holds what no file could say: {error}", where="sweep") from error


class OfCandidates(Document):
    """What the file of a sweep says of every candidate: `base`, where it stands in the file itself, and `workload`."""

    def __init__(self, sweep: Document) -> None:
        self.name, self.section, self.value = sweep.name, None, sweep.value
        self._sweep = sweep

    @property
    def tree(self) -> Any:
        said = self.value or {}
        base = said.get("base")
        return {**(base if isinstance(base, dict) else {}), "workload": said.get("workload")}

    def where(self, path: KeyPath) -> str | None:
        return self._sweep.where(path if path[:1] == ("workload",) else ("base", *path))


class _FromProgram(Document):
    """Nobody sees its lines."""

    def where(self, path: KeyPath) -> str | None:
        return None if super().where(path) is None else ": ".join(filter(None, (self.name, dotted(path))))
