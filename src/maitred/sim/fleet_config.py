"""The configuration of what happens to the instances of a cluster: failures and slow instances."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from maitred.admission.terms.config import MAX_SECS

_MAX_ATTEMPTS = 100
_LEAST_SECS = 1e-6
_MAX_FACTOR = 1_000_000


class FailureConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Instances that fail and come back with empty caches, and instances that are slow."""

    mtbf_secs: float | None = None
    """Mean time for which an instance serves until it fails, in seconds, drawn from an exponential distribution. Null: no
    instance fails."""
    mttr_secs: float = 300.0
    """Mean time until a failed instance serves again, with an empty cache, in seconds, drawn likewise."""
    max_attempts: int = 3
    """Instances that are tried for a request at most, as `gateway.max_attempts`. A request whose client has seen a token is not
    tried again."""
    slow_instances: int = 0
    """Instances that are slow throughout: the last ones."""
    slow_factor: float = 2.0
    """Factor on the duration of every step of a slow instance."""

    def __post_init__(self) -> None:
        for name in ("mtbf_secs", "mttr_secs"):
            value = getattr(self, name)
            if value is not None and not _LEAST_SECS <= value <= MAX_SECS:
                raise ValueError(f"{name} must be from {_LEAST_SECS:g} to {MAX_SECS:g}, not {value}")
        if not 1 <= self.max_attempts <= _MAX_ATTEMPTS:
            raise ValueError(f"max_attempts must be from 1 to {_MAX_ATTEMPTS}, not {self.max_attempts}")
        if self.slow_instances < 0:
            raise ValueError(f"slow_instances must be at least 0, not {self.slow_instances}")
        if not 1 <= self.slow_factor <= _MAX_FACTOR:
            raise ValueError(f"slow_factor must be from 1 to {_MAX_FACTOR:,}, not {self.slow_factor}")

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each key without effect."""
        plain = FailureConfig()
        for name in ("mttr_secs", "max_attempts"):
            if self.mtbf_secs is None and getattr(self, name) != getattr(plain, name):
                yield f"failures.{name} has no effect without mtbf_secs"
        if not self.slow_instances and self.slow_factor != plain.slow_factor:
            yield "failures.slow_factor has no effect without slow_instances"
