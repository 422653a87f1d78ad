"""The recorded traffic: the rows of a record (`maitred serve --record`), joined with the decision log of the same run.

The record says when requests came, how long prompts and answers were, and when answers began and ended. The log says what no
record has: the class that a client asked for, which program has started which, whether the client left by itself, the rules in
force, and the slots. Both know a request by the id of its answer. Rows that the log does not know are left out and counted: the
record may begin before the log.

**What a request waits for.** A client that works in turns sends nothing before it has its answer. So a request of a program
comes a *think time* after the answers that it follows:

    it follows the answers of its program that had ended when it arrived, and the first request of a sub-agent those of the
    parent; its think time is the time from the last of their ends to its arrival
    a request without a program, and one with no such answer before it, comes when it came

    a ends at 2 s, b and c arrive at 3 s, b ends at 5 s, c at 6 s, d arrives at 8 s: b and c follow a by 1 s, d follows b and c
    by 2 s, whichever ends last
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from msgspec.structs import replace

from maitred.admission import ReleaseReason
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.request import PriorityClass
from maitred.core.units import Micros, from_seconds
from maitred.files.rotated import named_once
from maitred.study.calibration.measurements import check_counts, is_recording, parse_number, read_rows
from maitred.study.what_if.recorded_log import LoggedRequest, RulesInForce, path_names, read_log
from maitred.workload.formats.maitred import COMPLETED

_LEAST_JOINED: Final = 0.5
"""Share of the rows that the log must know, or it is of another run."""
_MOST_SECS: Final = 1e12
"""The largest instant or span; an `int` of 64 bits holds it in µs."""
_TOKENS: Final = ("prompt_tokens", "output_tokens", "max_output_tokens", "cached_tokens")
_TEXTS: Final = (
    *("arrival_secs", "class", "prompt_tokens", "output_tokens", "tenant", "max_output_tokens", "stream", "model", "program"),
    *("continues", "outcome", "cached_tokens", "backend", "sent_secs", "ttft_secs", "e2e_secs", "request_id"),
)


class RecordedRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One request as it was. Its index among the requests is its id. Times are in µs."""

    arrival: Micros
    """From the arrival of the first one."""
    asked: int
    """The `PriorityClass` that the client asked for, or that it had if the log does not say."""
    given: int
    """The `PriorityClass` that it had."""
    prompt_tokens: int
    output_tokens: int | None
    """None: not known, because it has not completed."""
    max_output_tokens: int | None
    stream: bool
    tenant: str
    model: str
    program: str
    parent_program: str
    continues: bool | None
    outcome: str
    cached_tokens: int
    backend: int
    """An index into `Recorded.backends`, or -1."""
    sent: Micros | None
    """From its arrival, as `ttft` and `e2e`."""
    ttft: Micros | None
    e2e: Micros
    client_left: bool
    """Whether the client has left before the answer was complete."""
    follows: tuple[int, ...] = ()
    """The requests for whose answers it waits."""
    think: Micros = 0
    """Time from the last of these answers to its arrival."""

    @property
    def is_complete(self) -> bool:
        return self.outcome == COMPLETED and self.output_tokens is not None


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was."""

    requests: Sequence[RecordedRequest]
    """In the order of arrival."""
    backends: tuple[str, ...]
    rules: RulesInForce
    overhead: Micros = 0
    """What the gateway took until it sent a request that did not wait, at the median."""
    kv_tokens: int | None = None
    """Tokens of KV memory of a backend, where the log knows it."""
    num_unknown: int = 0
    """Rows that the log does not know."""
    knows_asked: bool = True
    """Whether the log says which classes clients asked for."""

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.model for each in self.requests))


def read_recorded(logs: Sequence[Path], records: Sequence[Path], model: str | None = None) -> Recorded:
    """Return the run of a decision log and its record, each perhaps in several files, the oldest first; of requests to `model`
    alone, if one is named. Raises ConfigError for files that are something else, or of different runs, and for models that
    different engines serve."""
    said = read_log(logs)
    rows: list[_Row] = []
    backends: dict[str, int] = {}
    for path in named_once(records, "--record"):
        rows += _read_record(path, backends)
    if not rows:
        raise ConfigError("there are no requests in it", where=path_names(records))
    rows = _of_one_fleet(rows, model, path_names(records))
    backends = {name: i for i, name in enumerate(backends) if any(row.backend == i for _, row, _ in rows)}
    numbers = {old: new for new, old in enumerate(backends.values())}
    rows.sort(key=lambda row: row[0])
    known = [(arrival, row, said.by_id[key].pop(0)) for arrival, row, key in rows if said.by_id.get(key)]
    if len(known) < _LEAST_JOINED * len(rows):
        problem = f"it is the record of another run: the log knows {len(known):,} of its {len(rows):,} requests"
        raise ConfigError(
            problem, where=path_names(records), hint=f"give the one written beside {path_names(logs)}, and all files of the log"
        )
    origin = known[0][0]
    requests = [
        replace(_joined(row, told, from_seconds(arrival - origin)), backend=numbers.get(row.backend, -1))
        for arrival, row, told in known
    ]
    return Recorded(
        requests=with_causes(requests),
        backends=tuple(backends),
        rules=said.rules({row.model for _, row, _ in known}),
        overhead=int(median([row.sent for _, row, told in known if row.sent is not None and not told.waited] or [0])),
        kv_tokens=said.kv_tokens,
        num_unknown=len(rows) - len(known),
        knows_asked=any(told.asked is not None for _, _, told in known),
    )


_Row = tuple[float, RecordedRequest, str]


def _of_one_fleet(rows: Sequence[_Row], model: str | None, where: str) -> list[_Row]:
    """Return the rows of the model. Raises ConfigError if none is named, and different engines served several."""
    models = dict.fromkeys(row.model for _, row, _ in rows)
    if model is not None:
        if model not in models:
            raise ConfigError(f"no request is for the model {model!r}", where="--model", hint=nearest_name_hint(model, models))
        return [each for each in rows if each[1].model == model]
    used = {name: {row.backend for _, row, _ in rows if row.model == name and row.backend >= 0} for name in models}
    fleets = [each for each in used.values() if each]
    if any(each != fleets[0] for each in fleets):
        hint = f"replay one of them: --model {next(iter(models))}"
        raise ConfigError(f"different engines served its models {', '.join(models)}", where=where, hint=hint)
    return list(rows)


def _read_record(path: Path, backends: dict[str, int]) -> Iterable[_Row]:
    """Yield the arrival in seconds, the row, and the id of each request of a record. Raises ConfigError for another file."""
    if not is_recording(path):
        hint = "the file that maitred serve --record has written beside the log"
        raise ConfigError("it is no record of maitred serve", where=str(path), hint=hint)
    for line, (_, texts) in enumerate(read_rows(path, (), _TEXTS), 2):
        row = dict(zip(_TEXTS, texts, strict=True))
        yield _seconds(row, "arrival_secs", f"{path}:{line}"), _request(row, backends, f"{path}:{line}"), row["request_id"]


def _number(row: dict[str, str], name: str, place: str) -> float:
    return parse_number(row[name], name, place)


def _seconds(row: dict[str, str], name: str, place: str) -> float:
    value = _number(row, name, place)
    if not 0 <= value <= _MOST_SECS:
        raise ConfigError(f"{name} should be seconds, 0 or more, not {row[name]}", where=place)
    return value


def _request(row: dict[str, str], backends: dict[str, int], place: str) -> RecordedRequest:
    tokens = {name: _number(row, name, place) for name in _TOKENS if row[name]}
    check_counts(tokens, place)
    found = PriorityClass.from_label(row["class"])
    if found is None or "prompt_tokens" not in tokens:
        raise ConfigError("a row has a class and prompt_tokens", where=place)

    def time_of(name: str) -> Micros | None:
        return from_seconds(_seconds(row, name, place)) if row[name] else None

    output, limit = tokens.get("output_tokens"), tokens.get("max_output_tokens")
    return RecordedRequest(
        arrival=0,
        asked=found,
        given=found,
        prompt_tokens=max(1, int(tokens["prompt_tokens"])),
        output_tokens=None if output is None else max(1, int(output)),
        max_output_tokens=None if limit is None else int(limit),
        stream=row["stream"] != "false",
        tenant=row["tenant"],
        model=row["model"],
        program=row["program"],
        parent_program="",
        continues=None if not row["continues"] else row["continues"] == "true",
        outcome=row["outcome"],
        cached_tokens=int(tokens.get("cached_tokens", 0)),
        backend=backends.setdefault(row["backend"], len(backends)) if row["backend"] else -1,
        sent=time_of("sent_secs"),
        ttft=time_of("ttft_secs"),
        e2e=time_of("e2e_secs") or 0,
        client_left=False,
    )


def _joined(row: RecordedRequest, told: LoggedRequest, arrival: Micros) -> RecordedRequest:
    asked = None if told.asked is None else PriorityClass.from_label(told.asked)
    return replace(
        row,
        arrival=arrival,
        asked=row.given if asked is None else asked,
        parent_program=told.parent if told.parent != row.program else "",
        client_left=told.end == ReleaseReason.CLIENT_GONE and row.outcome == "broken_off",
    )


class _Program:
    """The answers of one program that a next request follows."""

    def __init__(self) -> None:
        self.under_way: list[int] = []
        self.ended: list[int] = []
        """Those of which no later request has ended: they are what the next request has waited for."""


def with_causes(requests: Sequence[RecordedRequest]) -> Sequence[RecordedRequest]:
    """Return the requests, in the order of arrival, with the answers that each follows."""
    programs: dict[tuple[str, str], _Program] = {}
    found = list(requests)
    for index, request in enumerate(requests):
        if not request.program:
            continue
        name = (request.tenant, request.program)
        source = programs.get(name) or programs.get((request.tenant, request.parent_program))
        if source is not None:
            _settle(source, requests, request.arrival)
            if source.ended:
                last = max(_end(requests[i]) for i in source.ended)
                found[index] = replace(request, follows=tuple(source.ended), think=request.arrival - last)
        programs.setdefault(name, _Program()).under_way.append(index)
    return found


def _settle(program: _Program, requests: Sequence[RecordedRequest], now: Micros) -> None:
    """Note which answers have ended by `now`."""
    done = sorted((i for i in program.under_way if _end(requests[i]) <= now), key=lambda i: _end(requests[i]))
    program.under_way = [i for i in program.under_way if _end(requests[i]) > now]
    for index in done:
        # One that arrived after another had ended has waited for it, so that who waits for the later waits for both.
        program.ended = [i for i in program.ended if _end(requests[i]) > requests[index].arrival] + [index]


def _end(request: RecordedRequest) -> Micros:
    return request.arrival + request.e2e
