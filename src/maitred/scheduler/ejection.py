"""Outlier ejection: which backends answer so badly that requests go elsewhere, and when they are tried again.

A backend can be healthy in its polls and fail every request: its engine core is dead, its memory is full, it hangs. Such a
backend answers at once or holds nothing, so a router that looks at load sends it everything. Each backend therefore has a
circuit (the words are Envoy's):

    CLOSED ──consecutive failures, or a failure rate──▶ EJECTED ──ejection time──▶ HALF_OPEN ──successes of probes──▶ CLOSED
                                                           ▲                          │
                                                           └────a probe that fails────┘

A *failure* is a status from 500 on (but for 501, 505), a reset, an answer that is no HTTP, an error in the place of the first
event of a stream, or a timeout before the first byte. A *success* is any other answer: a 400 shows an engine that works. An
engine that says that it is *busy* (429, 529, or a 503 for a full queue) has neither failed nor succeeded. A *probe* is a
request that is sent to a half-open backend, one at a time.

The ejection time is `base_ejection_secs` times the number of ejections in a row, at most `max_ejection_secs`. That number
falls by one for each `base_ejection_secs` that the backend is in use (Envoy's ejection multiplier).

**Silence.** An engine that hangs answers its polls and no request, and `head_secs` is long, because an answer that is not
streamed may take so long. So requests that wait at a silent backend count as failures before (`ejection_driver.SilenceWatch`).

**Never all at once.** At most `max_ejected_share` of the backends in use are ejected, but always one may be, and never the last
one. Backends that are ejected while the others go down are used all the same (`ServedModels`): if all would be ejected, none
is.

**Back early.** An ejected backend may have been well for long when those in use fail. So a backend that would be one too many
is ejected in exchange for the one that would be back first, which is in use again at once. When those in use have no room, or
have failed a request, that one is half-open before its time (`try_early`); a probe that fails then leaves the end of its
ejection as it was. Each backend comes back early at most once in half of `base_ejection_secs`, because all may be broken.

**Rest.** An engine that answers `Retry-After` is not asked again before (`rests_until`). That is no ejection.

Example: two backends, `consecutive_failures: 5`, `base_ejection_secs: 10`. The fifth failure of A at 3 s ejects it until 13 s.
At 13 s it is half-open: the next request is a probe. If that fails, A is ejected for 20 s; after three that succeed it is
closed. B may not be ejected before.

While all is well, a request costs one addition to `num_answers` and one look at `needs_attention`. Like every core this module
takes time as an argument; `advance` settles what is due.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from maitred.core.errors import InvariantError
from maitred.core.units import Micros, from_seconds

_MAX_SECS: Final = 1e9


class EjectionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a backend that fails requests gets no more of them. Raises ValueError for invalid values."""

    enabled: bool = True
    """Whether backends are ejected at all."""
    consecutive_failures: int = 5
    """Failures in a row after which a backend is ejected."""
    failure_rate: float = 0.5
    """Share of the answers in a window that must fail for a backend to be ejected, more than 0 and at most 1."""
    min_requests: int = 20
    """Answers and failures in a window below which that share is not judged."""
    window_secs: float = 30.0
    """Length of the window, in seconds. It begins with a failure."""
    silence_secs: float = 10.0
    """Seconds without a byte from a backend, while others answer, after which requests that have waited there for so long count
    as failures, if they are at least `consecutive_failures`, or streams that together have waited for as many times as long; or
    twice the time in which 99 % of all requests are answered, if that is longer."""
    base_ejection_secs: float = 10.0
    """Seconds of the first ejection; the n-th one in a row is n times as long. n falls by one for each such time in use."""
    max_ejection_secs: float = 300.0
    """Longest ejection, in seconds."""
    probe_successes: int = 3
    """Probes in a row that must succeed before a half-open backend is in use again."""
    max_ejected_share: float = 0.5
    """Share of the backends in use that may be ejected at once, from 0 to 1. One may be in any case, but never the last one."""

    def __post_init__(self) -> None:
        for name in ("consecutive_failures", "min_requests", "probe_successes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("window_secs", "silence_secs", "base_ejection_secs", "max_ejection_secs"):
            if not 0 < getattr(self, name) <= _MAX_SECS:
                raise ValueError(f"{name} must be more than 0, and at most {_MAX_SECS:g} seconds")
        if not 0 < self.failure_rate <= 1:
            raise ValueError("failure_rate must be more than 0, and at most 1")
        if not 0 <= self.max_ejected_share <= 1:
            raise ValueError("max_ejected_share must be from 0 to 1")


class CircuitState(StrEnum):
    """What may be sent to a backend: requests, nothing, or a probe at a time."""

    CLOSED = "closed"
    EJECTED = "ejected"
    HALF_OPEN = "half_open"


class EjectionReason(StrEnum):
    """Why a circuit has changed."""

    CONSECUTIVE_FAILURES = "consecutive_failures"
    FAILURE_RATE = "failure_rate"
    PROBE_FAILED = "probe_failed"
    EARLY_PROBE_FAILED = "early_probe_failed"
    TIME_IS_UP = "time_is_up"
    OTHERS_FAIL = "others_fail"
    PROBES_SUCCEEDED = "probes_succeeded"
    RESET = "reset"


class Transition(NamedTuple):
    """A change of one circuit."""

    backend: int
    """The number of the backend."""
    state: CircuitState
    """What the circuit is now."""
    reason: EjectionReason
    until: Micros | None
    """The end of an ejection; None for every other change."""


class Circuit:
    """What is known of one backend. Only `OutlierDetector` changes it, but for `num_answers`."""

    __slots__ = (
        "busy_in_a_row",
        "closed_at",
        "consecutive_failures",
        "early_until",
        "needs_attention",
        "num_answers",
        "num_ejections",
        "num_probes",
        "probe_successes",
        "rests_until",
        "state",
        "until",
        "window_answers",
        "window_began_at",
        "window_failures",
    )

    def __init__(self) -> None:
        self.num_answers = 0
        """Answers that were no failures; counted by the proxy."""
        self.needs_attention = False
        """Whether a success must be told to the detector: after a failure, or unless the circuit is closed."""
        self.state = CircuitState.CLOSED
        self.consecutive_failures = 0
        self.num_ejections = 0
        """Ejections in a row."""
        self.until: Micros = 0
        """End of the ejection, if there is one."""
        self.early_until: Micros = 0
        """Until when it does not come back early again."""
        self.busy_in_a_row = 0
        """Answers that said it has no room."""
        self.closed_at: Micros = 0
        """When the last ejection ended with successes."""
        self.num_probes = 0
        """Probes under way."""
        self.probe_successes = 0
        self.rests_until: Micros | None = None
        """Until when the engine has asked to be left alone, or None."""
        # The window of the failure rate begins with a failure, so nothing is counted twice while all is well.
        self.window_began_at: Micros | None = None
        self.window_answers = 0
        """What `num_answers` was at the beginning of the window."""
        self.window_failures = 0

    @property
    def is_ejected(self) -> bool:
        """Whether requests that are no probes go elsewhere."""
        return self.state is not CircuitState.CLOSED


class OutlierDetector:
    """The circuits of all backends of one fleet. Inputs return the changes that they bring about."""

    def __init__(self, config: EjectionConfig, circuits: Iterable[Circuit]) -> None:
        """`circuits` are those of the backends, in the order of their numbers."""
        self.circuits = [*circuits]
        self._config = config
        self._base = from_seconds(config.base_ejection_secs)
        self._longest = from_seconds(config.max_ejection_secs)
        self._window = from_seconds(config.window_secs)
        self._in_use: frozenset[int] = frozenset()

    def seat(self, index: int, circuit: Circuit) -> None:
        """Note the circuit of a backend that has come: its number is the next one, or that of one that has gone."""
        if index == len(self.circuits):
            self.circuits.append(circuit)
        else:
            self.circuits[index] = circuit

    def set_in_use(self, indices: Collection[int]) -> None:
        """Note which backends could get requests if none were ejected: those that are healthy and not drained."""
        self._in_use = frozenset(indices)

    @property
    def max_ejected(self) -> int:
        """Number of the backends in use that may be ejected at once."""
        num = len(self._in_use)
        return min(num - 1, max(1, int(num * self._config.max_ejected_share)))

    def on_success(self, index: int, now: Micros, *, is_probe: bool) -> Sequence[Transition]:
        """A backend has answered, and its circuit needs attention."""
        changes, circuit = [*self.advance(now)], self.circuits[index]
        circuit.consecutive_failures = circuit.busy_in_a_row = 0
        if circuit.state is CircuitState.CLOSED:
            circuit.needs_attention = False
        elif circuit.state is CircuitState.HALF_OPEN and is_probe:
            circuit.probe_successes += 1
            if circuit.probe_successes >= self._config.probe_successes:
                changes.append(self._close(index, EjectionReason.PROBES_SUCCEEDED, now))
        return changes

    def on_failure(self, index: int, now: Micros, *, is_probe: bool) -> Sequence[Transition]:
        """A backend has failed a request. Failures of requests that were sent before an ejection change nothing of it."""
        changes, circuit = [*self.advance(now)], self.circuits[index]
        circuit.consecutive_failures += 1
        circuit.needs_attention = True
        self._count_in_window(circuit, now)
        if circuit.state is CircuitState.HALF_OPEN and is_probe:
            changes.append(self._eject(index, EjectionReason.PROBE_FAILED, now))
        elif circuit.state is CircuitState.CLOSED:
            reason = self._reason_to_eject(circuit)
            if reason is not None and index in self._in_use and self._config.enabled:
                changes += self._make_room(now)
                if self._num_ejected < self.max_ejected:
                    changes.append(self._eject(index, reason, now))
        return changes

    def rest(self, index: int, span: Micros, now: Micros) -> None:
        """A backend has asked to be left alone for `span`."""
        circuit = self.circuits[index]
        circuit.rests_until = max(circuit.rests_until or 0, now + span)

    def on_busy(self, index: int, now: Micros, *, is_probe: bool) -> Sequence[Transition]:
        """A backend has answered that it has no room. A probe has shown nothing then, and the next one waits for a while."""
        circuit = self.circuits[index]
        if is_probe:
            self.rest(index, self._base // 10, now)
        circuit.busy_in_a_row += 1
        circuit.needs_attention = True
        return self.try_early(self._in_use, now) if circuit.busy_in_a_row >= self._config.consecutive_failures else ()

    def begin_probe(self, index: int) -> bool:
        """Count a request that is sent to a backend. Return whether it is a probe: call `end_probe` then."""
        circuit = self.circuits[index]
        if circuit.state is not CircuitState.HALF_OPEN:
            return False
        circuit.num_probes += 1
        return True

    def end_probe(self, index: int) -> None:
        """Note that a probe is over: it has succeeded or failed, or the backend was busy."""
        self.circuits[index].num_probes -= 1

    def lose_probe(self, index: int, now: Micros) -> Sequence[Transition]:
        """A probe is over and has shown nothing, because its client has left, say. A client that left may have waited in vain,
        so the next one waits for a while."""
        self.end_probe(index)
        changes = [*self.advance(now)]
        if self.circuits[index].state is CircuitState.HALF_OPEN:
            changes.append(self._eject(index, EjectionReason.PROBE_FAILED, now))
        return changes

    def wants_probe(self, index: int) -> bool:
        """Return whether the next request should be sent to this backend as a probe."""
        circuit = self.circuits[index]
        return circuit.state is CircuitState.HALF_OPEN and not circuit.num_probes and circuit.rests_until is None

    def try_early(self, indices: Collection[int], now: Micros) -> Sequence[Transition]:
        """Make that backend of `indices` half-open which would be back first, unless one wants a probe already."""
        if any(self.wants_probe(index) for index in indices):
            return ()
        ejected = [index for index in indices if self.circuits[index].state is CircuitState.EJECTED]
        first = self._take_early(ejected, now)
        return () if first is None else (self._open_half(first, EjectionReason.OTHERS_FAIL),)

    def _make_room(self, now: Micros) -> Sequence[Transition]:
        """Use the backend again that would be back first, if as many are ejected as may be."""
        if self._num_ejected < self.max_ejected:
            return ()
        first = self._take_early([index for index in self._in_use if self.circuits[index].is_ejected], now)
        return () if first is None else (self._close(first, EjectionReason.OTHERS_FAIL, now),)

    def _take_early(self, indices: Collection[int], now: Micros) -> int | None:
        """Return which of `indices` comes back early, if one may."""
        may_return = [index for index in indices if self.circuits[index].early_until <= now]
        if not may_return:
            return None
        first = min(may_return, key=lambda index: (self.circuits[index].until, index))
        self.circuits[first].early_until = now + self._base // 2
        return first

    def reset(self, index: int, now: Micros) -> Sequence[Transition]:
        """A backend is down, so its polls decide about it: forget its failures."""
        changes, circuit = [*self.advance(now)], self.circuits[index]
        if circuit.is_ejected:
            changes.append(self._close(index, EjectionReason.RESET, now))
        self._forget_failures(circuit)
        circuit.rests_until = None
        return changes

    def advance(self, now: Micros) -> Sequence[Transition]:
        """End the ejections and rests that are over by `now`."""
        changes = []
        for index, circuit in enumerate(self.circuits):
            if circuit.rests_until is not None and circuit.rests_until <= now:
                circuit.rests_until = None
            if circuit.state is CircuitState.EJECTED and circuit.until <= now:
                changes.append(self._open_half(index, EjectionReason.TIME_IS_UP))
        return changes

    def next_deadline(self) -> Micros | None:
        """Return when `advance` has something to do, or None."""
        ends = [c.until for c in self.circuits if c.state is CircuitState.EJECTED]
        return min([*ends, *(c.rests_until for c in self.circuits if c.rests_until is not None)], default=None)

    def check(self) -> None:
        """Raise InvariantError if the books do not balance."""
        for index, circuit in enumerate(self.circuits):
            if circuit.num_probes < 0:
                raise InvariantError(f"backend {index} has {circuit.num_probes} probes")
            if circuit.is_ejected and not (circuit.needs_attention and circuit.num_ejections):
                raise InvariantError(f"backend {index} is ejected, and a success would not be told")

    def _count_in_window(self, circuit: Circuit, now: Micros) -> None:
        if circuit.window_began_at is None or now - circuit.window_began_at >= self._window:
            circuit.window_began_at, circuit.window_answers, circuit.window_failures = now, circuit.num_answers, 0
        circuit.window_failures += 1

    def _reason_to_eject(self, circuit: Circuit) -> EjectionReason | None:
        if circuit.consecutive_failures >= self._config.consecutive_failures:
            return EjectionReason.CONSECUTIVE_FAILURES
        total = circuit.window_failures + circuit.num_answers - circuit.window_answers
        if total >= self._config.min_requests and circuit.window_failures >= self._config.failure_rate * total:
            return EjectionReason.FAILURE_RATE
        return None

    @property
    def _num_ejected(self) -> int:
        return sum(self.circuits[index].is_ejected for index in self._in_use)

    def _eject(self, index: int, reason: EjectionReason, now: Micros) -> Transition:
        circuit = self.circuits[index]
        was_tried_early = circuit.state is CircuitState.HALF_OPEN and circuit.until > now
        if circuit.state is CircuitState.CLOSED:
            circuit.num_ejections = max(0, circuit.num_ejections - (now - circuit.closed_at) // self._base)
        circuit.state, circuit.needs_attention = CircuitState.EJECTED, True
        if was_tried_early:
            return Transition(index, circuit.state, EjectionReason.EARLY_PROBE_FAILED, circuit.until)
        circuit.num_ejections += 1
        circuit.until = now + min(self._base * circuit.num_ejections, self._longest)
        return Transition(index, circuit.state, reason, circuit.until)

    def _open_half(self, index: int, reason: EjectionReason) -> Transition:
        circuit = self.circuits[index]
        circuit.state, circuit.probe_successes = CircuitState.HALF_OPEN, 0
        return Transition(index, circuit.state, reason, None)

    def _close(self, index: int, reason: EjectionReason, now: Micros) -> Transition:
        circuit = self.circuits[index]
        circuit.state, circuit.closed_at = CircuitState.CLOSED, now
        self._forget_failures(circuit)
        return Transition(index, circuit.state, reason, None)

    def _forget_failures(self, circuit: Circuit) -> None:
        circuit.consecutive_failures, circuit.window_began_at, circuit.needs_attention = 0, None, False
        circuit.busy_in_a_row = 0
