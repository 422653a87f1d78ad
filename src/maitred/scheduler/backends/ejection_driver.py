"""Drive the outlier detector in real time: one clock, one timer, a line in the log for each change of a circuit.

`AttemptOutcomes` tells what each attempt came to. `Placement` asks `candidates` where to send a request while `is_restricted`,
that is while a half-open backend wants a probe or an engine rests. Otherwise every backend that serves the model may be chosen.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Final, NamedTuple

from maitred.core.histogram import Histogram
from maitred.core.units import Micros, from_seconds, to_seconds
from maitred.scheduler.backends.backend import Backend, UpstreamRequest
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.scheduler.ejection import CircuitState, EjectionConfig, EjectionReason, OutlierDetector, Transition
from maitred.wire.clock import Clock

log = logging.getLogger("maitred.gateway")
_WORDS: Final = {
    EjectionReason.CONSECUTIVE_FAILURES: "{failures} failures in a row",
    EjectionReason.FAILURE_RATE: "too many of its answers are failures",
    EjectionReason.PROBE_FAILED: "a probe has failed",
}


class SilenceWatch:
    """When each backend has last said anything.

    A backend is silent if no byte of an answer has come from it while others have answered. What is usual tells how long that
    may last: a fleet that answers within a second is not like one whose answers take minutes and are not streamed.
    """

    def __init__(self, config: EjectionConfig, backends: Sequence[Backend]) -> None:
        self._config, self._backends = config, backends
        self._heard: dict[int, _Heard] = {}
        self._silence, self._valid_until = 0, 0
        """The longest silence that is usual, and until when it is not asked for again."""

    def silent_requests(self, backend: Backend, now: Micros) -> Sequence[UpstreamRequest]:
        """Return the requests that wait at a silent backend for so long that they count as failures, or none if those say too
        little: fewer than enough must be streams, whose first byte is due long before the last, and must have waited together
        for as long as enough of them. O(requests there)."""
        num_answers, all_answers = backend.circuit.num_answers, sum(b.circuit.num_answers for b in self._backends)
        heard = self._heard.get(backend.index, _NEVER_HEARD)
        last_data_at = max((sent.last_data_at for sent in backend.requests), default=now)
        if num_answers != heard.num_answers or last_data_at > heard.at:
            self._heard[backend.index] = _Heard(now, num_answers, all_answers)
            return ()
        if all_answers == heard.all_answers:
            return ()
        silence = self._longest_silence(now)
        since = now - silence
        if heard.at > since:
            return ()
        waiting = [
            sent
            for sent in backend.requests
            if not sent.is_committed and sent.waits_since(since) and self._has_another(backend, sent.model)
        ]
        enough = 1 if backend.circuit.is_ejected else self._config.consecutive_failures
        streams_waited = sum(now - sent.sent_at for sent in waiting if sent.request.stream)
        return waiting if len(waiting) >= enough or streams_waited >= enough * silence else ()

    def forget(self, index: int) -> None:
        """Forget the backend with this number."""
        self._heard.pop(index, None)

    def _has_another(self, backend: Backend, model: str) -> bool:
        """Return whether another backend could have a request. Without one, a slow engine is better than none."""
        return any(b is not backend and b.serves(model) and not b.circuit.is_ejected for b in self._backends)

    def _longest_silence(self, now: Micros) -> Micros:
        # Not for each poll: of 500 backends that answer slowly the polls of a second took a third of a core for it.
        if now >= self._valid_until:
            least, times = from_seconds(self._config.silence_secs), Histogram()
            for backend in self._backends:
                times.merge(backend.first_data_times)
            self._silence, self._valid_until = max(least, 2 * times.bound_of(0.99)), now + least // 10
        return self._silence


class _Heard(NamedTuple):
    """When a backend was last heard, and the answers until then."""

    at: Micros
    num_answers: int
    all_answers: int
    """Of all backends."""


_NEVER_HEARD: Final = _Heard(0, 0, 0)


class RealTimeEjection:
    """The only user of the outlier detector of a fleet. Used inside one event loop."""

    def __init__(
        self, config: EjectionConfig, backends: Sequence[Backend], on_changed: Callable[[], object], clock: Clock
    ) -> None:
        """`on_changed` is called when other backends may get requests than before."""
        self.detector = OutlierDetector(config, [backend.circuit for backend in backends])
        self.counts: Counter[tuple[str, str]] = Counter()
        """How often the circuit of which backend became what, by URL and state."""
        self.is_restricted = False
        """Whether `candidates` must be asked."""
        self._backends = backends
        """Those that are there."""
        self._urls = [backend.url for backend in backends]
        """By number, those that have gone included."""
        self._on_changed, self._clock = on_changed, clock
        self._timer = DeadlineTimer(self._on_due, clock)
        self._last_problem: dict[int, str] = {}
        self._silence, self._enough = SilenceWatch(config, backends), config.consecutive_failures

    def seat(self, backend: Backend) -> None:
        """Watch a backend that has come, in place of the one that had its number before."""
        self.detector.seat(backend.index, backend.circuit)
        if backend.index == len(self._urls):
            self._urls.append(backend.url)
        self._urls[backend.index] = backend.url
        self._last_problem.pop(backend.index, None)
        self._silence.forget(backend.index)

    def reseat(self, seats: Sequence[Backend]) -> None:
        """Watch these backends, by number."""
        self.detector.circuits[:] = [backend.circuit for backend in seats]
        self._urls[:] = [backend.url for backend in seats]
        self._last_problem.clear()

    @property
    def num_answers(self) -> int:
        """Requests that were answered so far without a failure."""
        return sum(circuit.num_answers for circuit in self.detector.circuits)

    def candidates(self, model: str, serving: Sequence[Backend], *, may_probe: bool) -> Sequence[Backend]:
        """Return the backends of which one may get a request: that which wants a probe, if `may_probe`, or those of `serving`
        that do not rest."""
        probed = self.backend_to_probe(model) if may_probe else None
        if probed is not None:
            return (probed,)
        return tuple(backend for backend in serving if backend.circuit.rests_until is None)

    def backend_to_probe(self, model: str) -> Backend | None:
        """Return the half-open backend that wants a request of `model` as a probe, or None."""
        if not self.is_restricted:
            return None
        return next((b for b in self._backends if self.detector.wants_probe(b.index) and b.serves(model)), None)

    def last_resort(self, model: str, tried: Sequence[Backend]) -> Sequence[Backend]:
        """Return the ejected backend that is tried early with a request of `model`, which all others have failed, or none.
        O(backends)."""
        ejected = {b.index: b for b in self._backends if b.circuit.is_ejected and b.serves(model) and b not in tried}
        detector = self.detector
        self._settle(detector.try_early(ejected, self._clock.now()))
        half_open = [b for b in ejected.values() if b.circuit.state is CircuitState.HALF_OPEN and b.circuit.rests_until is None]
        # One that has answered a probe takes more requests that nobody else does.
        return [b for b in half_open if detector.wants_probe(b.index)] or [b for b in half_open if b.circuit.probe_successes]

    def rest_time(self, serving: Sequence[Backend]) -> Micros | None:
        """Return how long all of `serving` rest, µs, or None if one of them does not."""
        ends = [backend.circuit.rests_until for backend in serving]
        known = [end for end in ends if end is not None]
        return max(0, min(known) - self._clock.now()) if ends and len(known) == len(ends) else None

    def begin(self, sent: UpstreamRequest) -> None:
        """A request is sent to a backend of which the circuit needs attention."""
        sent.is_probe = sent.is_unanswered_probe = self.detector.begin_probe(sent.backend.index)
        self._settle(())

    def on_answer_begins(self, sent: UpstreamRequest) -> None:
        """The first data of a stream has come, which decides nothing; but if it is a probe, the next one may be sent."""
        self._answer_probe(sent)
        self._settle(())

    def end(self, sent: UpstreamRequest) -> None:
        """A probe has left its backend without an outcome. If it had no answer, its client may have waited in vain."""
        sent.is_probe = False
        if sent.is_unanswered_probe:
            sent.is_unanswered_probe = False
            self._settle(self.detector.lose_probe(sent.backend.index, self._clock.now()))

    def on_success(self, sent: UpstreamRequest) -> None:
        """A backend has answered a request, and its circuit needs attention."""
        self._settle(self.detector.on_success(sent.backend.index, self._clock.now(), is_probe=self._end_probe(sent)))

    def on_failure(self, sent: UpstreamRequest, problem: str) -> None:
        """A backend has failed a request."""
        index = sent.backend.index
        self._last_problem[index] = problem
        self._settle(self.detector.on_failure(index, self._clock.now(), is_probe=self._end_probe(sent)))

    def on_busy(self, sent: UpstreamRequest) -> None:
        """A backend has no room at present."""
        was_probe = self._end_probe(sent)
        self._settle(self.detector.on_busy(sent.backend.index, self._clock.now(), is_probe=was_probe))

    def rest(self, backend: Backend, span: Micros) -> None:
        """A backend has asked to be left alone for `span`."""
        self.detector.rest(backend.index, span, self._clock.now())
        self._settle(())

    def find_silent(self, backend: Backend) -> Sequence[UpstreamRequest]:
        """Count the requests as failures that wait at a backend which says nothing, and return them if it is ejected now."""
        silent = self._silence.silent_requests(backend, self._clock.now())
        for sent in islice(cycle(silent), max(len(silent), self._enough)):
            self.on_failure(sent, "it says nothing while others answer")
        return silent if backend.circuit.state is CircuitState.EJECTED else ()

    def reset(self, backend: Backend) -> None:
        """Forget the failures of a backend that is down. The caller asks anew which backends serve what."""
        self._settle(self.detector.reset(backend.index, self._clock.now()), tells=False)

    def close(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _end_probe(self, sent: UpstreamRequest) -> bool:
        was_probe, sent.is_probe = sent.is_probe, False
        self._answer_probe(sent)
        return was_probe

    def _answer_probe(self, sent: UpstreamRequest) -> None:
        if sent.is_unanswered_probe:
            sent.is_unanswered_probe = False
            self.detector.end_probe(sent.backend.index)

    def _on_due(self) -> None:
        self._settle(self.detector.advance(self._clock.now()))

    def _settle(self, changes: Sequence[Transition], *, tells: bool = True) -> None:
        """Carry out the changes that an input has brought about."""
        detector = self.detector
        for change in changes:
            self._log(change)
            self.counts[self._urls[change.backend], change.state] += 1
        self.is_restricted = any(
            detector.wants_probe(index) or circuit.rests_until is not None for index, circuit in enumerate(detector.circuits)
        )
        if changes and tells:
            self._on_changed()
        self._timer.set_to(detector.next_deadline())

    def _log(self, change: Transition) -> None:
        url = self._urls[change.backend]
        if change.state is CircuitState.EJECTED:
            if change.reason is EjectionReason.EARLY_PROBE_FAILED:  # Nothing has changed.
                return
            why = _WORDS[change.reason].format(failures=self.detector.circuits[change.backend].consecutive_failures)
            secs, last = to_seconds((change.until or 0) - self._clock.now()), self._last_problem.get(change.backend, "")
            log.warning("backend %s is ejected for %.3g s: %s, the last: %s", url, secs, why, last)
        elif change.state is CircuitState.HALF_OPEN:
            if change.reason is EjectionReason.TIME_IS_UP:
                log.info("backend %s is half-open: single requests are sent to it as probes", url)
        elif change.reason is EjectionReason.OTHERS_FAIL:
            log.warning("backend %s is in use again before its time, because the others fail", url)
        elif change.reason is EjectionReason.PROBES_SUCCEEDED:
            log.warning("backend %s is in use again: its probes have succeeded", url)
