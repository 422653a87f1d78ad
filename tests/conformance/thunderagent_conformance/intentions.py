"""What is wanted of a defect, and what a note takes back, where it is said in words.

`wanted` has clauses with semicolons between them, and each comes to one of these checks:

mark the smallest prefix / no more ... marked    the most marked programs at once were needed, all of them
withdraw marks                                   at the end none is marked where nothing overflows
no pause/resume ping-pong, hysteresis            no program was paused again after a resume, or resumed again after a pause
re-read the capacity                             the gateway knows the capacity of each backend, and none overflows
answer 409 or 499 and do not forward             requests that waited when their program was released: this status, no engine
acting when/after/at ... ends                    a program reasons while a request of it is under way, and acts otherwise
resumed where it fits, per-backend fit, starve   no waiting program would fit a backend
in vain, frees nothing                           no program is paused while that did not end the overflow
amount at the mark, counter                      tokens to be freed by marked programs are counted while there are some
unknown capacity                                 every request is served

A `note` changes what was recorded where it says what is a defect of it:

status 500 for ... is a defect (wanted 400)      that status is expected instead, whatever the text
the usage chunk reaching a client ... defects    no such chunk, and one line fewer
dropped Authorization header ... defects         the header that the client sent
wanted: P1, NEW, P2                              instead of the recorded list of the same names

What was recorded beside `wanted` counts, unless it breaks what is wanted (a scenario that was recorded with a flag on and off
has the defect in one of the two).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..smg_conformance.failures import Failure, differs
from ..smg_conformance.scenario import CannotCheck
from .record import Observation, Record
from .scenario import Scenario

BUFFER_TOKENS = 100


def effective(scenario: Scenario) -> dict[str, Any]:
    """What is expected in fact, without what is wanted in words. Raises CannotCheck."""
    expected = {key: value for key, value in scenario.expect.items() if not re.match(r"(recorded|wanted)(_|$)", key)}
    for key, value in scenario.expect.items():
        if key == "wanted" and isinstance(value, Mapping):
            expected |= value
        elif key.startswith("wanted_"):
            expected[key.removeprefix("wanted_")] = value
    if _no_ping_pong in _rules(scenario) and expected.get("pauses", 0) > 1 < expected.get("resumes", 0):
        # It was recorded with the defect: so often it must not come, and not to what came of that.
        kept = (key for key, value in expected.items() if key not in ("pauses", "resumes") and not isinstance(value, Mapping))
        expected = {key: expected[key] for key in kept}
    notes = f"{scenario.expect.get('note', '')}; {scenario.note}"
    for pattern, change in _NOTES:
        if found := re.search(pattern, notes):
            expected = change(expected, found, scenario)
    if scenario.kind == "defect" and not _wanted(scenario) and expected == scenario.expect:
        raise CannotCheck("a defect without anything that is wanted instead")
    return expected


def check(scenario: Scenario, record: Record) -> Iterator[Failure]:
    """What is wanted in words. Raises CannotCheck."""
    for rule in _rules(scenario):
        yield from rule(record)


def _wanted(scenario: Scenario) -> Any:
    return scenario.expect.get("wanted")


Rule = Callable[[Record], Iterator[Failure]]


def _rules(scenario: Scenario) -> Sequence[Rule]:
    """Raises CannotCheck for a clause that none knows."""
    wanted = _wanted(scenario)
    if wanted is None or isinstance(wanted, Mapping):
        return []
    if not isinstance(wanted, str):
        raise CannotCheck(f"wanted: {wanted!r}")
    return [_rule_for(clause.strip()) for clause in wanted.split(";")]


def _rule_for(clause: str) -> Rule:
    for pattern, make in _PHRASES:
        if found := re.search(pattern, clause, re.IGNORECASE):
            return make(found)
    raise CannotCheck(f"wanted: {clause!r}")


def _marks_needed(record: Record) -> Iterator[Failure]:
    """Compared with the programs at that instant: the smallest prefix that covers the overflow is marked, or one program."""
    seen = record.marks
    got = (seen.of_backends("marked_for_pause"), seen.of_backends("future_paused_tokens"))
    for name, page in seen.pages.items():
        overflow = page.get("capacity_overflow", 0)
        if overflow > 0:
            wanted = _smallest_covers(seen, name, overflow)
            if got not in wanted:
                yield Failure(f"expected marked programs and their tokens {' or '.join(map(str, wanted))}, got {got}")
            return
    if got != (0, 0):
        yield Failure(f"expected no marked program without an overflow, got {got[0]} of {got[1]} tokens")


def _smallest_covers(seen: Observation, backend: str, overflow: int) -> list[tuple[int, int]]:
    """The number and the tokens of the programs that may be marked for an overflow."""
    here = [said for said in seen.programs.values() if said["backend"] == backend and said["status"] == "reasoning"]
    sizes = sorted(said["total_tokens"] for said in here)
    prefix: list[int] = []
    while sum(prefix) + BUFFER_TOKENS * len(prefix) < overflow and len(prefix) < len(sizes):
        prefix.append(sizes[len(prefix)])
    single = next((size for size in sizes if size + BUFFER_TOKENS >= overflow), None)
    return [(len(prefix), sum(prefix)), *([] if single is None else [(1, single)])]


def _marks_withdrawn(record: Record) -> Iterator[Failure]:
    if not record.end.of_backends("capacity_overflow"):
        yield from differs("marked programs at the end", 0, record.end.of_backends("marked_for_pause"))


def _no_ping_pong(record: Record) -> Iterator[Failure]:
    for program in {change.program for change in record.changes}:
        own = [change for change in record.changes if change.program == program and change.action in ("pause", "resume")]
        if len(own) > 2 or [change.action for change in own] == ["resume", "pause"]:
            yield Failure(f"{program}: expected no pause after a resume, got {', '.join(map(str, own))}")


def _capacity_known(record: Record) -> Iterator[Failure]:
    for name, capacity in zip(record.config.backends, record.config.backend_capacity_tokens, strict=True):
        page = record.end.pages.get(name, {})
        got = (page.get("cache_config") or {}).get("total_tokens_capacity")
        yield from differs(f"capacity of {name}", capacity, got)
        yield from differs(f"overflow of {name}", 0, page.get("capacity_overflow"))
    for request in record.requests:
        fits = record.config.fits_somewhere(request.send.characters // 5)
        status = request.exchange.status or 0
        if fits is not (status == 200) or (not fits and not 400 <= status < 500):
            wanted = "200" if fits else "a refusal: it fits no backend"
            yield Failure(f"{request.exchange.name}: expected {wanted}, got {request.exchange}")


def _refused_at_release(found: re.Match[str]) -> Rule:
    statuses = [int(status) for status in re.findall(r"\b[45]\d\d\b", found[0])]
    forwards_not = re.search(r"not forward", found.string) is not None

    def rule(record: Record) -> Iterator[Failure]:
        for released in record.released:
            yield from differs(f"release of {released.program}", True, _said_released(released.exchange.json))
            waited = [
                request
                for request in record.requests_of(released.program)
                if request.exchange.sent_at < released.at and (request.exchange.ended_at or released.at) >= released.at
            ]
            if not waited:
                yield Failure(f"{released.program}: expected a request that waits when its program is released, got none")
            for request in waited:
                if request.exchange.status not in statuses:
                    yield Failure(
                        f"{request.exchange.name}: expected {' or '.join(map(str, statuses))}, got {request.exchange}"
                    )
                if forwards_not and record.visit(request) is not None:
                    yield Failure(f"{request.exchange.name}: expected at no engine, got {record.backend_of(request)}")

    return rule


def _said_released(answer: object) -> object:
    return answer.get("released") if isinstance(answer, dict) else answer


def _acting_after(record: Record) -> Iterator[Failure]:
    for when, seen in {**record.observations, "the end": record.end}.items():
        for name, said in seen.programs.items():
            wanted = "reasoning" if record.is_under_way(name, seen.at) else "acting"
            yield from differs(f"{when}: status of {name}", wanted, said["status"])


def _not_in_vain(record: Record) -> Iterator[Failure]:
    paused = [name for name, said in record.end.programs.items() if (said["state"], said["status"]) == ("paused", "acting")]
    overflow = record.end.of_backends("capacity_overflow")
    if paused and overflow:
        yield Failure(f"{', '.join(paused)} paused, and {overflow} tokens too many are left")


def _counter_follows_marks(record: Record) -> Iterator[Failure]:
    for when, seen in {**record.observations, "the end": record.end}.items():
        marked, tokens = seen.of_backends("marked_for_pause"), seen.of_backends("future_paused_tokens")
        if (marked == 0) is not (tokens == 0):
            yield Failure(f"{when}: {marked} programs are marked, and {tokens} tokens counted")


def _all_served(record: Record) -> Iterator[Failure]:
    for request in record.requests:
        if request.exchange.status != 200:
            yield Failure(f"{request.exchange.name}: expected 200, got {request.exchange}")


def _resumed_where_it_fits(record: Record) -> Iterator[Failure]:
    for name, said in record.end.programs.items():
        if said["state"] != "paused" or said["status"] != "reasoning":
            continue
        for backend, page in record.end.pages.items():
            capacity = (page.get("cache_config") or {}).get("total_tokens_capacity", 0)
            used = page["active_program_tokens"] + BUFFER_TOKENS * page["active_program_count"]
            if used + said["total_tokens"] + BUFFER_TOKENS <= capacity * 0.97:
                yield Failure(f"{name} of {said['total_tokens']} tokens waits, and {backend} has {capacity - used} left")


def _fixed(rule: Rule) -> Callable[[re.Match[str]], Rule]:
    return lambda found: rule


_PHRASES: Final[Sequence[tuple[str, Callable[[re.Match[str]], Rule]]]] = (
    (r"mark the smallest|no more .*mark|smallest (?:prefix|single)|over-?mark", _fixed(_marks_needed)),
    (r"withdraw|cancel .*mark|marks? .*(?:withdrawn|cancelled)", _fixed(_marks_withdrawn)),
    (r"ping-pong|hysteresis", _fixed(_no_ping_pong)),
    (r"re-?read the capacity|capacity .*re-?read", _fixed(_capacity_known)),
    (r"answer [45]\d\d.*", _refused_at_release),
    (r"\bacting\b.*\b(?:when|after|at|once)\b|(?:returns?|becomes?|back) (?:to )?acting", _fixed(_acting_after)),
    (r"resumed? (?:wherever|where|when) (?:it|one) fits|per-backend fit|starv", _fixed(_resumed_where_it_fits)),
    (r"\bin vain\b|frees? nothing", _fixed(_not_in_vain)),
    (r"amount at (?:the )?mark|\bcounter\b", _fixed(_counter_follows_marks)),
    (r"unknown capacity|capacity .*unknown", _fixed(_all_served)),
)
Expected = dict[str, Any]


def _other_status(expected: Expected, found: re.Match[str], scenario: Scenario) -> Expected:
    recorded, wanted = int(found[1]), int(found[2])
    rows = expected.get("answers")
    if not isinstance(rows, list):
        raise CannotCheck(f"note: {found[0]!r}")
    changed = [{**row, "status": wanted, "text": None} if row["status"] == recorded else row for row in rows]
    return {**expected, "answers": changed}


def _no_usage_chunk(expected: Expected, found: re.Match[str], scenario: Scenario) -> Expected:
    if not expected.get("client_saw_usage_chunk"):
        raise CannotCheck(f"note: {found[0]!r}")
    lines = {"client_data_lines": expected["client_data_lines"] - 1} if "client_data_lines" in expected else {}
    return {**expected, "client_saw_usage_chunk": False, **lines}


def _authorization_kept(expected: Expected, found: re.Match[str], scenario: Scenario) -> Expected:
    headers = {name.lower(): value for name, value in scenario.sends[-1].headers.items()}
    return {**expected, "backend_authorization": headers.get("authorization")}


def _other_order(expected: Expected, found: re.Match[str], scenario: Scenario) -> Expected:
    names = [name.strip() for name in found[1].split(",")]
    for key, value in expected.items():
        if isinstance(value, list) and all(isinstance(name, str) for name in value) and sorted(value) == sorted(names):
            return {**expected, key: names}
    raise CannotCheck(f"note: {found[0]!r}")


_NOTES: Final[Sequence[tuple[str, Callable[[Expected, re.Match[str], Scenario], Expected]]]] = (
    (r"status (\d+) for [^;]* is a defect \(wanted (\d+)\)", _other_status),
    (r"usage chunk reaching a client [^;]*\bdefects?\b", _no_usage_chunk),
    (r"dropped Authorization header[^;]*\bdefects?\b", _authorization_kept),
    (r"wanted: ([\w.-]+(?:, [\w.-]+)+)", _other_order),
)
