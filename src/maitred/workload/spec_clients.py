"""The senders of a workload specification: clients, users of a closed loop, and cohorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from maitred.core.errors import nearest_name_hint
from maitred.core.slo_classes import SLO_PRIORITIES
from maitred.core.units import Micros
from maitred.workload.lengths import MAX_TOKENS
from maitred.workload.spec_parts import (
    MAX_DURATION,
    MAX_RATE,
    Arrival,
    Diurnal,
    Drain,
    LengthSpec,
    Lifecycle,
    MultiTurn,
    Reasoning,
    Spike,
    build_lengths,
    check_positive,
    check_range,
    check_rate,
)

MAX_MEMBERS = 100_000
MAX_SESSIONS = 10**9
DEFAULT_PREFIX_TOKENS = 50
"""Tokens of a shared prefix without a `prefix_length` (BLIS)."""
DEFAULT_TIMEOUT: Micros = 300_000_000
"""µs, for requests that a later request waits for (BLIS)."""
V1_SLO_CLASSES: Final = {"realtime": "critical", "interactive": "standard"}
"""The present names of two SLO classes of version 1."""


class Sender(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that clients and cohorts share."""

    id: str
    input_distribution: LengthSpec
    """Prompt tokens that a request adds to its shared prefix and its history."""
    output_distribution: LengthSpec
    rate_fraction: float | None = None
    """Share of the aggregate rate, in proportion to the fractions of all active senders."""
    rate: float | None = None
    """Requests per second, whatever the other senders do; for multi-turn clients, sessions per second. (Not in BLIS.)"""
    arrival: Arrival = Arrival()
    tenant_id: str = ""
    slo_class: str = ""
    model: str = ""
    adapter: str = ""
    """LoRA adapter: the routing key of its requests, and a prefix cache of its own. The cost of adapters is not simulated."""
    streaming: bool = True
    prefix_group: str = ""
    """Prompts of one group begin with the same tokens."""
    prefix_length: int | None = None
    reasoning: Reasoning | None = None
    closed_loop: bool | None = None
    """False: the rounds of a session arrive at fixed times, whatever happens to the previous answers."""
    timeout: Micros | None = None
    """µs from arrival to deadline; 0: no deadline. Default: 300 s where a later request waits for the answer, else none."""
    slo_target_us: Micros | None = None
    """The time from arrival within which the first token should come."""
    network: Any = None
    multimodal: Any = None

    def __post_init__(self) -> None:
        build_lengths("input_distribution", self.input_distribution)
        build_lengths("output_distribution", self.output_distribution)
        self._check_rates()
        check_range("prefix_length", self.prefix_length, 0, MAX_TOKENS)
        if self.prefix_length and not self.prefix_group:
            raise ValueError("prefix_length without a prefix_group is shared with no client")
        check_range("timeout", self.timeout, 0, MAX_DURATION)
        check_range("slo_target_us", self.slo_target_us, 0, MAX_DURATION)
        self._check_words()

    def _check_rates(self) -> None:
        check_positive("rate_fraction", self.rate_fraction, MAX_RATE)
        check_rate("rate", self.rate)
        if self.rate is not None and self.rate_fraction is not None:
            raise ValueError("rate and rate_fraction are two ways to say how often: give one of them")
        if self.rate is not None and self.arrival.own_rate is not None:
            raise ValueError("rate and arrival.scale are two ways to say how often: give one of them")

    def _check_words(self) -> None:
        if self.slo_class and self.slo_class not in SLO_PRIORITIES and self.slo_class not in V1_SLO_CLASSES:
            raise ValueError(f"slo_class {self.slo_class!r} is none: {nearest_name_hint(self.slo_class, SLO_PRIORITIES)}")
        if self.closed_loop is not None and self.multi_turn is None:
            raise ValueError("closed_loop is for multi-turn clients")
        if self.network is not None:
            raise ValueError("network is not simulated: leave it out, and add its times to those of the results")
        if self.multimodal is not None:
            raise ValueError("multimodal requests are not simulated: give their tokens as input_distribution")

    @property
    def multi_turn(self) -> MultiTurn | None:
        return None if self.reasoning is None else self.reasoning.multi_turn


