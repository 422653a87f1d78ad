"""Agent programs in figures: how fast they get on, how long each takes, and what pauses cost.

    steps per minute   completed requests of all programs, those without an id included, per simulated minute
    makespan           the end of the last request of a program - the arrival of its first one, of programs that are over
    pauses             how often a program lost its place in KV memory
    waited             time for which requests waited for memory; `paused` includes the time for which a tool worked meanwhile
    imbalance          difference between the largest and the smallest share of its memory that the programs of an instance
                       need, as a mean over time; None for one instance

The KV hit rate is that of all requests (`GroupSummary.hit_rate`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from maitred.core.units import SECOND
from maitred.report.request_statistics import LatencyStatistics, latency_statistics
from maitred.sim import Results

_MINUTE: Final = 60 * SECOND
_METRICS: Final = {
    "arrived": "arrived_programs",
    "completed": "completed_programs",
    "steps_per_minute": "steps_per_minute",
    "pauses": "program_pauses",
    "paused": "program_paused_s",
    "waited": "program_waited_s",
    "imbalance": "kv_imbalance",
    "max_imbalance": "kv_imbalance_max",
}


class ProgramSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the programs of a run. Times are in µs."""

    arrived: int
    """Programs with an id."""
    completed: int
    """Programs that the workload says are over, and of which a request was completed."""
    steps: int
    steps_per_minute: float | None
    makespan: LatencyStatistics | None
    pauses: int
    paused: int
    waited: int
    imbalance: float | None
    max_imbalance: float | None


def summarise_programs(results: Results) -> ProgramSummary | None:
    """Return the figures of the programs of a run, or None if requests were routed one by one."""
    columns = results.programs
    if columns is None:
        return None
    over = columns.is_over & (columns.steps > 0)
    return ProgramSummary(
        arrived=len(columns.names),
        completed=int(over.sum()),
        steps=columns.num_steps,
        steps_per_minute=columns.num_steps * _MINUTE / results.end if results.end else None,
        makespan=latency_statistics((columns.last_end - columns.first_arrival)[over]),
        pauses=int(columns.pauses.sum()),
        paused=int(columns.paused.sum()),
        waited=int(columns.waited.sum()),
        imbalance=columns.imbalance,
        max_imbalance=columns.max_imbalance,
    )


def program_metrics(summary: ProgramSummary | None) -> dict[str, float | None]:
    """Return the figures for `--metrics-path`, all None if requests were routed one by one."""
    makespan = None if summary is None else summary.makespan
    figures: dict[str, float | None] = {
        f"program_makespan_{name}_s": None if makespan is None else getattr(makespan, name) / SECOND
        for name in LatencyStatistics.__struct_fields__
    }
    for name, key in _METRICS.items():
        value = None if summary is None else getattr(summary, name)
        figures[key] = value / SECOND if key.endswith("_s") and value is not None else value
    return figures
