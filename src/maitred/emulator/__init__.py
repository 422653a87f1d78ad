"""The emulated engine: an inference instance behind the OpenAI API, paced in real time, and what one needs to try it.

`pacer` owns the very `Instance` that the simulator steps, and lets its virtual steps end when the clock says so; `app` is
what clients see of it (OpenAI's endpoints, vLLM's metric names); nothing is computed but the time it takes. `clients` replay
a workload against any such server or a gateway before it, and `stage` runs engines and a gateway as child processes.
"""

from __future__ import annotations

from maitred.emulator.config import EngineConfig

__all__ = ["EngineConfig"]
