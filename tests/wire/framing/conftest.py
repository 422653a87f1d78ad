"""The suite needs a gateway with backends, which is among the helpers of the gateway's tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "gateway"))
