"""Folders that are gone afterwards: with files for a package that reads them itself, or for as long as a process serves."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Final

_LOCK: Final = "lock"


@contextmanager
def scratch_folder(files: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Write files, names and texts, into a folder of their own, and give its path."""
    with TemporaryDirectory(prefix="maitred-") as folder:
        for name, text in files:
            (Path(folder) / name).write_text(text, encoding="utf-8")
        yield folder


class ProcessFolder:
    """A temporary folder of one process. What a process that was killed has left is removed by the next one that makes a folder
    with the same prefix.

    A process holds the lock of a file in its folder, which the system gives up with the process. Its number would not do: that
    may be another process by then, or one of another container that shares the folder of temporary files.
    """

    def __init__(self, prefix: str) -> None:
        """Make it. Raises OSError."""
        _remove_left(prefix)
        self._folder = TemporaryDirectory(prefix=prefix)
        self.path = Path(self._folder.name)
        new = self.path / "lock.new"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # Some network filesystems have no locks. What is left there stays.
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            new.rename(self.path / _LOCK)  # Nobody finds one that is not locked yet.

    def close(self) -> None:
        """Remove it. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)  # First: over NFS, a file that is open stays in its folder.
            self._lock = -1
            self._folder.cleanup()


def _remove_left(prefix: str) -> None:
    """Remove the folders of this user whose processes have ended."""
    for folder in Path(gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # It is somebody else's, or its process lives, or has just removed it.
            if folder.lstat().st_uid == os.geteuid():
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user whose process has ended. Raises OSError if that is not known."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)
