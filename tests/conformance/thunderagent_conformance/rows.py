"""Independent requests, one per row: raw bodies first, then objects with a `program_id`, or with a usage in the answer.

    {bad, [], "x"                the body as it is; up to the first row that was answered 200
    null, 7, "a", {"a": 1}       the value of `program_id`
    absent                       no `program_id`
    top+extra_body, extra_body   "top" at the top of the body, "inner" in its `extra_body`; the latter only
    usage.total_tokens=-50       `program_id` is t-50, and the answer reports that, as Python writes it

`recorded_programs_total_tokens_status` has the program of each row afterwards, and `other_paths` the answers of other paths.
The answer reports 5 tokens; a request has 9, estimated. What is wanted instead is said in words:

    4xx instead of 500                                  any 4xx where 500 was recorded
    program_id must be a non-empty string               4xx for any other, and no program
    usage.total_tokens must be a non-negative integer   any other (or larger than a context can be) counts as not reported
    no shared "default" program                         a request without an id is in no program

The rows that a clause concerns are checked with our flavour; with the other one they must only not be answered 500.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from ..smg_conformance.client import Exchange, Wanted, ask
from ..smg_conformance.failures import Failure, differs
from ..smg_conformance.scenario import CannotCheck
from ..smg_conformance.turns import Turns
from .engines import MODEL, EngineJournal, Orders, tag_of
from .gateway import Files, Flavour
from .play import CHAT, JSON_HEADERS, Stage, stage
from .scenario import Scenario

TIMELINE: Final = r"one POST /v1/chat/completions per row\b.*"
ANSWER_TOKENS: Final = 5
CHARACTERS: Final = 49
"""Of the body of a row with a usage: 9 tokens."""
MAX_TOKENS: Final = 2**40
_KEYS: Final = {"recorded_answers", "recorded_programs_total_tokens_status", "other_paths", "wanted", "note"}
_CLAUSES: Final = {
    "statuses": r"4xx instead of 500",
    "ids": r"program_id must be a non-empty string",
    "usage": r"usage\.total_tokens must be a non-negative integer",
    "default": r'no shared "default" program',
}


class Row(msgspec.Struct, frozen=True):
    """One request, and the answer that was recorded."""

    text: str
    recorded: int
    body: str
    usage: object = ANSWER_TOKENS
    program: str | None = None
    """The program that it should be in, or None."""
    clause: str | None = None
    """What is wanted of it instead of what was recorded, if anything."""


async def check(scenario: Scenario, flavour: Flavour, turns: Turns, details: list[str]) -> list[Failure]:
    """Raises CannotCheck, GatewayExited."""
    rows = read_rows(scenario)
    others = [_other_path(said) for said in scenario.expect.get("other_paths", ())]
    details.append(f"flavour {flavour}")
    with TemporaryDirectory(prefix="maitred-thunderagent-") as folder:
        async with stage(scenario.config, flavour, turns, Files(Path(folder))) as world, turns.playing():
            answers = [await _send(world, number, row) for number, row in enumerate(rows, 1)]
            programs = await world.page("/programs")
            seen = [await ask(world.gateway.url, Wanted(method, path, JSON_HEADERS, body)) for method, path, body, _ in others]
            details += [f"{row.text}: {answer} {answer.body[:200]!r}" for row, answer in zip(rows, answers, strict=True)]
            details += [f"programs: {programs}", *world.gateway.log]
    found = [failure for row, answer in zip(rows, answers, strict=True) for failure in _answer(row, answer, flavour)]
    for (method, path, _, status), answer in zip(others, seen, strict=True):
        found += differs(f"{method} {path}", status, answer.status)
    return found + list(_programs(scenario, rows, programs, flavour))


def read_rows(scenario: Scenario) -> Sequence[Row]:
    """Raises CannotCheck."""
    if not isinstance(scenario.timeline, str) or not re.fullmatch(TIMELINE, scenario.timeline):
        raise CannotCheck(f"the timeline {scenario.timeline!r}")
    if unknown := scenario.expect.keys() - _KEYS:
        raise CannotCheck(f"the expectation {sorted(unknown)[0]!r}")
    wanted = _clauses(scenario.expect.get("wanted", ""))
    rows = []
    is_raw = True
    for text, status in scenario.expect["recorded_answers"]:
        is_raw = is_raw and status != 200
        row = Row(text, status, text) if is_raw else _row(text, status)
        clause = "statuses" if status >= 500 else row.clause
        rows.append(msgspec.structs.replace(row, clause=clause if clause in wanted else None))
    return rows


def _clauses(words: str) -> set[str]:
    found: set[str] = set()
    for clause in filter(None, (clause.strip() for clause in words.split(";"))):
        names = [name for name, pattern in _CLAUSES.items() if re.fullmatch(pattern, clause)]
        if not names:
            raise CannotCheck(f"wanted: {clause!r}")
        found.update(names)
    return found


def _row(text: str, status: int) -> Row:
    if text == "absent":
        return Row(text, status, _body(), clause="default")
    if text in ("top+extra_body", "extra_body"):
        extra = {"extra_body": {"program_id": "inner"}}
        top = text.startswith("top")
        return Row(text, status, _body("top", **extra) if top else _body(**extra), program="top" if top else "inner")
    try:
        if usage := re.fullmatch(r"usage\.total_tokens=(.+)", text):
            value = ast.literal_eval(usage[1])
            program = f"t{value}"
            believed = type(value) is int and 0 <= value <= MAX_TOKENS
            return Row(text, status, _body(program), value, program, None if believed else "usage")
        value = json.loads(text)
    except ValueError:
        raise CannotCheck(f"the row {text!r}") from None
    is_id = isinstance(value, str) and bool(value)
    return Row(text, status, _body(value), program=value if is_id else None, clause=None if is_id else "ids")


_NO_ID: Final = object()


def _body(program: Any = _NO_ID, **extra: Any) -> str:
    named = {} if program is _NO_ID else {"program_id": program}
    return json.dumps({"model": MODEL, "messages": [], **named, **extra}, separators=(",", ":"))


def _other_path(said: Any) -> tuple[str, str, bytes, int]:
    """Method, path, body, status. Raises CannotCheck."""
    match said:
        case [str(words), int(status)] if found := re.fullmatch(r"(GET|POST|DELETE) (/\S*)", words):
            body = json.dumps({"model": MODEL, "messages": [], "prompt": "a", "input": "a"}) if found[1] == "POST" else ""
            return found[1], found[2], body.encode(), status
    raise CannotCheck(f"other_paths: {said!r}")


async def _send(world: Stage, number: int, row: Row) -> Exchange:
    journal: EngineJournal = world.journal
    journal.orders = {tag_of(None): Orders(usage={"total_tokens": row.usage})}
    return await ask(world.gateway.url, Wanted("POST", CHAT, JSON_HEADERS, row.body.encode()), f"row {number}")


def _answer(row: Row, answer: Exchange, flavour: Flavour) -> Iterator[Failure]:
    status = answer.status or 0
    is_refused = row.clause in ("statuses", "ids")
    if row.clause is not None and flavour is Flavour.THUNDERAGENT:
        if status >= 500 or not answer.complete:
            yield Failure(f"{row.text}: expected no 5xx, got {answer}")
    elif is_refused:
        if not 400 <= status < 500:
            yield Failure(f"{row.text}: expected a 4xx, got {answer}")
    elif status != row.recorded:
        yield Failure(f"{row.text}: expected {row.recorded}, got {answer} {answer.body[:200]!r}")


def _programs(scenario: Scenario, rows: Sequence[Row], programs: Any, flavour: Flavour) -> Iterator[Failure]:
    recorded = scenario.expect.get("recorded_programs_total_tokens_status", {})
    for row in rows:
        if row.program is None or (row.clause is not None and flavour is Flavour.THUNDERAGENT):
            continue
        wanted = [len(row.body) // 5, "acting"] if row.clause == "usage" else recorded.get(row.program)
        said = programs.get(row.program, {})
        yield from differs(f"program of {row.text}", wanted, [said.get("total_tokens"), said.get("status")])
    if flavour is Flavour.OURS:
        named = {row.program for row in rows if row.program is not None}
        yield from differs("programs", sorted(named), sorted(programs))
