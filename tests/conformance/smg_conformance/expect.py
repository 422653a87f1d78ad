"""Compares a record with what is expected of it, key by key. A key that no rule knows raises CannotCheck.

<request>, r0..r3, "a and b", all     what came of these requests; the keys are those of `answers`
rejected, admitted                    the same, of all that were answered with an error, with 200
statuses_sorted                       of all requests
walls_s_sorted, bulk_walls_s_sorted   of all requests (of that class) that were answered 200
engine_order                          the requests the engines saw, in that order, and no others
engine: {order, disconnects}
engine_inflight_at_0.5s, interactive_running_at_0.6s, engine_inflight_after_i1
death_order                           the requests that were not answered 200, in the order of their ends
effective_reservations                by class, and `unreserved`; desired_total_reserved: their sum before scaling down
metrics, metrics_at_0.5s, metrics_after_i1
mode                                  of admission: priority, legacy, off
recorded, recorded_x                  of a defect: not looked at
wanted, wanted_x                      of a defect: checked like `expect` and `expect.x`; in words: see `intentions`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from . import answers, intentions
from .failures import Failure, differs, outside
from .metrics import Metrics, compare
from .moments import Event, Moment, read_moment, read_names
from .record import CLASSES, Record, Request
from .scenario import CannotCheck, Scenario

Rule = Callable[[Any, Record, "re.Match[str]"], Iterator[Failure]]


def check(scenario: Scenario, record: Record) -> Iterator[Failure]:
    """Everything that is not as expected. Raises CannotCheck."""
    for key, value in effective(scenario).items():
        yield from _check(key, value, record)
    if record.state["in_flight"] or record.state["waiting"]:
        yield Failure(f"at the end {record.state['in_flight']} are in flight and {record.state['waiting']} wait still")


def samples(scenario: Scenario, requests: list[str]) -> dict[str, Moment]:
    """When metrics are to be read, by key. Raises CannotCheck."""
    keys = [key for key in effective(scenario) if re.fullmatch(r"metrics_(at|after)_.+", key)]
    return {key: _moment(key.removeprefix("metrics_"), requests) for key in keys}


def effective(scenario: Scenario) -> dict[str, Any]:
    """What is expected in fact: of a defect, what is wanted instead of what was recorded. Raises CannotCheck."""
    if scenario.kind == "match":
        return scenario.expect
    expected: dict[str, Any] = {}
    for key, value in scenario.expect.items():
        if key == "wanted" and isinstance(value, dict):
            expected |= value
        elif key.startswith("wanted_"):
            expected[key.removeprefix("wanted_")] = value
        elif not re.match(r"recorded(_|$)", key):
            expected[key] = value
    if any(re.match(r"wanted(_|$)", key) for key in scenario.expect):
        return expected
    raise CannotCheck("a defect without anything that is wanted instead")


def _check(key: str, value: Any, record: Record) -> Iterator[Failure]:
    names = read_names(key, list(record.requests))
    if names:
        for name in names:
            yield from answers.check(value, record.requests[name], record)
        return
    for pattern, rule in _RULES:
        found = pattern.fullmatch(key)
        if found is not None:
            yield from rule(value, record, found)
            return
    raise CannotCheck(f"the expectation {key!r}")


def _rejected(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    wanted = [r for r in record.requests.values() if (r.exchange.status != 200) is (key[0] == "rejected")]
    if not wanted:
        yield Failure(f"expected that some are {key[0]}, got none")
    for request in wanted:
        yield from answers.check(value, request, record)


def _statuses(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    got = sorted(request.exchange.status or 0 for request in record.requests.values())
    yield from differs("statuses", sorted(value), got)


def _walls(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    chosen = [r for r in record.requests.values() if key["class"] in (None, r.asked_class)]
    walls = sorted(r.exchange.wall for r in chosen if r.exchange.status == 200)
    if len(walls) != len(value):
        shown = ", ".join(f"{r.name} {r.exchange}" for r in chosen)
        yield Failure(f"{key[0]}: expected {len(value)} answers with 200, got {len(walls)} ({shown})")
    else:
        for n, (expected, got) in enumerate(zip(value, walls, strict=True), 1):
            yield from outside(f"{key[0]}, number {n}", expected, got)


def _order(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from differs("order at the engines", value, [visit.name for visit in record.visits])


def _engine(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    for part, expected in value.items():
        if part == "order":
            yield from _order(expected, record, key)
        elif part == "disconnects":
            got = sum(visit.end == "disconnected" for visit in record.visits)
            yield from differs("connections closed on the engines", expected, got)
        else:
            raise CannotCheck(f"engine: the key {part!r}")


def _running(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    who, moment = key["who"], _moment(key["moment"], list(record.requests))
    if moment.names and moment.event is not Event.ENDED:
        raise CannotCheck(f"the expectation {key[0]!r}")
    ends = [record.exchange(name).ended_at for name in moment.names]
    start = max((end for end in ends if end is not None), default=record.started_at)

    def counts(request: Request) -> bool:
        return who in ("engine", request.asked_class)

    got = record.at_engines(start + moment.delay, counts)
    if got != value:
        yield Failure(f"{key[0]}: expected {value}, got {got}", late=True)


def _deaths(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    dead = [r.exchange for r in record.requests.values() if not r.exchange.left and r.exchange.status != 200]
    got = [exchange.name for exchange in sorted(dead, key=lambda exchange: exchange.ended_at or 0.0)]
    yield from differs("order of deaths", value, got)


def _reservations(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    known = {**record.reserved, "unreserved": record.capacity - sum(record.reserved.values())}
    for name, expected in value.items():
        if name not in known:
            raise CannotCheck(f"effective_reservations: {name!r}")
        yield from differs(f"effective reservation, {name}", expected, known[name])


def _desired(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from differs("desired reservations in sum", value, record.desired)


def _metrics(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    metrics: Metrics = record.metrics_at.get(key[0], record.metrics)
    yield from (Failure(text) for text in compare(value, metrics))


def _mode(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from differs("mode of admission", value, record.state["mode"])


def _intention(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    yield from intentions.check(value, record)


def _note(value: Any, record: Record, key: re.Match[str]) -> Iterator[Failure]:
    return iter(())


def _moment(text: str, requests: list[str]) -> Moment:
    """`at_0.5s`, `after_i1`."""
    seconds = re.fullmatch(r"at_(\d+(?:\.\d+)?) ?s?", text)
    return Moment(float(seconds[1])) if seconds else read_moment(text.replace("after_", "after ", 1), requests)


_CLASS = "|".join(CLASSES)
_RULES: Final[tuple[tuple[re.Pattern[str], Rule], ...]] = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (r"rejected|admitted", _rejected),
        (r"statuses_sorted", _statuses),
        (rf"(?:(?P<class>{_CLASS})_)?walls_s_sorted", _walls),
        (r"engine_order", _order),
        (r"engine", _engine),
        (rf"(?P<who>engine|{_CLASS})_(?:inflight|in_flight|running)_(?P<moment>(?:at|after)_.+)", _running),
        (r"death_order", _deaths),
        (r"effective_reservations", _reservations),
        (r"desired_total_reserved", _desired),
        (r"metrics(?:_(?:at|after)_.+)?", _metrics),
        (r"mode", _mode),
        (r"wanted", _intention),
        (r"note", _note),
    )
)
