"""Output files that exist whole or not at all.

A file is opened before the work that fills it, so that a bad path is known before an hour of simulation, and takes its name
only when it is complete. Until then it is a hidden file beside it. What is no regular file (`/dev/stdout`, a pipe) is
written to as it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from maitred.errors import ConfigError


class OutputFile:
    """To be used in a `with`: kept when the block ends well, discarded when it raises."""

    def __init__(self, path: Path, *, where: str = "") -> None:
        """Raises ConfigError if nothing can be written there; `where` is the flag that named it."""
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise ConfigError(f"{path} is a directory", where=where, hint="name a file in it")
        if not target.parent.is_dir():
            raise ConfigError(f"there is no directory {target.parent}", where=where, hint="create it first")
        self._target = target
        self._partial = target if target.exists() and not target.is_file() else _beside(target)
        try:
            self._file = self._partial.open("wb")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}", where=where) from error

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if self._partial is self._target:
            return
        if kind is None:
            self._partial.replace(self._target)
        else:
            self._partial.unlink(missing_ok=True)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.part")
