"""What tests/conftest.py promises to every test."""

from __future__ import annotations

import gc
import weakref

import pytest


class Circle:
    """What only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


MADE: list[weakref.ref[Circle]] = []


@pytest.mark.parametrize("run", ["first", "second"])
def test_what_a_test_sets_of_garbage_collection_ends_with_it(run: str) -> None:
    assert gc.isenabled(), f"before the {run} run"
    assert [made() for made in MADE] == [None] * len(MADE)
    MADE.append(weakref.ref(Circle()))
    gc.freeze()
    gc.disable()
