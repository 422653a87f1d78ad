"""Who asks, in a workload specification: clients, users of a closed loop, and cohorts."""

from __future__ import annotations

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
DEFAULT_PREFIX_TOKENS = 50
"""Tokens of a shared prefix whose length nobody says (BLIS)."""
DEFAULT_TIMEOUT: Micros = 300_000_000
"""Of requests whose answer somebody waits for to go on (BLIS)."""
V1_SLO_CLASSES: Final = {"realtime": "critical", "interactive": "standard"}


class Sender(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients and cohorts have in common."""

    id: str
    input_distribution: LengthSpec
    """Tokens of a prompt beside what it shares and what earlier rounds have said."""
    output_distribution: LengthSpec
    rate_fraction: float | None = None
    """Its share of the aggregate rate, in proportion to those of all that are active."""
    rate: float | None = None
    """Requests per second of its own, whatever the others do. For multi-turn clients, sessions per second. (Not in BLIS.)"""
    arrival: Arrival = Arrival()
    tenant_id: str = ""
    slo_class: str = ""
    model: str = ""
    adapter: str = ""
    """LoRA adapter: the routing key of its requests, and a prefix cache of their own. What adapters cost is not simulated."""
    streaming: bool = True
    prefix_group: str = ""
    """Prompts of one group begin with the same tokens."""
    prefix_length: int | None = None
    reasoning: Reasoning | None = None
    closed_loop: bool | None = None
    """false: the rounds of a session come at their times, whatever becomes of those before."""
    timeout: Micros | None = None
    """µs after its arrival from which nobody wants the answer; 0: never. Default: 300 s where somebody waits for it."""
    slo_target_us: Micros | None = None
    """Within which its first token should come."""
    network: Any = None
    multimodal: Any = None

    def __post_init__(self) -> None:
        build_lengths("input_distribution", self.input_distribution)
        build_lengths("output_distribution", self.output_distribution)
        check_positive("rate_fraction", self.rate_fraction, MAX_RATE)
        check_rate("rate", self.rate)
        if self.rate is not None and self.rate_fraction is not None:
            raise ValueError("rate and rate_fraction are two ways to say how often: give one of them")
        if self.rate is not None and self.arrival.own_rate is not None:
            raise ValueError("rate and arrival.scale are two ways to say how often: give one of them")
        check_range("prefix_length", self.prefix_length, 0, MAX_TOKENS)
        if self.prefix_length and not self.prefix_group:
            raise ValueError("prefix_length without a prefix_group is shared with nobody")
        check_range("timeout", self.timeout, 0, MAX_DURATION)
        check_range("slo_target_us", self.slo_target_us, 0, MAX_DURATION)
        self._check_words()

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
    """One stream of requests at a rate, or, with `concurrency`, so many users who each wait for their answers."""

    concurrency: int = 0
    """Users, each with one request at a time (BLIS; a closed loop)."""
    think_time_us: Micros | None = None
    """How long a user thinks between an answer and the next request."""
    lifecycle: Lifecycle | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("concurrency", self.concurrency, 0, MAX_MEMBERS)
        check_range("think_time_us", self.think_time_us, 0, MAX_DURATION)
        if not self.concurrency:
            if self.think_time_us:
                raise ValueError("think_time_us is for users: give a concurrency, or think_time_us below reasoning.multi_turn")
            return
        for key in ("rate", "rate_fraction", "lifecycle"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} does not go with concurrency: its users ask when they have their answers")
        if self.arrival != Arrival():
            raise ValueError("arrival does not go with concurrency: its users ask when they have their answers")
        if self.closed_loop is False:
            raise ValueError("closed_loop: false contradicts concurrency")

    @property
    def num_members(self) -> int:
        """How many there are of the name `id-0`, `id-1`, ..."""
        return self.concurrency

    @property
    def becomes_silent(self) -> bool:
        """Whether its rate is nothing some day."""
        return self.lifecycle is not None

    @property
    def is_finite(self) -> bool:
        """Whether it stops sending of its own accord."""
        return self.becomes_silent or (self.multi_turn is not None and self.multi_turn.single_session)

    @property
    def has_own_rate(self) -> bool:
        """Whether its rate is within `rate`, its windows or its arrivals."""
        windows = self.lifecycle.windows if self.lifecycle else ()
        own = self.rate is not None or self.arrival.own_rate is not None
        return own or (bool(windows) and all(w.trace_rate is not None or (w.arrival and w.arrival.own_rate) for w in windows))


class Cohort(Sender, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A population of clients that are alike, called `id-0`, `id-1`, ... Rates are those of all of them together."""

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
        """How many there are of the name `id-0`, `id-1`, ..."""
        return self.population

    @property
    def becomes_silent(self) -> bool:
        """Whether its rate is nothing some day."""
        return self.spike is not None or self.drain is not None

    @property
    def is_finite(self) -> bool:
        """Whether it stops sending of its own accord."""
        return self.becomes_silent

    @property
    def has_own_rate(self) -> bool:
        """Whether its rate is within `rate`, its spike or its arrivals."""
        own = self.rate is not None or self.arrival.own_rate is not None
        return own or (self.spike is not None and self.spike.trace_rate is not None)
