"""The KV memory with which recorded cases of TensorRT-LLM are played: these tests find it where those are played."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "conformance"))
