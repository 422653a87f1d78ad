"""Plug-ins that each break one promise of their kind."""

from __future__ import annotations

from collections.abc import Sequence

from maitred.admission import AdmissionPolicy, Refusal, Ticket
from maitred.core.contracts import BatchShape, Choice, FleetLoad, FleetView, SortKey
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.latency import StepTimes
from maitred.programs import ActingEstimator, ToolTimes
from maitred.queueing import KeyPolicy, LengthEstimator, LengthPredictor, TimeInvariantPriority
from maitred.routing import BaseRouter, BaseScorer
from maitred.workload import LineReader, RowParser, TraceFormat, TraceRow


class ByTheClock(KeyPolicy):
    """The key is another one whenever it is asked for."""

    def __init__(self) -> None:
        self._asked = 0

    def key(self, seq: SequenceState) -> SortKey:
        self._asked += 1
        return ((self._asked * 7) % 5, seq.arrival_index)


class Nosy(BaseRouter):
    """Looks at queues, and does not say so."""

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        return Choice(min(fleet, key=lambda view: view.waiting or 0).index, "nosy")


class Presuming(BaseScorer):
    """Takes each instance to report its queue."""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return [1 / (1 + view.waiting) for view in fleet]  # type: ignore[operator]


class Boastful(BaseScorer):
    """Scores beyond 1."""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return [float(view.waiting or 0) for view in fleet]


class Curious(AdmissionPolicy):
    """Looks at the load without having asked for it."""

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        return Refusal() if len(load.instances) > 3 else None


class Guessing(StepTimes):
    """Runs are reckoned with the time of their first step."""

    def micros(self, batch: BatchShape) -> float:
        return 10 + batch.context_tokens

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return steps * self.step_time(batch)


class Fickle(TimeInvariantPriority):
    """Its ranks are not those of its scores."""

    def compute(self, request: Request, now: Micros) -> float:
        return -float(request.prompt_tokens)

    def rank(self, request: Request) -> float:
        return float(request.prompt_tokens)


class Forgetful(LengthPredictor, LengthEstimator):
    """Expects more each time it is asked."""

    def __init__(self) -> None:
        self._next = 100.0

    def estimator(self) -> LengthEstimator:
        return self

    def expected_tokens(self, seq: SequenceState) -> float | None:
        self._next += 1
        return self._next

    def observe(self, request: Request, length: int) -> None:
        pass


class Backwards(TraceFormat):
    """Signals anything, each row a microsecond before the one above it."""

    example = "row"
    step = -1

    def __init__(self) -> None:
        self._at = 100

    def recognises(self, first_line: str) -> bool:
        return False

    def make_parser(self, lines: LineReader) -> RowParser:
        def parse(line: str) -> TraceRow:
            self._at += self.step
            return TraceRow(self._at, 1, 1)

        return parse


class Careless(Backwards):
    """Signals anything, in order."""

    step = 1


class Impatient(ActingEstimator):
    """Counts a program less each time it is asked."""

    changes_with_time = True

    def __init__(self) -> None:
        self._asked = 0

    def share(self, acting_for: Micros, tools: ToolTimes) -> float:
        self._asked += 1
        return 1 / self._asked
