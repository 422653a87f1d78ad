"""Discovery: runs the sources of one scheduler, tells the core what they say, and does with the fleet what the core decides.

config     the section's `backends`, certain; a reload may change them
admin      the operator's calls (`add`, `remove`), certain
others     as `gateway.discover` says, each in a task of its own; one that ends or raises is started anew
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from maitred.core.errors import ConfigError
from maitred.scheduler.backend_set import BackendSet, Change, ChangeKind, Presence
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.discovery.base import SOURCES, BackendSource, SourceError, SourceListener, checked_urls
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.wire.machine import Machine
from maitred.wire.origin import Origin
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")
CONFIG: Final = "config"
ADMIN: Final = "admin"
_RESTART_SECS: Final = 5.0
"""Seconds after which a source is started anew that has ended."""
_SHOWN: Final = 5
"""Backends that a line of the log names."""


class DiscoveredFleet(Protocol):
    """Who has the backends that are found."""

    def add(self, url: str) -> object:
        """A backend comes."""
        ...

    def leave(self, url: str) -> None:
        """A backend gets nothing new, because it is about to go."""
        ...

    def rejoin(self, url: str) -> None:
        """A backend is used again that was about to go."""
        ...

    def forget_when_idle(self, url: str) -> None:
        """A backend goes, as soon as it has no request."""
        ...


class SourceState:
    """How a source is: what it has said last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problem: str | None = "it has not answered yet"
        """Why it cannot say what it lists, or None."""
        self.has_answered = asyncio.Event()
        """Set when it has listed something, or failed."""


class _Teller(SourceListener):
    """What one source tells."""

    def __init__(self, discovery: Discovery, state: SourceState) -> None:
        self.machine, self.wants_objectives = discovery.machine, discovery.wants_objectives
        self._discovery, self._state = discovery, state
        self._objectives_problem = ""

    def listed(self, urls: Collection[str]) -> None:
        self._discovery.on_listed(self._state, checked_urls(urls))

    def failed(self, problem: str) -> None:
        self._discovery.on_failed(self._state, problem)

    def objectives(self, priorities: Mapping[str, int]) -> None:
        self._objectives_problem = ""
        self._discovery.on_objectives(self._state, priorities)

    def objectives_failed(self, problem: str) -> None:
        if problem != self._objectives_problem:
            log.warning("%s cannot say which objectives there are, the last ones hold: %s", self._state.name, problem)
        self._objectives_problem = problem


