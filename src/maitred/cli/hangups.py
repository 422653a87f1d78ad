"""SIGHUP that comes before a gateway can reload: noted, and made up for by a reload once it serves.

By default, SIGHUP ends a process. Who rotates logs or renews certificates sends it without asking whether the gateway has
started. Its files may have been read before the change that the signal tells of, so the signal must not be lost either.
"""

from __future__ import annotations

import signal
from types import FrameType

_came = False


def hold() -> None:
    """Note each SIGHUP from now on, where nothing else handles it."""
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, _note)


def came() -> bool:
    """Return whether a SIGHUP was noted."""
    return _came


def _note(number: int, frame: FrameType | None) -> None:
    global _came  # noqa: PLW0603  (a process has one SIGHUP)
    _came = True
