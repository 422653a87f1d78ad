"""The `gateway` section."""

from __future__ import annotations

from typing import Literal

import msgspec

from maitred.admission.config import MOST_SLOTS
from maitred.errors import ConfigError
from maitred.wire.limits import Limits


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The live gateway. Raises ValueError for what cannot be."""

    backends: tuple[str, ...] = ()
    """Base URLs, as http://host:port."""
    host: str = "127.0.0.1"
    port: int = 8080
    """0 takes any free one."""
    slots_per_backend: int = 64
    """Requests that one backend may have in flight, for each model it serves."""
    max_body_bytes: int = 32 * 1024 * 1024
    health_interval_secs: float = 1.0
    """Between two polls of a backend's health and models."""
    health_timeout_secs: float = 3.0
    health_failures: int = 3
    """Polls in a row that must fail before a backend counts as down. A refused connection needs no second."""
    max_attempts: int = 2
    """Backends that may lose one request before its answer began. One that refused the connection does not count."""
    queue_timeout_status: Literal[408, 503] = 408
    """What a request is answered that waited too long. 408 as SMG documents it; some proxies repeat a 408 at once."""
    drain_secs: float = 30.0
    """How long requests in flight may go on after the first SIGINT or SIGTERM."""
    decision_log: str | None = None
    """A file to append every input and decision of admission to, as JSON lines."""
    upstream: Limits = Limits()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError("port must be from 0 to 65535")
        for name in ("slots_per_backend", "max_body_bytes", "health_failures", "max_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.slots_per_backend > MOST_SLOTS:
            raise ValueError(f"slots_per_backend must be at most {MOST_SLOTS:,}")
        for name in ("health_interval_secs", "health_timeout_secs"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0 seconds")
        if not self.drain_secs >= 0:
            raise ValueError("drain_secs must be at least 0 seconds")
        if self.backends:
            self._check_backends()

    def _check_backends(self) -> None:
        from maitred.wire.client import Origin  # not at the top: a simulation needs no client

        seen: set[Origin] = set()
        for url in self.backends:
            try:
                origin = Origin.parse(url)
            except ConfigError as error:
                raise ValueError(f"backends: {error}") from error
            if origin in seen:
                raise ValueError(f"backends: {origin} is named twice (name each backend once)")
            seen.add(origin)
