"""The garbage collector during a simulation, which makes hardly any cycles while it runs, and leaves some when it has ended."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector look rarely while the block runs, and not at what was there before: looking takes up to a tenth
    of the time of a run."""
    before, freezes = gc.get_threshold(), not gc.get_freeze_count()  # a program that has frozen what it has goes on so
    if freezes:
        gc.freeze()
    gc.set_threshold(100_000, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            gc.unfreeze()
