"""Files for somebody else to read, in a folder that is gone afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def scratch_folder(files: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Write files, names and texts, into a folder of their own, and give its path."""
    with TemporaryDirectory(prefix="maitred-") as folder:
        for name, text in files:
            (Path(folder) / name).write_text(text, encoding="utf-8")
        yield folder
