"""Seats: the number of each backend, for as long as it is there.

Cores, routers and gateways in other processes call a backend by its number. The seat of one that has gone is taken by another
one no earlier than `SEAT_REST` later, when nobody speaks of it any more, and so there are no more seats than backends that were
there within that time.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from maitred.core.units import SECOND, Micros
from maitred.scheduler.backends.backend import Backend

SEAT_REST: Final[Micros] = 60 * SECOND
"""For how long the seat of a backend that has gone stays empty."""


_NOWHERE: Final = "http://gone.invalid"
"""The URL of an empty seat that never had a backend here."""


def _seat_of(backend: Backend) -> int:
    return backend.index


class Seats:
    """The seats of one fleet."""

    def __init__(self, urls: Iterable[str]) -> None:
        self.all = [Backend(index, url) for index, url in enumerate(urls)]
        """Every backend by its number, those that have gone included. It is always the same list, as the next one is."""
        self.taken = [*self.all]
        """Those that are there, in the order of their numbers."""
        self._gone: dict[str, Backend] = {}
        """Those that have gone with requests (`reseat`)."""
        self._free: deque[tuple[Micros, int]] = deque()
        """Since when which seats are free."""

    def find(self, url: str) -> Backend | None:
        """Return the backend that is there under a URL, or None. O(backends)."""
        return next((backend for backend in self.taken if backend.url == url), None)

    def take(self, url: str, now: Micros) -> Backend:
        """Return a new backend in a seat of its own. Raises ConfigError for no URL."""
        index = len(self.all)
        if self._free and self._free[0][0] + SEAT_REST <= now:
            index = self._free[0][1]
        backend = Backend(index, url)
        if index == len(self.all):
            self.all.append(backend)
        else:
            self.all[index] = backend
            self._free.popleft()
        insort(self.taken, backend, key=_seat_of)
        return backend

    def leave(self, backend: Backend, now: Micros) -> None:
        """Free the seat of a backend."""
        backend.is_gone = True
        self.taken.remove(backend)
        self._free.append((now, backend.index))

    def reseat(self, urls: Sequence[str]) -> tuple[list[Backend], list[Backend]]:
        """Have the backends with these URLs, each in the seat of its place; "" is an empty seat. A backend that is there keeps
        what is known of it, whatever its number was. Return those that have come and those that have gone. Raises ConfigError
        for no URL."""
        known = {backend.url: backend for backend in self.taken}
        self._gone = {url: backend for url, backend in self._gone.items() if backend.requests}
        came, before = list[Backend](), {*self.taken}
        found = list[Backend]()
        for index, url in enumerate(urls):
            backend = known.get(url) or self._gone.pop(url, None) or Backend(index, url or _NOWHERE)
            found.append(backend)
        for index, (backend, url) in enumerate(zip(found, urls, strict=True)):
            backend.index, backend.is_gone = index, not url
            if url and backend not in before:
                came.append(backend)
        self.all[:] = found
        self.taken[:] = [backend for backend in found if not backend.is_gone]
        went = [backend for backend in known.values() if backend not in {*found}]
        for backend in went:
            backend.is_gone = True
            if backend.requests:
                self._gone[backend.url] = backend
        return came, went
