"""A YAML file as a struct, or one clear line that says what is wrong with it and where."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from maitred.errors import ConfigError
from maitred.reading.document import Document, KeyPath
from maitred.reading.problems import first_problem

T = TypeVar("T", bound=msgspec.Struct)


def read_struct(path: Path, root: type[T]) -> T:
    """What the file says, as a `root`. Raises ConfigError with file, line and the nearest valid name."""
    return struct_of(Document.read(path), root)


def struct_of(document: Document, root: type[T]) -> T:
    """What the document says, as a `root`. Raises ConfigError with its name, line and the nearest valid name."""
    if not isinstance(document.value, dict):
        found = "nothing" if document.value is None else "something else"
        raise ConfigError(f"there should be keys with values, and there is {found}", where=document.name)

    def place(at: KeyPath) -> str:
        """The line of the key, or of the nearest one above it that the file has."""
        return next((found for end in range(len(at), -1, -1) if (found := document.where(at[:end]))), document.name)

    problem = first_problem(document.value, root, place)
    if problem:
        raise problem.error
    return msgspec.convert(document.value, root)
