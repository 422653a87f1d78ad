"""Run a benchmark as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `bench/NAME` to its end, in a process of its own."""
    whole = [sys.executable, str(BENCH / name), *arguments]
    return subprocess.run(whole, capture_output=True, text=True, timeout=100, check=False)
