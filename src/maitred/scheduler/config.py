"""What of the configuration the scheduler goes by: the backends, how they are watched, and how many requests they get."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from maitred.admission.terms.config import MAX_SECS, MAX_SLOTS
from maitred.core.errors import ConfigError, quote
from maitred.scheduler.backend_set import DiscoveryConfig
from maitred.scheduler.ejection import EjectionConfig

DEFAULT_SLOTS_PER_BACKEND: Final = 64
"""Requests that a backend may have in flight for each model, if that number is neither configured, learned nor reported. More
than the guess of learning (`GUESSED_SLOTS`, 32): with learning off nothing corrects it, so it must fill a usual engine."""
_REQUEST_PATH: Final = re.compile(r"/[!-~]*")
_VISIBLE_ASCII: Final = re.compile(r"[!-~]+")


def is_valid_api_key(key: str) -> bool:
    """Return whether `key` can be sent in a header."""
    return bool(_VISIBLE_ASCII.fullmatch(key))


class FleetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of the section `gateway` that concern the backends. Raises ValueError for invalid values."""

    backends: tuple[str, ...] = ()
    """Base URL of each OpenAI-compatible engine, as `http://host:port`. A reload adds and drains them."""
    discover: tuple[str, ...] = ()
    """Sources of further backends, which come and go: `file(/etc/maitred/targets.json)`, `dns(engines.local, port=8000)`,
    `kubernetes(service=vllm)`. See docs/discovery.md."""
    slots_per_backend: int | None = None
    """Requests that one backend may have in flight, for each model it serves; a base model and its adapters count as one. Null:
    as `slots` says."""
    slots: Literal["auto", "learned", "fixed"] = "auto"
    """Where the slots of a backend come from if `slots_per_backend` is null. `auto`: what it reports (`max_running_requests` or
    `max_num_seqs` in `/server_info`), else learned of what it runs, in mode `priority`. `learned`: learned in any case, with
    what it reports as the upper bound. `fixed`: what it reports, else 64."""
    upstream_api_key: str | None = None
    """Key sent to the backends as `Authorization: Bearer`, in place of the client's own."""
    health_interval_secs: float = 1.0
    """Seconds between two polls of a backend's health and models."""
    health_timeout_secs: float = 3.0
    """Longest duration of such a poll, in seconds."""
    health_path: str | None = None
    """Path that a backend answers with 200 while it is well, such as `/v1/health/ready` (NIM). Null: `/health`, or, where a
    backend has no such path, `/v1/models` alone."""
    health_failures: int = 3
    """Consecutive polls that must fail before a backend counts as down. Requests that it has not begun to answer then go to
    another backend. A failure to connect takes it down at once; after a refused connection its requests are left to it."""
    max_models: int = 256
    """Models of one backend that are served: the first that it lists."""
    ejection: EjectionConfig = EjectionConfig()
    discovery: DiscoveryConfig = DiscoveryConfig()

    def __post_init__(self) -> None:
        if self.slots_per_backend is not None and not 1 <= self.slots_per_backend <= MAX_SLOTS:
            raise ValueError(f"slots_per_backend must be from 1 to {MAX_SLOTS:,}")
        if self.slots_per_backend is not None and self.slots == "learned":
            raise ValueError("slots_per_backend and slots: learned contradict each other (leave one of them out)")
        for name in ("health_failures", "max_models"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("health_interval_secs", "health_timeout_secs"):
            if not 0 < getattr(self, name) <= MAX_SECS:
                raise ValueError(f"{name} must be more than 0, and at most {MAX_SECS:g} seconds")
        self._check_health_path()
        if self.upstream_api_key is not None and not is_valid_api_key(self.upstream_api_key):
            raise ValueError("upstream_api_key must be visible ASCII characters without spaces")
        if self.backends:
            self._check_backends()
        for spec in self.discover:
            if self.discover.count(spec) > 1:
                raise ValueError(f"discover: {spec} is there twice (name each source once)")

    def _check_health_path(self) -> None:
        path = self.health_path
        if path is not None and not _REQUEST_PATH.fullmatch(path):
            raise ValueError(f"health_path must be a path such as /health, not {quote(path)}")

    def _check_backends(self) -> None:
        from maitred.wire.origin import Origin  # Not at the top, because a simulation needs no client.

        seen: set[Origin] = set()
        for url in self.backends:
            try:
                origin = Origin.parse(url)
            except ConfigError as error:
                raise ValueError(f"backends: {error}") from error
            if origin in seen:
                raise ValueError(f"backends: {origin} is named twice (name each backend once)")
            seen.add(origin)

    @property
    def learns_slots(self) -> bool:
        """Whether the slots of a backend that reports none are learned."""
        return self.slots_per_backend is None and self.slots != "fixed"
