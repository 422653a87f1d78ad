"""The garbage collector during a simulation, which makes hardly any cycles while it runs, and leaves some when it has ended."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_is_frozen = False


def freeze() -> None:
    """Exempt what there is from garbage collection, as long as this process lives. `rare_collections` does not ask then whether
    anything is exempt: to find out, the interpreter counts it, which takes it 30 ms of two million objects."""
    global _is_frozen  # noqa: PLW0603  (a process has one collector)
    _is_frozen = True
    gc.freeze()


@contextmanager
def rare_collections(objects: int = 100_000) -> Iterator[None]:
    """Let the garbage collector look rarely while the block runs, every so many objects, and not at what was there before:
    looking takes up to a tenth of the time of a run."""
    before = gc.get_threshold()
    freezes = not _is_frozen and not gc.get_freeze_count()  # a program that has frozen what it has goes on so
    if freezes:
        gc.freeze()
    gc.set_threshold(objects, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            gc.unfreeze()
