"""A small sweep for tests."""

from __future__ import annotations

from typing import Any

GRID: dict[str, Any] = {
    "workload": {"rate": 40, "num_requests": 80, "class_mix": "interactive:1,bulk:1"},
    "grid": {"cluster.num_instances": [1, 2, 4], "instance.scheduler": ["fcfs", "sjf"]},
    "seeds": 2,
    "metrics": ["ttft_mean_ms"],
}
"""Six candidates, twelve runs."""
