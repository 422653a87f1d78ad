"""Output files that exist whole or not at all.

A file is opened before the work that fills it, so that a bad path is known before an hour of simulation, and takes its name
only when it is complete. Until then it is a hidden file beside it. Devices and pipes (`/dev/stdout`) are written to as they
are.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from maitred.errors import ConfigError


class OutputFile:
    """To be used in a `with`: kept when the block ends well, discarded when it raises."""

    def __init__(self, path: Path, *, where: str = "") -> None:
        """Raises ConfigError if nothing can be written there; `where` is the flag that named it."""
        self._path, self._where = path, where
        if path.is_dir():
            raise ConfigError(f"{path} is a directory", where=where, hint="name a file in it")
        if not path.parent.is_dir():
            raise ConfigError(f"there is no directory {path.parent}", where=where, hint="create it first")
        self._target = path if _is_device(path) else Path(os.path.realpath(path))
        self._partial = path if _is_device(path) else _beside(self._target)
        try:
            self._file = self._partial.open("wb")
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, data: bytes) -> int:
        """Raises ConfigError when the disk is full or gone."""
        try:
            return self._file.write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._unwritable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._keep()
        else:
            self._discard()

    def _keep(self) -> None:
        try:
            self._file.close()
            if self._partial != self._target:
                self._partial.replace(self._target)
        except BrokenPipeError:
            raise
        except OSError as failure:
            self._discard()
            raise self._unwritable(failure) from failure

    def _discard(self) -> None:
        with suppress(OSError):
            self._file.close()
        if self._partial != self._target:
            self._partial.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot write {self._path}: {error.strerror}", where=self._where)


def _is_device(path: Path) -> bool:
    """`/dev/stdout` is one even where the shell has redirected it to a file."""
    return path.is_relative_to("/dev") or (path.exists() and not path.is_file())


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
