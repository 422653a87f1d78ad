"""Computed results that are kept on disk: made once for each set of inputs, in the cache folder of the user.

    $XDG_CACHE_HOME/maitred/KIND/DIGEST.json     (~/.cache without XDG_CACHE_HOME); DIGEST is that of the inputs

A file holds the inputs beside the result. A file that cannot be read, or that holds other inputs, is made anew, and any file
may be deleted at any time. Files are written beside their place and renamed into it, so that no process reads half a file.
A folder that cannot be written costs the time of computing again, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar

import msgspec

from maitred.files import read_file

T = TypeVar("T")


def cache_folder() -> Path:
    """Return the folder for what can be computed again."""
    stated = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is to be ignored (XDG Base Directory Specification).
    return (Path(stated) if Path(stated).is_absolute() else Path("~/.cache").expanduser()) / "maitred"


def computed(kind: str, inputs: msgspec.Struct, result: type[T], compute: Callable[[], T]) -> T:
    """Return the `result` of `inputs`: the kept one, or that of `compute`, which is then kept in the folder `kind`."""
    said = msgspec.json.encode(inputs)
    path = cache_folder() / kind / f"{hashlib.sha256(said).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
        kept_inputs, kept = msgspec.json.decode(read_file(path), type=tuple[msgspec.Raw, result])  # type: ignore[valid-type]
        if bytes(kept_inputs) == said:
            return kept
    found = compute()
    with contextlib.suppress(OSError):
        _write(path, b"[%b,%b]" % (said, msgspec.json.encode(found)))
    return found


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as part:
        try:
            part.write(content)
            part.close()
            Path(part.name).replace(path)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise
