"""What engines know of the requests that they had (`Run`), held beside what the gateway says that it did.

- a request is at an engine only while it holds a slot: it comes after the grant, and its connection is closed after the end
- a request of an agent program is at the engine that has its memory, as long as no engine has failed
- a victim is stopped soon after it was told to
- an engine fails a request at most `max_attempts` times, and all requests together are sent again as their budget allows

An engine sees a request later than the gateway does, and one whose connection was cut may never see its end. So only runs over
connections that nothing has disturbed count, and an end may be seen `MAX_UNWIND` later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from maitred.core.units import MILLISECOND, SECOND, Micros, to_seconds
from maitred.gateway.config import RetryConfig
from maitred.testing.world.booked import Hold, Span
from maitred.testing.world.books import Books
from maitred.testing.world.engines import Run
from maitred.testing.world.program_books import Place

MAX_UNWIND: Final = SECOND
"""Time within which the connection of a request that has ended is closed, and the engine sees it."""
_MAX_DELAY: Final = 100 * MILLISECOND
"""What is sent is there by then."""
_BUDGET_SPAN: Final = 10 * SECOND + _MAX_DELAY
"""A budget for retries may have saved up what its floor brings in 10 s."""


class EngineBooks:
    """The runs of all engines."""

    def __init__(self, runs: Iterable[Run], is_excused: Callable[[Micros, Micros], bool]) -> None:
        """`is_excused` says whether time has passed between two instants in which no program ran."""
        self._runs: defaultdict[str, list[Run]] = defaultdict(list)
        for run in sorted(runs, key=lambda run: run.began_at):
            self._runs[run.mark].append(run)
        self._is_excused = is_excused

    def check_holds(self, books: Books) -> Iterator[str]:
        """Yield which requests were at an engine without a slot, and which victims were not stopped."""
        for mark, runs in self._runs.items():
            for run in runs:
                if self._counts(run, books) and not any(self._is_within(run, hold) for hold in books.holds[mark]):
                    yield f"request {mark} was at an engine from {run.began_at} to {run.ended_at} with {books.holds[mark]}"
        for mark, told_at in books.preemptions:
            for run in self._runs[mark]:
                ended_at = run.ended_at
                goes_on = ended_at is None or ended_at > told_at + MAX_UNWIND
                if run.began_at <= told_at and goes_on and self._counts(run, books):
                    yield f"the victim {mark} was told to stop at {told_at}, and went on until {ended_at}"

    def check_places(self, places: Mapping[str, Sequence[Place]], books: Books, *, until: Micros) -> Iterator[str]:
        """Yield which requests were at an engine where their programs had no memory, if there are programs. From `until` on
        engines may fail: then a request that one has failed goes to another one without its program, and so does a probe."""
        for mark, runs in self._runs.items() if places else ():
            for run in runs:
                may_be_at = {engine for at, engine in places.get(mark, ()) if at <= run.began_at}
                if run.began_at < until and self._counts(run, books) and run.engine not in may_be_at:
                    yield f"request {mark} was at engine {run.engine} at {run.began_at}, its program had memory at {may_be_at}"

    def silences(self, patience: Micros) -> Iterator[Micros]:
        """Yield from when on an engine may have been silent about a request for longer than a gateway has patience, which is as
        good as a failure."""
        runs = (run for each in self._runs.values() for run in each)
        return (run.began_at + patience for run in runs if run.ended_at is None or run.ended_at - run.began_at > patience)

    def check_attempts(self, max_attempts: int, num_preemptions: Mapping[str, int]) -> Iterator[str]:
        """Yield which requests the engines have had too often."""
        for mark, runs in self._runs.items():
            # A request that was lost with a kept connection is no attempt for the gateway, and the engine may have read it.
            most = 2 * max_attempts + num_preemptions.get(mark, 0)
            num_failed = sum(run.has_failed and not _is_disturbed(run) for run in runs)
            if len(runs) > most or num_failed > max_attempts + num_preemptions.get(mark, 0):
                yield f"request {mark} has come to engines {len(runs)} times, and {num_failed} times it got a 500"

    def check_budget(
        self, retry: RetryConfig, lives: Sequence[Span], requests: Collection[Span], preemptions: Collection[tuple[str, Micros]]
    ) -> Iterator[str]:
        """Yield whether more requests were sent again than the budget allows, in any span of a life of the gateway.
        `requests` has for each request the span from its first byte to its end, as its client saw them. A request that was a
        victim (`preemptions`) while its engine failed it is sent again for that, and costs no retry."""
        stopped_at = defaultdict[str, list[Micros]](list)
        for mark, at in preemptions:
            stopped_at[mark].append(at)
        # A retry is counted when its engine has failed it: it may wait for memory or a slot before it comes to another one.
        again = sorted(
            (run.ended_at, later.began_at)
            for mark, runs in self._runs.items()
            for run, later in pairwise(runs)
            if run.has_failed and run.ended_at is not None and not _is_disturbed(run)
            if not any(run.began_at - _MAX_DELAY <= at <= later.began_at for at in stopped_at[mark])
        )
        for began_at, ended_at in lives:
            retries = [at for at, sent_at in again if began_at <= at and sent_at <= ended_at]
            for first, since in enumerate(retries):
                for count, until in enumerate(retries[first:], 1):
                    num_requests = sum(begun <= until and ended >= began_at for begun, ended in requests)
                    floor = retry.budget_floor_per_sec * to_seconds(until - since + _BUDGET_SPAN)
                    most = floor + retry.budget_share * num_requests + 1
                    if count > most:
                        yield f"{count} requests were sent again from {since} to {until}, and their budget allows {most:.1f}"
                        return

    def _counts(self, run: Run, books: Books) -> bool:
        """Return whether what an engine knows of a run can be held against the gateway."""
        if _is_disturbed(run) or run.ended_at is None:
            return False
        ended_at = run.ended_at
        is_blind = any(run.began_at <= until and ended_at >= since for since, until in books.blind)
        return not is_blind and not self._is_excused(run.began_at, ended_at)

    @staticmethod
    def _is_within(run: Run, hold: Hold) -> bool:
        ends_in_time = hold.ended_at is None or (run.ended_at is not None and run.ended_at <= hold.ended_at + MAX_UNWIND)
        return hold.began_at <= run.began_at and ends_in_time


def _is_disturbed(run: Run) -> bool:
    return run.connection is None or run.connection.is_disturbed
