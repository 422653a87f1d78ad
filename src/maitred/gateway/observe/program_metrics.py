"""The metrics of programs, in Prometheus' form: what is decided, what waits, and how full the KV memory of each backend is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from maitred.core.histogram import DURATION_BOUNDS, Histogram
from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import Micros, from_seconds
from maitred.gateway.observe.metric_families import counter, gauge, histogram
from maitred.programs import BackendMemory, Program, ProgramAction, ProgramDecision, ProgramPhase, ProgramState
from maitred.scheduler.interface import MemoryLease, ProgramMemories, RealTimePrograms

PREFIX = "maitred_programs_"
WAIT_BOUNDS = (*DURATION_BOUNDS, from_seconds(600), from_seconds(1800))
"""Upper bounds of waits for memory, in µs: up to the default of `max_wait_secs`."""


class ProgramCollector:
    """Counts what the driver of the programs does, and makes the metrics at a scrape."""

    def __init__(self, driver: RealTimePrograms, memories: ProgramMemories) -> None:
        self._driver = driver
        self._memories = memories
        self._waits: dict[PriorityClass, Histogram] = {c: Histogram(WAIT_BOUNDS) for c in PriorityClass}
        self._waiting_since: dict[RequestId, Micros] = {}
        driver.observers.append(self._on_decisions)
        driver.end_observers.append(self._on_request_ended)

    def families(self, *, state_failed: bool | None) -> Iterator[Metric]:
        """Yield all metrics. `state_failed` says whether the state cannot be written; None: none is kept."""
        core = self._driver.core
        states = Counter((program.state, program.phase) for program in core.programs)
        active_or_paused = (ProgramState.ACTIVE, ProgramState.PAUSED)
        pairs = [(state, status) for state in active_or_paused for status in ProgramPhase]
        by_state = (([state.value, status.value], states[state, status]) for state, status in pairs)
        yield gauge(PREFIX + "known", "Programs; requests without an id are each one.", ["state", "status"], by_state)
        yield gauge(PREFIX + "waiting_requests", "Requests that wait for KV memory.", [], [([], core.num_waiting)])
        made = (([action.value, reason.value], n) for (action, reason), n in self._driver.decision_counts.items())
        text = "Decisions about programs (pause, resume, mark, ...) and their requests (grant, wait, reject)."
        yield counter(PREFIX + "decisions", text, ["action", "reason"], made)
        waits = (([c.label], times) for c, times in self._waits.items())
        yield histogram(
            PREFIX + "wait_seconds", "Time that requests waited for KV memory, of those that did.", ["class"], waits
        )
        yield counter(PREFIX + "lost_kv_tokens", "Tokens of KV lost with backends.", [], [([], core.lost_kv_tokens)])
        yield from self._memory_families(list(core.backends))
        if state_failed is not None:
            failed = "1 if the state of programs cannot be written: the next run would not know the latest changes."
            yield gauge(PREFIX + "state_failed", failed, [], [([], state_failed)])

    def _memory_families(self, memories: Sequence[BackendMemory]) -> Iterator[Metric]:
        each = [(memory, self._labels(memory)) for memory in memories]
        bounded = [(memory, labels) for memory, labels in each if memory.capacity is not None]
        names = ["backend", "rank"]
        yield gauge(PREFIX + "count", "Programs with a place in this memory.", names, ((at, m.num_programs) for m, at in each))
        used = ((at, m.used) for m, at in each)
        yield gauge(PREFIX + "used_tokens", "Tokens that its programs need, buffers included.", names, used)
        shared = ((at, m.shared_tokens) for m, at in each)
        yield gauge(PREFIX + "shared_tokens", "Tokens that several of its programs share.", names, shared)
        marked = ((at, m.marked_tokens) for m, at in each)
        yield gauge(PREFIX + "marked_tokens", "Tokens that pausing marked programs will free.", names, marked)
        capacity = ((at, m.capacity or 0) for m, at in bounded)
        yield gauge(PREFIX + "capacity_tokens", "Its size, where that is known.", names, capacity)
        remaining = ((at, m.remaining) for m, at in bounded)
        yield gauge(PREFIX + "remaining_tokens", "What is left; negative if the programs need more.", names, remaining)

    def _labels(self, memory: BackendMemory) -> Sequence[str]:
        target = self._memories.target(memory.index)
        return [target.backend.url, str(target.rank or 0)]

    def _on_decisions(self, decisions: Sequence[ProgramDecision]) -> None:
        for decision in decisions:
            if decision.request is None:
                continue
            if decision.action is ProgramAction.WAIT:
                self._waiting_since.setdefault(decision.request, decision.at)
            elif self._waiting_since:
                self._end_wait(decision.request, decision.at)

    def _on_request_ended(self, lease: MemoryLease, program: Program | None) -> None:
        if self._waiting_since:
            self._end_wait(lease.request.id, self._driver.clock.now())

    def _end_wait(self, request_id: RequestId, now: Micros) -> None:
        since = self._waiting_since.pop(request_id, None)
        if since is None:
            return
        program = self._driver.core.program_of(request_id)
        label = PriorityClass.DEFAULT if program is None else program.priority_class
        self._waits[label].observe(now - since)
