"""The benchmarks are scripts in one folder: it goes on `sys.path`, where they find each other and these tests find them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))


@pytest.fixture(autouse=True)
def _on_linux() -> None:
    if sys.platform != "linux":
        pytest.skip("the benchmarks read /proc")
