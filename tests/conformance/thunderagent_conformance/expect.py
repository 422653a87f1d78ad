"""Compares a record with what is expected of it, key by key. A key that no rule knows raises CannotCheck.

<observation>, final          the programs then, at the end; a program: that one at the end
<observation>_total_tokens    the sum over the programs then
<program>_answered, _backend, _admitted_after_s, _wait_after_release_s_max
assignment, E_backend, status, wait_s_max
state_sequence                the maps of states that record_state_changes saw
pause_order, resume_order     programs (with their tokens) in the order of these decisions; pauses, resumes: how many
resume_log                    [program, backend] in order
overflow_tokens, capacity_overflow, marked_for_pause, future_paused_tokens, with _<observation>
                              of all backends, then; without one, at any observation
estimate_then_after_answer    tokens of each program when its request is at the engine, and after the answer
client_..., backend_received_keys, backend_<field>, backend_authorization
health, metrics_page_one_backend, profile_<field>, profiles_after_release, csv_header, csv_rows, paths
release_answer, answers       of POST /programs/release: of the last one, and of other bodies {body, status, text}
GET /path                     its status
recorded, recorded_x          of a defect: not looked at
wanted, note                  in words: see `intentions`
decay_on, decay_off, ...      of a scenario that is played in several ways: what comes of that one
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ..smg_conformance.failures import Failure, differs
from ..smg_conformance.scenario import CannotCheck
from . import snapshots, traffic
from .record import Observation, Question, Record
from .scenario import Scenario

RELEASE = "/programs/release"
Rule: TypeAlias = Callable[[Any, Record, "re.Match[str]"], Iterator[Failure]]


def check(expected: Mapping[str, Any], record: Record) -> Iterator[Failure]:
    """Everything that is not as expected, and what is left in the gateway's books. Raises CannotCheck."""
    for key, value in expected.items():
        rule, found = _rule_for(key, record)
        yield from rule(value, record, found)
    if record.state["in_flight"] or record.state["waiting"]:
        yield Failure(f"at the end {record.state['in_flight']} are in flight and {record.state['waiting']} wait still")


def questions(expected: Mapping[str, Any]) -> Sequence[Question]:
    """What is to be asked at the end. Raises CannotCheck."""
    asked: list[Question] = []
    for key, value in expected.items():
        if found := _QUESTION.fullmatch(key):
            asked.append((found["method"], found["path"], ""))
        elif key == "answers":
            asked += [("POST", RELEASE, row["body"]) for row in value]
        elif key == "paths":
            asked += [("GET", path, "") for path in (*value, _NO_PATH)]
        elif key == "profiles_after_release":
            asked.append(("GET", "/profiles", ""))
    return asked


def sees_estimates(expected: Mapping[str, Any]) -> bool:
    """Whether tokens of requests at the engine are expected."""
    return "estimate_then_after_answer" in expected


def check_keys(expected: Mapping[str, Any], scenario: Scenario) -> None:
    """Raises CannotCheck for a key that no rule knows, before anything is played."""
    record = Record(scenario.config, scenario.sends)
    record.observations = dict.fromkeys(scenario.observations, Observation())
    for key in expected:
        _rule_for(key, record)


def _rule_for(key: str, record: Record) -> tuple[Rule, re.Match[str]]:
    """The rule for a key, and how the key matches it. Raises CannotCheck."""
    for pattern, rule in _RULES:
        found = pattern.fullmatch(key)
        if found is not None and _is_known(found.groupdict(), record):
            return rule, found
    raise CannotCheck(f"the expectation {key!r}")


def _is_known(groups: Mapping[str, str | None], record: Record) -> bool:
    program, observation = groups.get("program"), groups.get("observation")
    if program is not None and not record.requests_of(program):
        return False
    return observation is None or observation == "final" or observation in record.observations


def _seen(observation: str, record: Record) -> Observation:
    return record.end if observation == "final" else record.observations[observation]