class Discovery:
    """The sources of one fleet, from `start` to `close`."""

    def __init__(
        self, config: FleetConfig, fleet: DiscoveredFleet, machine: Machine, *, wants_objectives: bool = False
    ) -> None:
        """Raises ConfigError for a source that is unknown or cannot be made."""
        self.machine, self.wants_objectives = machine, wants_objectives
        self.objectives: dict[str, int] = {}
        """The priorities of all objectives that sources know, by name; it is always the same dictionary."""
        self.on_other_objectives: Callable[[], object] = _ignore
        """Called when there are others."""
        self._objectives_of: dict[str, Mapping[str, int]] = {}
        self._fleet, self._clock = fleet, machine.clock
        self._core = BackendSet(config.discovery)
        self._sources: list[tuple[SourceState, BackendSource]] = []
        for spec in config.discover:
            try:
                self._sources.append((SourceState(spec), SOURCES.create(spec)))
            except ConfigError as error:
                raise ConfigError(str(error), where="gateway.discover") from error
        self._timer = DeadlineTimer(self._on_due, self._clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._core.listed(CONFIG, [str(Origin.parse(url)) for url in config.backends], self._clock.now(), is_certain=True)

    def start(self) -> None:
        """Begin to look, inside this event loop."""
        self._tasks = [asyncio.create_task(self._run(state, source)) for state, source in self._sources]

    async def close(self) -> None:
        """Look no more."""
        self._timer.cancel()
        await end_tasks(*self._tasks)

    async def wait_until_listed(self, secs: float) -> None:
        """Return when each source has said something, or after `secs`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(secs):
                for state, _ in self._sources:
                    await state.has_answered.wait()

    # What an operator asks for.

    def set_configured(self, urls: Sequence[str]) -> None:
        """Have these backends in the configuration."""
        self._apply(self._core.listed(CONFIG, checked_urls(urls), self._clock.now(), is_certain=True))

    def add(self, url: str) -> bool:
        """Have an operator list a backend, and return whether none did before. Raises SourceError for one too many."""
        listed = self._core.list_of(ADMIN)
        if url not in listed:
            self._apply(self._core.listed(ADMIN, checked_urls([*listed, url]), self._clock.now(), is_certain=True))
        return url not in listed

    def remove(self, url: str) -> None:
        """Have an operator list a backend no more."""
        listed = [each for each in self._core.list_of(ADMIN) if each != url]
        self._apply(self._core.listed(ADMIN, listed, self._clock.now(), is_certain=True))

    def sources_of(self, url: str) -> list[str]:
        """Return the sources that list a backend, as they are written."""
        return self._core.sources_of(url)

    def presence(self, url: str) -> Presence | None:
        """Return the presence of a backend in the fleet, or None if none is known under this URL."""
        return self._core.presence(url)

    @property
    def sources(self) -> Sequence[SourceState]:
        """The sources that look by themselves."""
        return [state for state, _ in self._sources]

    def num_listed(self, source: str) -> int:
        """Return how many backends are believed to be listed by a source."""
        return len(self._core.list_of(source))

    def num_doubted(self, source: str) -> int | None:
        """Return how many backends a source lists that is not believed yet, or None if it is."""
        return self._core.doubted().get(source)

    def check(self) -> None:
        """Raise InvariantError if the books do not balance, or the fleet is not what was decided."""
        self._core.check()

    # What sources say.

    def on_listed(self, state: SourceState, urls: Sequence[str]) -> None:
        """A source lists these backends."""
        if state.problem is not None:
            log.info("%s lists %s", state.name, _named(urls))
        was_doubted = self.num_doubted(state.name) is not None
        state.problem = None
        self._apply(self._core.listed(state.name, urls, self._clock.now()))
        doubted = self.num_doubted(state.name)
        if doubted is not None and not was_doubted:
            kept = self.num_listed(state.name)
            log.warning("%s suddenly lists %d backends: its last list (%d) holds for a while", state.name, doubted, kept)
        state.has_answered.set()

    def on_failed(self, state: SourceState, problem: str) -> None:
        """A source cannot say what it lists."""
        if problem != state.problem:
            kept = self.num_listed(state.name)
            log.warning("%s cannot be asked: %s; its last list (%d) holds", state.name, problem, kept)
        state.problem = problem
        self._apply(self._core.failed(state.name, self._clock.now()))
        state.has_answered.set()

    def on_objectives(self, state: SourceState, priorities: Mapping[str, int]) -> None:
        """A source knows these objectives."""
        if priorities != self._objectives_of.get(state.name):
            words = ", ".join(f"{name} ({priority})" for name, priority in [*priorities.items()][:_SHOWN])
            log.info("%s knows %d objectives: %s", state.name, len(priorities), words or "none")
        self._objectives_of[state.name] = priorities
        self.objectives.clear()
        for known in self._objectives_of.values():
            self.objectives.update(known)
        self.on_other_objectives()

    async def _run(self, state: SourceState, source: BackendSource) -> None:
        teller = _Teller(self, state)
        while True:
            try:
                await source.run(teller)
                self.on_failed(state, "it has ended")
            except SourceError as error:
                self.on_failed(state, str(error))
            except Exception as error:  # A source may be anybody's, and the others go on.
                log.exception("%s has a defect", state.name)
                self.on_failed(state, f"{type(error).__name__}: {error}")
            await asyncio.sleep(_RESTART_SECS)

    def _on_due(self) -> None:
        self._apply(self._core.advance(self._clock.now()))

    def _apply(self, changes: Sequence[Change]) -> None:
        """Carry out what was decided."""
        for change in changes:
            match change.kind:
                case ChangeKind.ADD:
                    log.info("backend %s is there: %s lists it", change.url, _listed_by(self._core.sources_of(change.url)))
                    self._fleet.add(change.url)
                case ChangeKind.DRAIN:
                    self._fleet.leave(change.url)
                case ChangeKind.RETURN:
                    self._fleet.rejoin(change.url)
                case ChangeKind.FORGET:
                    self._fleet.forget_when_idle(change.url)
        self._timer.set_to(self._core.next_deadline())


def _ignore() -> None:
    pass


def _listed_by(sources: Sequence[str]) -> str:
    return sources[0] if sources else "a source"


def _named(urls: Sequence[str]) -> str:
    if not urls:
        return "no backend"
    more = f" and {len(urls) - _SHOWN} more" if len(urls) > _SHOWN else ""
    return f"{', '.join(urls[:_SHOWN])}{more}"
