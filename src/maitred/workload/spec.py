"""Synthetic workloads: which clients send which requests, how often, and what follows from the answers.

A workload is a file in BLIS's keys, or is made in Python:

    workload = Workload.from_yaml("chat.yaml")
    workload = Workload(
        aggregate_rate=20,
        num_requests=5_000,
        clients=[
            Client(id="chat", rate_fraction=0.7, input_distribution="lognormal:300,200", output_distribution=150),
            Client(id="batch", rate_fraction=0.3, input_distribution=2_000, output_distribution=500, slo_class="batch"),
        ],
    )

A `Workload` is a description; `jobs()` generates its requests. Each call generates the same requests again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from maitred.workload.generator import JobGenerator
from maitred.workload.spec_clients import Client, Cohort, SenderSet
from maitred.workload.spec_parts import (
    MAX_DURATION,
    Arrival,
    Distribution,
    Diurnal,
    Drain,
    GoodputTargets,
    Lifecycle,
    MultiTurn,
    Reasoning,
    Spike,
    Window,
    check_range,
    check_rate,
)

MAX_REQUESTS = 10**12

__all__ = [
    "Arrival",
    "Client",
    "Cohort",
    "Distribution",
    "Diurnal",
    "Drain",
    "GoodputTargets",
    "Lifecycle",
    "MultiTurn",
    "Reasoning",
    "Spike",
    "Window",
    "Workload",
]


class Workload(SenderSet, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload specification. Raises ValueError for values that are out of range or contradict each other."""

    seed: int = 42
    version: str | int = "2"
    category: Literal["language", "multimodal", "reasoning", ""] = ""
    """A label without effect."""
    goodput_slo_targets: Mapping[str, GoodputTargets] = {}
    """Targets by SLO class."""
    servegen_data: Any = None
    inference_perf: Any = None

    def __post_init__(self) -> None:
        if str(self.version) not in ("", "1", "2"):
            raise ValueError(f"version must be 2, not {self.version}")
        for key in ("servegen_data", "inference_perf"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} is not read: convert it into clients first (blis convert)")
        check_range("num_requests", self.num_requests, 0, MAX_REQUESTS)
        check_range("horizon", self.horizon, 0, MAX_DURATION)
        check_rate("aggregate_rate", self.aggregate_rate or None)
        if not self.clients and not self.cohorts:
            raise ValueError("clients are missing: no request would come")
        self._check_ids()
        self._check_rates()
        self._check_end()

    def _check_ids(self) -> None:
        """Raise ValueError if two senders have the same id. They would draw the same numbers and share their sessions."""
        senders: Sequence[Client | Cohort] = [*self.clients, *self.cohorts]
        num_members = {sender.id: sender.num_members for sender in senders}
        times_given = Counter(sender.id for sender in senders)
        for key, section in (("cohorts", self.cohorts), ("clients", self.clients)):
            for sender in section:
                if times_given[sender.id] > 1:
                    raise ValueError(f"{key}: the id {sender.id!r} is given {times_given[sender.id]} times")
                group, _, number = sender.id.rpartition("-")
                if number.isdecimal() and number == str(int(number)) and int(number) < num_members.get(group, 0):
                    raise ValueError(f"{key}: the id {sender.id!r} is that of one of the {num_members[group]} called {group!r}")

    def _check_rates(self) -> None:
        for key, senders in (("clients", self.clients), ("cohorts", self.cohorts)):
            for sender in senders:
                if isinstance(sender, Client) and sender.concurrency:
                    continue
                if not self.aggregate_rate and not sender.has_own_rate:
                    hint = "rate_fraction is a share of aggregate_rate" if sender.rate_fraction else "nothing says how often"
                    raise ValueError(f"{key}: {sender.id!r} has no rate, and there is no aggregate_rate: {hint}")
                if self.aggregate_rate and sender.rate is None and sender.rate_fraction is None and not sender.has_own_rate:
                    raise ValueError(f"{key}: {sender.id!r} has neither rate_fraction, rate nor concurrency")

    def _check_end(self) -> None:
        for key, senders in (("clients", self.clients), ("cohorts", self.cohorts)):
            for sender in senders:
                if sender.arrival.process == "normalized" and not (self.horizon or sender.becomes_silent):
                    raise ValueError(f"{key}: {sender.id!r} has normalized arrivals, which need an end: a horizon, or windows")
        if self.num_requests or self.horizon:
            return
        if not (all(client.is_finite for client in self.clients) and all(cohort.is_finite for cohort in self.cohorts)):
            raise ValueError("num_requests or horizon is missing: it would never end")

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a specification file. Raises ConfigError with file, line and the nearest valid key."""
        from maitred.core.yaml_schema import read_struct
        from maitred.files import InputFile

        return read_struct(InputFile(Path(path)), cls)

    def jobs(self, *, seed: int | None = None, rate_scale: float = 1.0) -> JobGenerator:
        """Return a generator of the requests. `seed` replaces the workload's own; `rate_scale` multiplies every rate."""
        return JobGenerator(self, self.seed if seed is None else seed, rate_scale)