def _programs(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from snapshots.programs(key["observation"], value, _seen(key["observation"], record))


def _program(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from snapshots.program(key["program"], value, record.end.programs.get(key["program"]))


def _total_tokens(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    seen = _seen(key["observation"], record)
    yield from differs(key[0], value, sum(said["total_tokens"] for said in seen.programs.values()))


def _of_backends(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    field = "capacity_overflow" if key["field"] == "overflow_tokens" else key["field"]
    if key["observation"] is not None:
        yield from differs(key[0], value, _seen(key["observation"], record).of_backends(field))
        return
    seen = {name: said.of_backends(field) for name, said in {**record.observations, "final": record.end}.items()}
    if value not in seen.values():
        yield Failure(f"{key[0]}: expected {value}, got {seen}")


def _state_sequence(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from differs("state sequence", value, record.state_changes)


def _order(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    """Names, or [name, tokens] of programs: their tokens at the end, which those of idle ones keep."""
    names = [row[0] if isinstance(row, list) else row for row in value]
    got = [change.program for change in record.changes if change.action == key["action"]]
    yield from differs(key[0], names, got[: len(names)] if key["action"] == "resume" else got)
    for row in value:
        if isinstance(row, list):
            yield from differs(f"{key[0]}: tokens of {row[0]}", row[1], record.end.programs.get(row[0], {}).get("total_tokens"))


def _count(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from differs(key[0], value, sum(change.action == key["action"] for change in record.changes))


def _resume_log(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    got = [[change.program, change.backend] for change in record.changes if change.action == "resume"]
    yield from differs("resume log", value, got)


def _answers(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    for row in value:
        exchange = record.asked["POST", RELEASE, row["body"]]
        what = f"POST {RELEASE} {row['body']}"
        yield from differs(what, row["status"], exchange.status)
        if row.get("text") is not None:
            yield from differs(f"{what}: the answer", _read(row["text"]), exchange.json)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise CannotCheck(f"the answer {text!r}") from None


def _status_of(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from differs(key[0], value, record.asked[key["method"], key["path"], ""].status)


def _paths(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    """Each is answered in another way than a path that there is not."""
    for path in value:
        if record.asked["GET", path, ""].body == record.asked["GET", _NO_PATH, ""].body.replace(
            _NO_PATH.encode(), path.encode()
        ):
            yield Failure(f"expected the path {path}, got {record.asked['GET', path, '']}")


def _profiles(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from differs("GET /profiles", value, record.asked["GET", "/profiles", ""].json)


def _csv_rows(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from differs("rows of the CSV", value, max(0, len(record.csv.splitlines()) - 1))


def _csv_header(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from differs("header of the CSV", value, record.csv.partition("\n")[0].strip())


def _nothing(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    return iter(())


def _of_program(rule: Callable[[str, Any, Record], Iterator[Failure]]) -> Rule:
    return lambda value, record, key: rule(key["program"], value, record)


def _of_all(rule: Callable[[Any, Record], Iterator[Failure]]) -> Rule:
    return lambda value, record, key: rule(value, record)


_NO_PATH: Final = "/no-such-path"
_QUESTION: Final = re.compile(r"(?P<method>GET|POST|DELETE) (?P<path>/\S*)")
_RULES: Final[Sequence[tuple[re.Pattern[str], Rule]]] = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (r"note", _nothing),
        (r"(?P<observation>.+)_total_tokens", _total_tokens),
        (r"(?P<observation>.+)", _programs),
        (r"(?P<program>.+)_answered", _of_program(traffic.answered)),
        (r"(?P<program>.+)_admitted_after_s", _of_program(traffic.admitted_after)),
        (r"(?P<program>.+)_wait_after_release_s_max", _of_program(traffic.wait_after_release)),
        (r"(?P<program>.+)_backend", _of_program(traffic.backend)),
        (r"(?P<program>.+)", _program),
        (r"assignment", _of_all(traffic.assignment)),
        (r"status", _of_all(traffic.statuses)),
        (r"wait_s_max", _of_all(traffic.waits_at_most)),
        (r"state_sequence", _state_sequence),
        (r"(?P<action>pause|resume)_order", _order),
        (r"(?P<action>pause|resume)s", _count),
        (r"resume_log", _resume_log),
        (
            r"(?P<field>overflow_tokens|capacity_overflow|marked_for_pause|future_paused_tokens)(?:_(?P<observation>.+))?",
            _of_backends,
        ),
        (r"estimate_then_after_answer", _of_all(traffic.estimates)),
        (r"client_data_lines", _of_all(traffic.data_lines)),
        (r"client_saw_usage_chunk", _of_all(traffic.saw_usage)),
        (r"backend_(?:received_)?(.+)", lambda value, record, key: traffic.received(key[1], value, record)),
        (r"health", lambda value, record, key: snapshots.part("health", value, record.end.health)),
        (r"metrics_page_one_backend", _of_all(snapshots.metrics_of)),
        (r"profile_(.+)", lambda value, record, key: snapshots.profile(key[1], value, record)),
        (r"profiles_after_release", _profiles),
        (r"csv_rows", _csv_rows),
        (r"csv_header", _csv_header),
        (r"paths", _paths),
        (r"release_answer", _of_all(traffic.release_answer)),
        (r"answers", _answers),
        (_QUESTION.pattern, _status_of),
    )
)
