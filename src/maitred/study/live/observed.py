"""What clients saw, as the rows of a simulation (`sim.Results`), so that every table, report and file takes both.

arrival       the planned instant, from which all latencies count; the instant of sending if that was earlier (a timer)
admitted      when it was sent, and `queued` too
first_token   when the first token came; of an answer that does not stream, its end
last_token    when the last token came: TPOT ends here, and not at the end of the response, which may have more to say
finished      when the response ended
tokens        as the endpoint's `usage` counts them; without one, those asked for and the events with tokens
scheduled, instance, preemptions: unknown

**Gaps.** An event may have several tokens, or a part of one. The tokens of a completed request are spread over its events in
order, the first to the first event and the last to the last (`spread_tokens`). So there is one gap less than tokens, and the
mean gap of a request (ITL) is its TPOT. Tokens of one event have no gap between them, as a client sees it.

200, and whole                 completed
408, 429, 503                  rejected, or preempted with `x-smg-preempted`
400, 413, 422                  refused
its deadline has passed        timed out
any other status or failure    aborted
open when the run was stopped  unfinished
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from maitred.core.units import Micros
from maitred.emulator.clients.answers import Answer
from maitred.emulator.clients.sender import STOPPED, TIMED_OUT, SentRequest
from maitred.sim import Outcome, Results, Samples
from maitred.sim.results import NEVER, Ints, ItlGaps

_REJECTIONS: Final = frozenset((408, 429, 503))
_REFUSALS: Final = frozenset((400, 413, 422))
_PREEMPTED: Final = (b"x-smg-preempted", b"true")
_SAMPLES: Final = 256
_FALLEN_BEHIND: Final[Micros] = 10_000
"""A sender of which one request in a hundred is later than this has fallen behind."""


class Lateness(msgspec.Struct, frozen=True):
    """How much later than planned requests were sent, in µs."""

    p50: float
    p99: float
    worst: float

    @property
    def has_fallen_behind(self) -> bool:
        """Whether the sender was too slow for the workload, so that the endpoint got less than was planned."""
        return self.p99 > _FALLEN_BEHIND


class LengthCheck:
    """How the lengths of completed answers compare with those that were asked for."""

    def __init__(self) -> None:
        self.num_shorter = self.num_longer = 0
        self.tokens_shorter = self.asked_shorter = 0
        """Tokens of the answers that were shorter, and those that were asked for."""
        self.reasons: Counter[str] = Counter()
        """Why the shorter ones ended, as the endpoint says."""

    def add(self, asked: int, answer: Answer, output: int | None) -> None:
        """Compare an answer with the tokens that were asked for. Without a usage, events may hold several tokens, and only an
        answer that says it ended for another reason than its length is known to be shorter."""
        if output is None and answer.finish_reason in ("", "length"):
            return
        tokens = answer.num_events if output is None else output
        self.num_longer += tokens > asked
        if tokens < asked:
            self.num_shorter += 1
            self.tokens_shorter += tokens
            self.asked_shorter += asked
            self.reasons[answer.finish_reason or "none"] += 1


class Observation:
    """The requests of one run that have ended, in columns. `add` is called once for each."""

    def __init__(self) -> None:
        self._rows = array("q")
        """The values of `_COLUMNS`, row after row."""
        self._tenants, self._models, self._slo_classes = {"": 0}, {"": 0}, {"": 0}
        self._instants = array("q")
        """When tokens came: of the first request that was added, then of the second."""
        self.problems: Counter[str] = Counter()
        """What went wrong, with the number of requests."""
        self.num_without_usage = 0
        """Completed requests of which the endpoint did not say the tokens."""
        self.num_without_tokens = 0
        """Completed requests whose usage has tokens, and of which no event had any."""
        self.num_unstreamed = 0
        """Completed requests that asked for a stream, and got a whole answer."""
        self.lengths = LengthCheck()

    def __len__(self) -> int:
        return len(self._rows) // len(_COLUMNS)

    def add(self, sent: SentRequest) -> None:
        """Add a request that has ended."""
        request, answer, outcome = sent.job.request, sent.answer, outcome_of(sent)
        prompt, output, cached = sent.usage
        if sent.completed:
            self._check(sent)
        elif outcome is not Outcome.UNFINISHED:
            self.problems[_describe(sent)] += 1
        tokens = answer.num_events if output is None else output
        instants = spread_tokens(answer.instants, tokens) if sent.completed else answer.instants
        values = (
            request.id,
            sent.planned if sent.sent is None else min(sent.planned, sent.sent),
            sent.planned,
            _column(sent.sent),
            _column(answer.first),
            answer.instants[-1] if answer.instants else NEVER,
            NEVER if outcome is Outcome.UNFINISHED else _column(sent.ended),
            outcome,
            request.priority_class,
            request.prompt_tokens if prompt is None else prompt,
            tokens,
            cached or 0,
            self._tenants.setdefault(request.tenant, len(self._tenants)),
            self._models.setdefault(request.model, len(self._models)),
            self._slo_classes.setdefault(request.slo_class, len(self._slo_classes)),
            len(instants),
        )
        self._rows.extend(values)
        self._instants.extend(instants)

    def _check(self, sent: SentRequest) -> None:
        """Count what is odd about a completed request."""
        output, answer = sent.usage[1], sent.answer
        self.num_without_usage += output is None
        self.num_without_tokens += bool(output) and answer.first is None
        self.num_unstreamed += sent.job.request.stream and not answer.is_stream
        self.lengths.add(sent.job.output_tokens, answer, output)

    def _columns(self) -> dict[str, Ints]:
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
        return dict(zip(_COLUMNS, rows.T, strict=True))

    def lateness(self) -> Lateness | None:
        """Return how late requests were sent, or None if none was."""
        columns = self._columns()
        sent = columns["admitted"]
        late = np.maximum(0, sent - columns["planned"])[sent >= 0]
        return Lateness(*np.percentile(late, (50, 99, 100)).tolist()) if len(late) else None

    def results(self, end: Micros) -> Results:
        """Return all requests in the order of arrival. `end` is when the run ended."""
        columns = self._columns()
        gaps = _gaps(columns["request_id"], columns["num_instants"], np.array(self._instants, dtype=np.int64))
        order = np.lexsort((columns["request_id"], columns["arrival"]))
        columns = {name: column[order] for name, column in columns.items()}
        unknown = np.full(len(self), NEVER, dtype=np.int64)
        nothing = np.zeros(len(self), dtype=np.int64)
        return Results(
            request_id=columns["request_id"],
            arrival=columns["arrival"],
            admitted=columns["admitted"],
            first_token=columns["first_token"],
            last_token=columns["last_token"],
            finished=columns["finished"],
            prompt_tokens=columns["prompt_tokens"],
            output_tokens=columns["output_tokens"],
            cached_tokens=columns["cached_tokens"],
            queued=columns["admitted"],
            scheduled=unknown,
            wasted_tokens=nothing,
            outcome=columns["outcome"].astype(np.int8),
            priority_class=columns["priority_class"].astype(np.int8),
            tenant=columns["tenant"].astype(np.int32),
            model=columns["model"].astype(np.int32),
            slo_class=columns["slo_class"].astype(np.int32),
            instance=unknown.astype(np.int32),
            preemptions=nothing.astype(np.int32),
            retries=nothing.astype(np.int32),
            tenants=tuple(self._tenants),
            models=tuple(self._models),
            slo_classes=tuple(self._slo_classes),
            end=end,
            samples=_samples(columns, end),
            itl_gaps=gaps,
            is_measured=True,
        )


_COLUMNS: Final = (
    *("request_id", "arrival", "planned", "admitted", "first_token", "last_token", "finished", "outcome", "priority_class"),
    *("prompt_tokens", "output_tokens", "cached_tokens", "tenant", "model", "slo_class", "num_instants"),
)


def outcome_of(sent: SentRequest) -> Outcome:
    """Return how a request ended."""
    if sent.completed:
        return Outcome.COMPLETED
    if sent.problem in _OWN_ENDS:
        return _OWN_ENDS[sent.problem]
    if _PREEMPTED in sent.headers:
        return Outcome.PREEMPTED
    if sent.status in _REJECTIONS:
        return Outcome.REJECTED
    return Outcome.REFUSED if sent.status in _REFUSALS else Outcome.ABORTED


def spread_tokens(instants: Sequence[Micros], tokens: int) -> Sequence[Micros]:
    """Return when each of `tokens` tokens came, if events came at `instants`.

    Example: 8 tokens in three events at 10, 20 and 30 ms came at 10, 10, 10, 10, 20, 20, 20 and 30 ms.
    """
    last = len(instants) - 1
    if last < 1 or tokens < 1 or tokens == last + 1:
        return instants
    if tokens == 1:
        return instants[:1]
    return [instants[number * last // (tokens - 1)] for number in range(tokens)]


def _column(instant: Micros | None) -> Micros:
    return NEVER if instant is None else instant


_OWN_ENDS: Final = {STOPPED: Outcome.UNFINISHED, TIMED_OUT: Outcome.TIMED_OUT}


def _describe(sent: SentRequest) -> str:
    if sent.status in (0, 200):
        return sent.problem
    message = sent.answer.error_message
    return f"status {sent.status}" + (f": {message}" if message else "")


def _samples(columns: dict[str, Ints], end: Micros) -> Samples:
    """Return how many requests waited for their first token, and how many got tokens, at regular instants."""
    at = np.linspace(0, max(end, 1), _SAMPLES).astype(np.int64)
    ended = np.where(columns["finished"] >= 0, columns["finished"], end)
    first = np.where(columns["first_token"] >= 0, columns["first_token"], ended)
    arrived, began, gone = (np.searchsorted(np.sort(column), at, side="right") for column in (columns["arrival"], first, ended))
    return Samples(
        at=at,
        waiting=(arrived - began).astype(np.int32)[:, None],
        running=(began - gone).astype(np.int32)[:, None],
        blocks_used=np.zeros((len(at), 1), dtype=np.int32),
        total_blocks=0,
        outside_instances=np.zeros(len(at), dtype=np.int32),
        arrived=arrived,
        ended=gone,
    )


def _gaps(request_ids: Ints, num_instants: Ints, instants: Ints) -> ItlGaps:
    """Return the gaps between the tokens of each request, which are known one by one. `instants` has those of the first
    request, then those of the second."""
    none = np.zeros(0, dtype=np.int64)
    rows = np.repeat(np.arange(len(request_ids)), num_instants)
    is_gap = rows[1:] == rows[:-1]
    return ItlGaps(
        steps=none,
        spans=none,
        request_id=none,
        first_stretch=none,
        end_stretch=none,
        single_gap_request_id=request_ids[rows[1:][is_gap]],
        single_gaps=np.diff(instants)[is_gap],
    )
