"""BackendSet: which backends a fleet has, from the lists of several sources, some of which fail, flap or lie.

A *source* lists backends: the configuration, the operator's calls, a file, a name in DNS, Kubernetes. A backend belongs to
every source that lists it, and goes when none does any more. It is never dropped: it is *drained* (nothing new is sent there),
and forgotten `forget_secs` later, when the driver has seen its last request end.

    not known ──listed──▶ IN_USE ──listed by none──▶ LEAVING ──forget_secs──▶ not known
                             ▲                        │    ▲
                             └──────── listed ────────┤    │ listed by none
                             ▲                        ▼    │
                             └────── hold time ────── HELD ┘        if it has gone more than once of late

**A source that fails** (`failed`) changes nothing: its last list holds for as long as it takes.

**A source that suddenly lists far less** is doubted. A list without more than `doubted_share` of the backends that the source
had is believed only when the source has said so, without a failure between, for `doubt_secs`; what such a list has more is
believed at once. That is how an API answers that has lost its data, and how a file looks that is being written. The operator
and the configuration are certain, and believed at once.

**Flapping.** A backend that is listed again is used again at once. If it has gone `n` times within `flap_window_secs`, n more
than one, it must have been listed for `hold_secs * 2^(n-2)` seconds first, at most `max_hold_secs`. Nothing is held while no
other backend is in use: a backend that flaps is better than none.

*Example*, with the defaults. A file lists a, b and c. At 10 s it lists a and b: c is drained. At 12 s c is there again, and in
use. At 20 s c goes and at 21 s it comes, for the second time: it is used from 26 s on. At 30 s the file is empty: all three
stay in use. At 60 s, if it is empty still, they are drained, and at 90 s they are forgotten, each once its requests have ended.

Like every core this module takes time as an argument: an input settles first what fell due before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from maitred.core.errors import InvariantError
from maitred.core.units import Micros, from_seconds

_MAX_SECS: Final = 1e9
_MAX_GOINGS: Final = 32
"""Goings of one backend that are counted: the longest hold is reached before."""
_MAX_REMEMBERED: Final = 10_000
"""Backends that have gone and whose goings are remembered; beyond, those of the one that went first are forgotten."""


class DiscoveryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How backends come and go that are found while requests are served. Raises ValueError for invalid values."""

    forget_secs: float = 30.0
    """Seconds after which a backend is forgotten that no source lists any more, as soon as its requests have ended; what is
    learned of it is kept until then."""
    hold_secs: float = 5.0
    """Seconds for which a backend must be listed that has gone twice of late before it is used again; twice as many for each
    further time."""
    max_hold_secs: float = 60.0
    """Most of these seconds."""
    flap_window_secs: float = 300.0
    """Seconds for which it counts that a backend has gone."""
    doubted_share: float = 0.5
    """Share of the backends of a source, from 0 to 1. A list without more than these is believed only after `doubt_secs`."""
    doubt_secs: float = 30.0
    """Seconds for which a source must list so few before that is believed."""

    def __post_init__(self) -> None:
        for name in ("forget_secs", "hold_secs", "max_hold_secs", "flap_window_secs", "doubt_secs"):
            if not 0 <= getattr(self, name) <= _MAX_SECS:
                raise ValueError(f"{name} must be from 0 to {_MAX_SECS:g} seconds")
        if not 0 <= self.doubted_share <= 1:
            raise ValueError("doubted_share must be from 0 to 1")


class Presence(StrEnum):
    """What a backend is to a fleet."""

    IN_USE = "in_use"
    LEAVING = "leaving"
    """No source lists it: it is drained, and will be forgotten."""
    HELD = "held"
    """It is listed again, and must stay listed for a while before it is used."""


class ChangeKind(StrEnum):
    """What the driver does with a backend."""

    ADD = "add"
    DRAIN = "drain"
    RETURN = "return"
    """It is used again, as it was."""
    FORGET = "forget"
    """It is removed as soon as it has no request."""