class Client(Sender, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stream of requests at a rate; or with `concurrency`, users with one request at a time each."""

    concurrency: int = 0
    """Number of users, each with one request at a time (BLIS's closed loop)."""
    think_time_us: Micros | None = None
    """Time from an answer to the next request of the user."""
    sessions: int | None = None
    """Sessions of all users together: each begins another one when one has ended, failed ones included. Default: no limit, and
    a user whose session has failed sends no more. (Not in BLIS.)"""
    lifecycle: Lifecycle | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("concurrency", self.concurrency, 0, MAX_MEMBERS)
        check_range("think_time_us", self.think_time_us, 0, MAX_DURATION)
        check_range("sessions", self.sessions, 1, MAX_SESSIONS)
        if self.concurrency:
            self._check_users()
        elif self.sessions is not None:
            raise ValueError("sessions is for users: give a concurrency")
        elif self.think_time_us:
            raise ValueError("think_time_us is for users: give a concurrency, or think_time_us below reasoning.multi_turn")

    def _check_users(self) -> None:
        """Raise ValueError for a key that says when requests come: users send when they have their answers."""
        for key in ("rate", "rate_fraction", "lifecycle"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} does not go with concurrency: its users ask when they have their answers")
        if self.arrival != Arrival():
            raise ValueError("arrival does not go with concurrency: its users ask when they have their answers")
        if self.closed_loop is False:
            raise ValueError("closed_loop: false contradicts concurrency")

    @property
    def num_members(self) -> int:
        """Number of members called `id-0`, `id-1`, ..."""
        return self.concurrency

    @property
    def becomes_silent(self) -> bool:
        """Whether its rate is 0 from some instant on."""
        return self.lifecycle is not None

    @property
    def is_finite(self) -> bool:
        """Whether it sends a finite number of requests."""
        single = self.multi_turn is not None and self.multi_turn.single_session
        return self.becomes_silent or single or self.sessions is not None

    @property
    def has_own_rate(self) -> bool:
        """Whether `rate`, its windows or its arrivals give its rate."""
        windows = self.lifecycle.windows if self.lifecycle else ()
        own = self.rate is not None or self.arrival.own_rate is not None
        return own or (bool(windows) and all(w.trace_rate is not None or (w.arrival and w.arrival.own_rate) for w in windows))


class Cohort(Sender, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A population of equal clients, called `id-0`, `id-1`, ... Rates are those of all members together."""

    population: int
    diurnal: Diurnal | None = None
    spike: Spike | None = None
    drain: Drain | None = None
    prefix_sharing: Literal["shared", "per_member", ""] = ""
    """Whether the members share one prefix (the default) or have one each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("population", self.population, 1, MAX_MEMBERS)
        shapes = [key for key in ("diurnal", "spike", "drain") if getattr(self, key) is not None]
        if len(shapes) > 1:
            raise ValueError(f"{shapes[1]} and {shapes[0]} in one cohort: make a cohort for each")
        if self.prefix_sharing == "per_member" and not self.prefix_group:
            raise ValueError("prefix_sharing needs a prefix_group")

    @property
    def num_members(self) -> int:
        """Number of members called `id-0`, `id-1`, ..."""
        return self.population

    @property
    def becomes_silent(self) -> bool:
        """Whether its rate is 0 from some instant on."""
        return self.spike is not None or self.drain is not None

    @property
    def is_finite(self) -> bool:
        """Whether it sends a finite number of requests."""
        return self.becomes_silent

    @property
    def has_own_rate(self) -> bool:
        """Whether `rate`, its spike or its arrivals give its rate."""
        own = self.rate is not None or self.arrival.own_rate is not None
        return own or (self.spike is not None and self.spike.trace_rate is not None)


class SenderSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All senders of a workload, and the limits that apply to them together."""

    clients: Sequence[Client] = ()
    cohorts: Sequence[Cohort] = ()
    aggregate_rate: float = 0.0
    """Requests per second of all senders that have a `rate_fraction`, together; 0: every sender has a rate of its own."""
    num_requests: int = 0
    """Number of requests, later rounds included; 0: until the horizon."""
    horizon: Micros = 0
    """µs; nothing arrives later. 0: `MAX_DURATION`. The simulation continues until all answers are complete."""
