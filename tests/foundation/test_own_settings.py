"""What tests/conftest.py promises to every test."""

from __future__ import annotations

import gc

import pytest


@pytest.mark.parametrize("run", ["first", "second"])
def test_what_a_test_sets_of_garbage_collection_ends_with_it(run: str) -> None:
    assert gc.isenabled(), f"before the {run} run"
    assert gc.get_freeze_count() == 0
    gc.freeze()
    gc.disable()
