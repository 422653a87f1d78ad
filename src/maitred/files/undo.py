"""What a start has made, taken back if it fails.

A gateway that starts makes files and folders, one after the other, and each step may find that it cannot start: a path is
wrong, another gateway has the file, the port is in use. Nothing of the earlier steps may be left behind then.

    with whole_or_nothing():
        store = ProgramStore(...)    makes a folder and two files
        ports = open_ports(...)      the port is in use: the files and the folder are removed again

What makes or moves something does so by the functions here, or says itself how to undo it (`undo_on_failure`); the last step is
undone first. A file is removed only if it is the one that was made. Outside of such a block nothing is noted, and a block in
another one hands on what it has made. Each thread, and each task, has blocks of its own (`contextvars`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Final

_undo_steps: Final = ContextVar[ExitStack | None]("undo_steps", default=None)


@contextmanager
def whole_or_nothing() -> Iterator[None]:
    """Undo all that was noted in the block if it raises, whatever that is. Decorates a function, too."""
    around = _undo_steps.get()
    with ExitStack() as steps:
        token = _undo_steps.set(steps)
        try:
            yield
        finally:
            _undo_steps.reset(token)
        made = steps.pop_all()
        if around is not None:
            around.push(made)


def undo_on_failure(step: Callable[[], object]) -> None:
    """Note how to undo what was just done. `step` does not raise."""
    steps = _undo_steps.get()
    if steps is not None:
        steps.callback(step)


def open_or_make(path: Path, flags: int, mode: int) -> int:
    """Return a descriptor of a file, opened with `flags`, which is made if it is not there. Raises OSError."""
    # A link that leads nowhere yet is an existing name, and what it leads to is what would be made.
    made = Path(os.path.realpath(path)) if not flags & os.O_NOFOLLOW and path.is_symlink() and not path.exists() else path
    with suppress(FileExistsError):
        descriptor = os.open(made, flags | os.O_CREAT | os.O_EXCL, mode)
        _note_made(made)
        return descriptor
    return os.open(path, flags | os.O_CREAT, mode)


def make_folders(path: Path) -> None:
    """Make a folder, and those that lead to it, where they are not there. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        undo_on_failure(partial(_try, folder.rmdir))
    path.mkdir(exist_ok=True)  # Raises what is wrong with a path that is there.


def rename(path: Path, target: Path) -> None:
    """Give a file another name, which nothing has. Raises OSError."""
    path.replace(target)
    undo_on_failure(partial(_try, partial(target.replace, path)))


def _note_made(path: Path) -> None:
    made = _identity(path)

    def unmake() -> None:
        if _identity(path) == made:
            path.unlink()

    undo_on_failure(partial(_try, unmake))


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _try(step: Callable[[], object]) -> None:
    with suppress(OSError):  # It is gone, or a folder has something else in it by now.
        step()
