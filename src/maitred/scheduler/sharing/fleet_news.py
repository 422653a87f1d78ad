"""What a scheduler tells its gateways of the backends."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from maitred.core.units import Micros
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.link.messages import BackendNews, Fleet


def fleet_news(backends: Iterable[Backend], now: Micros) -> Fleet:
    """Return what gateways need to know of the backends."""
    return Fleet([_news(backend, now) for backend in backends])


def _news(backend: Backend, now: Micros) -> BackendNews:
    rests_until = backend.circuit.rests_until
    return BackendNews(
        healthy=backend.healthy,
        was_ever_healthy=backend.was_ever_healthy,
        has_been_polled=backend.has_been_polled,
        is_draining=backend.is_draining,
        is_ejected=backend.circuit.is_ejected,
        rests=None if rests_until is None else max(0, rests_until - now),
        problem=backend.problem,
        models=msgspec.json.encode(backend.models),
    )
