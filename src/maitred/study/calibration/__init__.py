"""Latency models from measurements, and how far they can be believed."""

from __future__ import annotations
