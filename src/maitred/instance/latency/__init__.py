"""How long a step takes. Latency models are their own configuration, told apart in a file by `model`."""

from __future__ import annotations

from maitred.instance.latency.linear import LinearLatency, parse_latency

__all__ = ["LinearLatency", "parse_latency"]
