"""The `programs` section of the configuration."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.units import Micros, from_seconds
from maitred.programs.acting_estimators import ACTING_ESTIMATORS
from maitred.programs.rules import ProgramRules, ProgramsFlavour, rules_of
from maitred.programs.token_estimator import MAX_REPORTED_TOKENS

_MAX_SECS: Final = 10 * 365 * 86_400.0
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TIMES_ABOVE_ZERO: Final = ("scheduler_interval_secs", "max_wait_secs", "program_ttl_secs", "metrics_interval_secs")
_TIMES_FROM_ZERO: Final = (
    "min_stay_secs",
    "patience_secs",
    "displace_secs",
    "ageing_secs_per_1k_tokens",
    "wait_keepalive_secs",
)


class ProgramsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How agent programs share the KV memory of the backends. Raises ValueError for invalid values."""

    mode: Literal["off", "default", "tr"] = "off"
    """`tr`: programs are paused and resumed so that they fit into the KV memory of the backends. `default`: a program stays
    with the backend that had the fewest programs when it came, whatever its memory. `off`: requests are routed one by one."""
    flavour: ProgramsFlavour = "ours"
    """`thunderagent`: pause and resume at ticks only, smallest program first, as ThunderAgent documents it; no headroom,
    ageing, hold or minimum stay, and no limit for reported usage. The keys for these have no effect then."""
    acting_estimator: str | None = None
    """How many of its tokens an acting program counts: `fixed(weight=1.0)`, `decay(half_life_secs=1.0)`,
    `learned(least_secs=5.0)`, or a class of one's own as `module:Class`. Null: `learned`, and `fixed` with `flavour:
    thunderagent`."""
    scheduler_interval_secs: float = 5.0
    """Seconds between two ticks. At a tick all programs are looked at; between ticks those that an event concerns."""
    backend_capacity_tokens: int | None = None
    """Tokens of KV memory of each backend, and of each data-parallel rank of it. Null: what the backend reports; one that
    reports nothing is taken to have room for everything."""
    buffer_tokens: int = 100
    """Tokens kept free for the growth of each program."""
    headroom: float = 0.05
    """Share of a backend's memory that is left free when a program is placed beside others, so that it is not paused again at
    once."""
    min_stay_secs: float = 5.0
    """Seconds after a resume during which the program is paused only if no other one can be."""
    ageing_secs_per_1k_tokens: float = 1.0
    """Seconds by which a program of 1,000 tokens more goes later. Small programs go first, but a large one that has waited this
    much longer goes before them."""
    patience_secs: float = 10.0
    """Seconds after which the backend with most room is held for the program that has waited longest, until that fits."""
    displace_secs: float = 300.0
    """Seconds after which acting programs are paused for the program that has waited longest, at a tick."""
    max_wait_secs: float = 1800.0
    """Seconds that a request may wait for memory. Then its program is resumed at the backend with most room, even if it does
    not fit."""
    max_waiting: int = 10_000
    """Requests that may wait for memory at once; more are refused with a 429."""
    program_ttl_secs: float = 3600.0
    """Seconds without a request after which a program is forgotten."""
    max_programs_per_tenant: int = 10_000
    """Programs of one tenant that are kept at once. One more makes room by forgetting the one that is idle for longest."""
    max_programs: int = 100_000
    """Programs of all tenants that are kept at once. One more makes room by forgetting the one that expires first."""
    session_headers: tuple[str, ...] | None = None
    """Headers that name the session of a request without a program id; the first of them that the request has counts, and no
    other. Null: those of Claude Code, Codex, OpenCode, Dynamo and vLLM, with their sub-agents."""
    wait_keepalive_secs: float = 0.0
    """Seconds of silence after which a streamed request that waits for memory gets a comment, and with the first one the status
    200. An error then comes as an event of the stream. 0: never."""

    state: str | None = None
    """File in which a gateway keeps its programs across restarts (SQLite), one for each gateway; or the URL of a Redis that
    schedulers share, as `scheduler.election` has it, with `#NAME` at its end for another name than `maitred`; `none`: nothing.
    Null: `maitred/programs-PORT.sqlite` in the state directory of the user ($XDG_STATE_HOME, ~/.local/state)."""
    backend_type: Literal["auto", "vllm", "sglang", "skyrl"] = "auto"
    """The engine of the backends, by which their KV memory is read; `auto` finds out for each."""
    metrics: bool = False
    """Read and show the KV memory of the backends in mode `default` as well. Mode `tr` always reads it."""
    metrics_interval_secs: float | None = None
    """Seconds between two readings of a backend's KV memory; fewer than `health_interval_secs` shorten that as well. Null: with
    each poll of its health."""
    profile: bool = False
    """Measure the requests of each program: prefill, decode, pause, tool and KV hit rate, at /profiles."""
    profile_dir: str | None = None
    """Folder of `step_profiles.csv`, with a row for each request (`profile`). Null: no file."""

    def __post_init__(self) -> None:
        self._check_times()
        for name, least in (("max_waiting", 1), ("max_programs_per_tenant", 1), ("max_programs", 1), ("buffer_tokens", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}")
        if self.backend_capacity_tokens is not None and not 1 <= self.backend_capacity_tokens <= MAX_REPORTED_TOKENS:
            raise ValueError(f"backend_capacity_tokens must be from 1 to {MAX_REPORTED_TOKENS:,}")
        if not 0 <= self.headroom < 1:
            raise ValueError("headroom must be at least 0 and below 1")
        self._check_names()

    def _check_times(self) -> None:
        for name in _TIMES_ABOVE_ZERO:
            secs = getattr(self, name)
            if secs is not None and not 0 < secs <= _MAX_SECS:
                raise ValueError(f"{name} must be more than 0 seconds, and at most ten years")
        for name in _TIMES_FROM_ZERO:
            if not 0 <= getattr(self, name) <= _MAX_SECS:
                raise ValueError(f"{name} must be at least 0 seconds, and at most ten years")

    def _check_names(self) -> None:
        for header in self.session_headers or ():
            if not _HEADER_NAME.fullmatch(header):
                raise ValueError(f"session_headers: {header!r} must be the name of a header")
        try:
            ACTING_ESTIMATORS.create(self.estimator)
        except ConfigError as error:
            raise ValueError(f"acting_estimator: {error}") from error

    def check_fixed(self, other: ProgramsConfig) -> None:
        """Raise ValueError if `other` differs in what cannot change while programs are known."""
        for name in ("mode", "flavour", "acting_estimator", "buffer_tokens"):
            if getattr(other, name) != getattr(self, name):
                raise ValueError(f"programs.{name} cannot change while programs are known")

    @property
    def estimator(self) -> str:
        """The acting estimator, with the default filled in."""
        return self.acting_estimator or self.rules.acting_estimator

    @property
    def rules(self) -> ProgramRules:
        """The rules of the flavour."""
        return rules_of(self.flavour)

    @property
    def acts_at_events(self) -> bool:
        """Whether programs are paused and resumed between ticks as well."""
        return self.mode == "tr" and self.rules.acts_at_events

    @property
    def interval(self) -> Micros:
        """The time between two ticks, µs."""
        return max(1, from_seconds(self.scheduler_interval_secs))
