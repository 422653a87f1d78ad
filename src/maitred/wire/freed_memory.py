"""Freed memory: what the C library keeps of it for the next requests, and what goes back to the system. For glibc only; another
library does as it likes.

kept        Up to `_KEPT_BYTES` at the top of its heap. Otherwise the 50 pages of a body of 200 KB would go back and be taken
            anew with each request, which costs 15 to 40 µs.
never kept  Blocks of `_MMAP_BYTES` and more, which have pages of their own. They also grow without being copied: a body of 31
            MiB that comes in pieces would hold the loop for 10 to 30 ms.
returned    What is free below the top, by `return_freed_memory`. A block that lives behind a thousand bodies keeps the pages of
            all of them: after 128 MiB of slow uploads 80 MiB of a heap of 94 were free, and resident.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Final

_KEPT_BYTES: Final = 8 * 1024 * 1024
_MMAP_BYTES: Final = 1024 * 1024
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""The numbers by which glibc's `mallopt` knows the two options (malloc.h)."""
_OTHER_LIBRARY: Final = (AttributeError, OSError, TypeError)
"""The errors of asking where there is no glibc, or on Windows."""


def keep_freed_memory() -> None:
    """Have the C library keep a little of what requests leave."""
    with contextlib.suppress(*_OTHER_LIBRARY):
        set_option = _library().mallopt
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        set_option(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def return_freed_memory() -> None:
    """Give all free pages back to the system: about 0.1 ms for a MiB."""
    with contextlib.suppress(*_OTHER_LIBRARY):
        _library().malloc_trim(0)


def _library() -> Any:
    return ctypes.CDLL(None)
