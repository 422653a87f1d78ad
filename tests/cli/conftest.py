from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def samples() -> Path:
    """Return the folder of tiny traces."""
    return Path(__file__).parents[1] / "samples"