class Change(msgspec.Struct, frozen=True):
    """A decision about one backend."""

    kind: ChangeKind
    url: str
    at: Micros


class _Member:
    """A backend that is known."""

    __slots__ = ("due", "is_in_fleet", "presence")

    def __init__(self) -> None:
        self.presence = Presence.IN_USE
        self.is_in_fleet = False
        """Whether it was added."""
        self.due: Micros | None = None
        """When it is forgotten, or used again; None: neither."""


class _Doubt(msgspec.Struct):
    """A list that is not believed yet."""

    since: Micros
    urls: frozenset[str]


class BackendSet:
    """The backends of one fleet."""

    def __init__(self, config: DiscoveryConfig) -> None:
        self._config = config
        self._forget, self._doubt = from_seconds(config.forget_secs), from_seconds(config.doubt_secs)
        self._hold, self._max_hold = from_seconds(config.hold_secs), from_seconds(config.max_hold_secs)
        self._window = from_seconds(config.flap_window_secs)
        self._lists: dict[str, dict[str, None]] = {}
        """What is believed of each source, in the order in which it came."""
        self._members: dict[str, _Member] = {}
        self._doubts: dict[str, _Doubt] = {}
        self._goings: dict[str, deque[Micros]] = {}
        """When backends went, of late."""

    # Inputs: each returns the changes that it brings about.

    def listed(self, source: str, urls: Collection[str], now: Micros, *, is_certain: bool = False) -> Sequence[Change]:
        """A source lists these backends. `is_certain`: it is believed, whatever it says."""
        changes = [*self.advance(now)]
        before, found = self._lists.setdefault(source, {}), dict.fromkeys(urls)
        num_lost = sum(url not in found for url in before)
        if not is_certain and num_lost > self._config.doubted_share * len(before):
            since = self._doubts[source].since if source in self._doubts else now
            self._doubts[source] = _Doubt(since, frozenset(found))
            before.update(found)
            if since + self._doubt <= now:
                return [*changes, *self._believe(source, now)]
        else:
            self._doubts.pop(source, None)
            self._lists[source] = {url: None for url in (*before, *found) if url in found}
        return [*changes, *self._settle(now)]

    def failed(self, source: str, now: Micros) -> Sequence[Change]:
        """A source cannot say what it lists."""
        changes = self.advance(now)
        self._doubts.pop(source, None)
        return changes

    def advance(self, now: Micros) -> Sequence[Change]:
        """Settle what is due by `now`, each thing at its own instant."""
        changes: list[Change] = []
        while (due := self.next_deadline()) is not None and due <= now:
            for source in [source for source, doubt in self._doubts.items() if doubt.since + self._doubt <= due]:
                changes += self._believe(source, due)
            for url, member in [*self._members.items()]:
                if member.due is not None and member.due <= due:
                    changes += self._on_due(url, member, due)
        return changes

    # What it knows.

    def next_deadline(self) -> Micros | None:
        """Return when `advance` has something to do, or None. O(backends)."""
        ends = [member.due for member in self._members.values() if member.due is not None]
        return min([*ends, *(doubt.since + self._doubt for doubt in self._doubts.values())], default=None)

    def presence(self, url: str) -> Presence | None:
        """Return the presence of a backend in the fleet, or None if it is not known."""
        member = self._members.get(url)
        return None if member is None else member.presence

    def sources_of(self, url: str) -> list[str]:
        """Return the sources that list a backend."""
        return [source for source, urls in self._lists.items() if url in urls]

    def list_of(self, source: str) -> Collection[str]:
        """Return the backends that a source is believed to list."""
        return [*self._lists.get(source, ())]

    def doubted(self) -> Mapping[str, int]:
        """Return how many backends each source lists that is not believed."""
        return {source: len(doubt.urls) for source, doubt in self._doubts.items()}

    def __iter__(self) -> Iterator[str]:
        """Return the backends that are known."""
        return iter(self._members)

    def check(self) -> None:
        """Raise InvariantError if the books do not balance."""
        for url, member in self._members.items():
            is_listed = bool(self.sources_of(url))
            if is_listed is (member.presence is Presence.LEAVING):
                raise InvariantError(f"{url} is {member.presence}, and listed by {self.sources_of(url)}")
            if (member.due is None) is not (member.presence is Presence.IN_USE):
                raise InvariantError(f"{url} is {member.presence}, and something is due at {member.due}")
        missing = {url for urls in self._lists.values() for url in urls} - self._members.keys()
        if missing:
            raise InvariantError(f"{sorted(missing)} are listed and not known")
        states = [member.presence for member in self._members.values()]
        if Presence.HELD in states and Presence.IN_USE not in states:
            raise InvariantError("backends are held while none is in use")

    def _believe(self, source: str, now: Micros) -> Sequence[Change]:
        doubt = self._doubts.pop(source)
        self._lists[source] = {url: None for url in self._lists[source] if url in doubt.urls}
        return self._settle(now)

    def _settle(self, now: Micros) -> Sequence[Change]:
        """Draw the consequences of other lists."""
        listed = {url: None for urls in self._lists.values() for url in urls}
        changes = [change for url in listed for change in self._on_listed(url, now)]
        for url, member in self._members.items():
            if url not in listed and member.presence is not Presence.LEAVING:
                changes += self._on_gone(url, member, now)
        return [*changes, *self._release(now)]

    def _on_listed(self, url: str, now: Micros) -> Sequence[Change]:
        member = self._members.get(url)
        if member is not None and member.presence is not Presence.LEAVING:
            return ()
        member = self._members.setdefault(url, _Member())
        hold = self._hold_of(url, now)
        if hold:
            member.presence, member.due = Presence.HELD, now + hold
            return ()
        return (self._use(url, member, now),)

    def _on_gone(self, url: str, member: _Member, now: Micros) -> Sequence[Change]:
        was_used = member.presence is Presence.IN_USE
        member.presence, member.due = Presence.LEAVING, now + self._forget
        goings = self._goings.pop(url, None) or deque(maxlen=_MAX_GOINGS)
        goings.append(now)
        self._goings[url] = goings
        if len(self._goings) > _MAX_REMEMBERED:
            del self._goings[next(iter(self._goings))]
        return (Change(ChangeKind.DRAIN, url, now),) if was_used else ()

    def _on_due(self, url: str, member: _Member, now: Micros) -> Sequence[Change]:
        if member.presence is Presence.HELD:
            return (self._use(url, member, now),)
        del self._members[url]
        changes = (Change(ChangeKind.FORGET, url, now),) if member.is_in_fleet else ()
        return (*changes, *self._release(now))

    def _release(self, now: Micros) -> Sequence[Change]:
        """Hold nothing if nothing else is in use."""
        if any(member.presence is Presence.IN_USE for member in self._members.values()):
            return ()
        held = [(url, member) for url, member in self._members.items() if member.presence is Presence.HELD]
        return [self._use(url, member, now) for url, member in held]

    def _use(self, url: str, member: _Member, now: Micros) -> Change:
        kind = ChangeKind.RETURN if member.is_in_fleet else ChangeKind.ADD
        member.presence, member.due, member.is_in_fleet = Presence.IN_USE, None, True
        return Change(kind, url, now)

    def _hold_of(self, url: str, now: Micros) -> Micros:
        """Return how long a backend must be listed before it is used, µs."""
        goings = self._goings.get(url)
        if goings is None:
            return 0
        while goings and goings[0] <= now - self._window:
            goings.popleft()
        if not goings:
            del self._goings[url]
            return 0
        doublings = len(goings) - 2
        if doublings < 0:
            return 0
        return min(self._max_hold, self._hold << doublings)
