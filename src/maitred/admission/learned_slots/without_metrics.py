"""Looks at an engine without metrics, made of our own streams.

A stream that answers runs; a request that is overdue waits in the engine. So (answered, overdue) is a look like (running,
waiting), and goes through the same search. Three things differ:

- An engine that runs out of KV memory evicts streams that had begun, and they fall silent. Then no limit is searched for; a
  cap of 0.9 · answered bounds the slots, once per service time, and rises by 2 % per service time when all is well again.
- A look that is far too low would be fatal with nothing to correct it: the limit is never confirmed below a quarter of the
  largest one.
- Where over half of the answers are not streamed, what waits follows from the streamed ones, once a second: by Little's law,
  completions per second times the time by which their first tokens come late. Without any stream nothing is learned: a limit
  that is known stays, and without one the number is a guess (`SlotState.GUESSED`).

*Example.* 64 slots before an engine of 16: 16 streams answer, 48 requests are overdue, in two looks. The limit is 16.
"""

from __future__ import annotations

from maitred.admission.learned_slots.limit_search import LimitSearch
from maitred.admission.learned_slots.signals import OwnLoad, PoolDemand
from maitred.core.units import SECOND, Micros


class StreamLooks:
    """The looks at one engine."""

    def __init__(self) -> None:
        self._cap: float | None = None
        self._cap_at: Micros = 0
        self._estimated_at: Micros | None = None

    def forget(self) -> None:
        """Forget all, because there are metrics (again)."""
        self._cap = self._estimated_at = None

    def look(self, search: LimitSearch, own: OwnLoad, demand: PoolDemand, period: Micros, now: Micros) -> int | None:
        """Look once. Return the cap of the slots, or None. `period` is the time since the last look."""
        if 2 * own.unstreamed > own.in_flight:
            self._estimate(search, own, demand, now)
            return None
        # Within a service time, what was sent before the last change is still there.
        interval = max(own.service_time, SECOND)
        if own.silent > max(1, 0.02 * own.in_flight):
            # 0.9, because what answers fits, but grows with its answers; then in smaller steps. XXX: guesses. To be
            # measured: how much of its throughput an engine loses that is sent less, and streams that stay silent.
            if self._cap is None or now - self._cap_at >= interval:
                self._cap = 0.9 * own.answered if self._cap is None else 0.93 * self._cap
                self._cap_at = now
        else:
            if self._cap is not None and now - self._cap_at >= interval:
                self._cap, self._cap_at = 1.02 * self._cap, now
            floor = search.largest_limit // 4
            if not own.overdue or own.answered >= floor:
                search.look(own.answered, own.overdue, own, demand, kv_usage=0.0, period=period, now=now)
        return None if self._cap is None else max(1, int(self._cap))

    def _estimate(self, search: LimitSearch, own: OwnLoad, demand: PoolDemand, now: Micros) -> None:
        streamed = own.in_flight - own.unstreamed
        if not streamed or (self._estimated_at is not None and now - self._estimated_at < SECOND):
            return
        self._estimated_at = now
        waiting = min(own.in_flight, round(own.ended_per_sec * own.ttft_excess / SECOND))
        search.look(own.in_flight - waiting, waiting, own, demand, kv_usage=0.0, period=SECOND, now=now)
