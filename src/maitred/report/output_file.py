"""Output files that exist complete or not at all.

A file is opened before the work that fills it, so a wrong path is reported before an hour of simulation. It gets its name only
when it is complete; until then it is a hidden file in the same folder. It keeps the permissions of the file that it replaces.

Devices and pipes are written to directly, and never truncated: `-`, like `/dev/stdout`, is the descriptor that the shell
opened, which may be a file to which the shell appends.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from maitred.core.errors import ConfigError
from maitred.files import open_output

_DESCRIPTORS: Final = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}


class OutputFile:
    """A file to be used in a `with`: it is kept if the block succeeds, and discarded if the block raises."""

    def __init__(self, path: Path, *, where: str = "") -> None:
        """Raises ConfigError if the file cannot be written. `where` is the flag that named it."""
        self._path, self._where = path, where
        self._target = self._partial = path
        try:
            self._check_path()
            self._file = os.fdopen(self._open(), "wb")
        except OSError as error:
            raise self._unwritable(error) from error

    def _check_path(self) -> None:
        path = self._path
        if path.is_dir():
            raise ConfigError(f"{path} is a directory", where=self._where, hint="name a file in it")
        if not path.parent.is_dir():
            raise ConfigError(f"there is no directory {path.parent}", where=self._where, hint="create it first")

    def _open(self) -> int:
        descriptor = _own_descriptor(self._path)
        if descriptor is not None:
            # A duplicate, because closing this file must not close the standard output of the program.
            return os.dup(descriptor)
        if self._path.exists() and not self._path.is_file():
            return open_output(self._path, os.O_WRONLY)
        return self._open_partial()

    def _open_partial(self) -> int:
        # The file that a link names is replaced, and not the link. The partial file is beside it, because a rename is atomic
        # within one file system only.
        self._target = Path(os.path.realpath(self._path))
        self._partial = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}.part")
        opened = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if self._target.exists():
            self._partial.chmod(self._target.stat().st_mode & 0o777)
        return opened

    def write(self, data: bytes) -> int:
        """Write the data. Raises ConfigError if the disk is full or gone."""
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
            self._commit()
        else:
            self._discard()

    def _commit(self) -> None:
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


def _own_descriptor(path: Path) -> int | None:
    """Return which of our own descriptors the path names, or None."""
    numbered = re.fullmatch(r"/dev/fd/(\d{1,9})", str(path))
    return int(numbered[1]) if numbered else _DESCRIPTORS.get(str(path))
