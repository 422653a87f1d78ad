"""Metrics: figures of a run by name, which direction is better, and constraints on them.

Names are the keys of `--metrics-path` (BLIS's keys where it has them). A class, an SLO class or a tenant stands in front of the
name with a dot: `interactive.ttft_p99_ms`, `batch.completed_requests`, `auth:acme.e2e_p50_ms`.

Example: 600 ms violate a constraint of at most 500 ms by a share of 0.2 (`Constraint.excess`). A search is told this share, so
of two candidates that are not good enough it prefers the one that nearly is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.request import PriorityClass
from maitred.core.slo_classes import SLO_PRIORITIES
from maitred.report.table import format_number, format_share

if TYPE_CHECKING:
    from maitred.report import By, Summary

Figures: TypeAlias = Mapping[str, float | None]
"""Metrics by name; None where no request has the figure."""
_CLASSES: Final = {kind.label for kind in PriorityClass}
_CONSTRAINT: Final = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=)\s*([-+0-9.eE_]+)\s*")


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

    def format(self, value: float | None) -> str:
        """Return a value as it is printed."""
        return format_share(value) if self.is_share else format_number(value)


_STATISTICS: Final = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "std": "sd"}


def _latencies() -> Iterator[tuple[str, Metric]]:
    names = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "scheduling_delay": "delay", "itl": "ITL"}
    for name, label in names.items():
        for figure, shown in _STATISTICS.items():
            yield f"{name}_{figure}_ms", Metric(f"{label} {shown} ms", Better.LOWER)


DIVERGES: Final = "diverges"
"""1 for a run whose queue grows without end (`report.verdicts.find_growth`), 0 for another one."""
COMPLETED_SHARE: Final = "completed_share"
"""The completed requests among those that arrived."""
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
    "total_tokens_per_sec": Metric("total tokens/s", Better.HIGHER),
    "completed_requests": Metric("completed", Better.HIGHER),
    COMPLETED_SHARE: Metric("answered", Better.HIGHER, is_share=True),
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
    DIVERGES: Metric("diverges", Better.LOWER, of_groups=False, is_share=True),
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


def metric_heading(name: str, *, below: str = "") -> str:
    """Return a metric in words, under a line with its class or tenant if it is of one; `below` indents it there."""
    group, label = name.rpartition(".")[0], find_metric(name, costs=True).label
    return f"{group}\n{below}{label}" if group else label


def metric_label(name: str) -> str:
    """Return a metric in words, in one line."""
    return " ".join(metric_heading(name).split())


def mean_figures(runs: Sequence[Figures], names: Iterable[str]) -> dict[str, float | None]:
    """Return the means of these metrics over some runs, each None unless every run has the figure."""
    values = {name: [of_run[name] for of_run in runs] for name in names}
    known = {name: [value for value in of_runs if value is not None] for name, of_runs in values.items()}
    return {name: sum(of_runs) / len(runs) if runs and len(of_runs) == len(runs) else None for name, of_runs in known.items()}


def needed_breakdowns(names: Iterable[str]) -> list[By]:
    """Return the breakdowns that a summary needs for these metrics."""
    from maitred.report import By

    return [By.CLASS, By.SLO_CLASS, By.TENANT] if any("." in name for name in names) else []


def metric_values(summary: Summary, names: Iterable[str], known: Collection[str]) -> dict[str, float | None]:
    """Return these metrics of a run but `DIVERGES`, each None if no request has the figure.

    `known` are groups that may have no request. Raises ConfigError for a group that neither has requests nor is known, because
    its name may be misspelled.
    """
    from maitred.report import metrics

    figures = metrics(summary)
    return {name: _figure(figures, name, known) for name in names if name != DIVERGES}


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


class Constraint(msgspec.Struct, frozen=True):
    """A bound on a metric."""

    metric: str
    better: Better
    """LOWER: at most `limit`. HIGHER: at least `limit`."""
    limit: float

    def excess(self, figures: Figures) -> float:
        """Return by which share of the limit it is violated; 0 or less if it is met. A missing figure violates every
        constraint."""
        value = figures[self.metric]
        if value is None:
            return math.inf
        over = value - self.limit if self.better is Better.LOWER else self.limit - value
        return over / (abs(self.limit) or 1.0)


def parse_constraint(text: str, where: str) -> Constraint:
    """Return the constraint that `interactive.ttft_p99_ms <= 500` states. Raises ConfigError."""
    parts = _CONSTRAINT.fullmatch(text)
    try:
        limit = float(parts[3]) if parts else math.nan
    except ValueError:
        limit = math.nan
    if parts is None or not math.isfinite(limit):
        raise ConfigError(f"cannot read {text!r}", where=where, hint="write it as interactive.ttft_p99_ms <= 500")
    if find_metric(parts[1], where=where, costs=True).is_share and limit > 1:
        problem = f"{parts[1]} is a share from 0 to 1, and {parts[3]} is none"
        raise ConfigError(problem, where=where, hint=f"{limit:g} % are {limit / 100:g}")
    return Constraint(parts[1], Better.LOWER if parts[2] == "<=" else Better.HIGHER, limit)
