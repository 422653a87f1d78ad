"""Clients that replay a workload over HTTP: those of the demo, and those of `maitred bench`.

schedule     which request is sent when, without I/O
prompts      texts of a wanted length that share the prefixes that the workload says
answers      what a response says of its tokens, and when
connection   one connection, and a response in as few steps as possible
destinations the servers that requests go to, in turn
sender       the driver of all of them
stats        the clients of the demo, and what they saw, counted per class
"""

from __future__ import annotations

from maitred.emulator.clients.stats import (
    ClassOutcomes,
    ClientOutcome,
    ClientStats,
    WorkloadClients,
    percentile_ms,
    repeat_jobs,
)

__all__ = ["ClassOutcomes", "ClientOutcome", "ClientStats", "WorkloadClients", "percentile_ms", "repeat_jobs"]
