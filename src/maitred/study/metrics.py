"""Metrics: figures of a run by name, and which direction is better.

Names are the keys of `--metrics-path` (BLIS's keys where it has them). A class, an SLO class or a tenant stands in front of the
name with a dot: `interactive.ttft_p99_ms`, `batch.completed_requests`, `auth:acme.e2e_p50_ms`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.request import PriorityClass
from maitred.core.slo_classes import SLO_PRIORITIES

if TYPE_CHECKING:
    from maitred.report import By, Summary

_CLASSES: Final = {kind.label for kind in PriorityClass}


class Better(StrEnum):
    """Which direction is better."""

    LOWER = "lower"
    HIGHER = "higher"


class Metric(msgspec.Struct, frozen=True):
    """A figure of a run."""

    label: str
    better: Better
    of_groups: bool = True
    """Whether classes and tenants also have this figure."""
    is_share: bool = False
    """Whether it is a share of 1, shown in percent."""


def _latencies() -> Iterator[tuple[str, Metric]]:
    names = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "scheduling_delay": "delay", "itl": "ITL"}
    for name, label in names.items():
        for figure in ("mean", "p50", "p90", "p95", "p99"):
            yield f"{name}_{figure}_ms", Metric(f"{label} {figure} ms", Better.LOWER)


COST_METRICS: Final[Mapping[str, Metric]] = {
    "cost": Metric("cost", Better.LOWER, of_groups=False),
    "gpus": Metric("GPUs", Better.LOWER, of_groups=False),
}
RUN_METRICS: Final[Mapping[str, Metric]] = {
    **dict(_latencies()),
    "goodput_rps": Metric("goodput/s", Better.HIGHER),
    "slo_attainment": Metric("within SLO", Better.HIGHER, is_share=True),
    "responses_per_sec": Metric("completed/s", Better.HIGHER),
    "tokens_per_sec": Metric("tokens/s", Better.HIGHER),
    "completed_requests": Metric("completed", Better.HIGHER),
    "rejected_requests": Metric("rejected", Better.LOWER),
    "preempted_requests": Metric("preempted", Better.LOWER),
    "timed_out_requests": Metric("timed out", Better.LOWER),
    "dropped_unservable": Metric("refused", Better.LOWER),
    "unfinished_requests": Metric("unfinished", Better.LOWER),
    "starvation_age_ms": Metric("longest wait ms", Better.LOWER),
    "retry_count": Metric("retries", Better.LOWER),
    "preemption_count": Metric("KV preemptions", Better.LOWER),
    "total_wasted_tokens": Metric("wasted tokens", Better.LOWER),
    "cache_hit_rate": Metric("prefix hits", Better.HIGHER, is_share=True),
    "utilisation": Metric("utilisation", Better.HIGHER, of_groups=False, is_share=True),
    "fairness_jain_index": Metric("fairness", Better.HIGHER, of_groups=False),
    "steps_per_minute": Metric("steps/min", Better.HIGHER, of_groups=False),
    "program_makespan_p50_s": Metric("makespan p50 s", Better.LOWER, of_groups=False),
    "program_makespan_p99_s": Metric("makespan p99 s", Better.LOWER, of_groups=False),
    "program_pauses": Metric("pauses", Better.LOWER, of_groups=False),
    "program_waited_s": Metric("requests waited s", Better.LOWER, of_groups=False),
    "kv_imbalance": Metric("KV imbalance", Better.LOWER, of_groups=False, is_share=True),
}
"""The metrics that come out of a run; those of programs only where `programs` schedules them. Those of cost (`cost`, `gpus`)
are known before."""


def find_metric(name: str, *, where: str = "", costs: bool = False) -> Metric:
    """Return the metric called `name`, also `cost` and `gpus` if `costs`. Raises ConfigError with the nearest name."""
    known = {**RUN_METRICS, **COST_METRICS} if costs else RUN_METRICS
    group, _, plain = name.rpartition(".")
    if plain not in known:
        hint = nearest_name_hint(plain, known)
        raise ConfigError(f"there is no metric {name!r}", where=where, hint=hint)
    found = known[plain]
    if group and not found.of_groups:
        raise ConfigError(f"{plain} is a figure of the whole run, not of {group!r}", where=where, hint=f"say {plain}")
    return found


def needed_breakdowns(names: Iterable[str]) -> list[By]:
    """Return the breakdowns that a summary needs for these metrics."""
    from maitred.report import By

    return [By.CLASS, By.SLO_CLASS, By.TENANT] if any("." in name for name in names) else []


def metric_values(summary: Summary, names: Iterable[str], known: Collection[str]) -> dict[str, float | None]:
    """Return these metrics of a run, each None if no request has the figure.

    `known` are groups that may have no request. Raises ConfigError for a group that neither has requests nor is known, because
    its name may be misspelled.
    """
    from maitred.report import metrics

    figures = metrics(summary)
    return {name: _figure(figures, name, known) for name in names}


def _figure(figures: Mapping[str, Any], name: str, known: Collection[str]) -> float | None:
    from maitred.report.breakdown import UNNAMED

    group, _, plain = name.rpartition(".")
    if not group:
        return _number(figures.get(plain))
    # The last breakdown wins: a class is meant before an SLO class or a tenant of the same name.
    groups: dict[str, Any] = {**figures["per_tenant"], **figures["per_slo_class"], **figures["per_class"]}
    if group in groups:
        return _number(groups[group][plain])
    if group in _CLASSES or group in SLO_PRIORITIES or group in known:
        return None
    hint = nearest_name_hint(group, {*groups, *_CLASSES, *SLO_PRIORITIES} - {UNNAMED})
    raise ConfigError(f"no request is of the class or tenant {group!r}", where=name, hint=hint)


def _number(figure: Any) -> float | None:
    return None if figure is None else float(figure)
