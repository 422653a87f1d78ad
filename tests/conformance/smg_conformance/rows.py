"""Rows: requests, or start-ups of the gateway, that are independent of each other and have a result each.

A row of a request says what is sent as `header` (the value of x-smg-priority; a list: repeated) or as a `request` in words:

    acme asks system            with the key of tenant acme, x-smg-priority: system
    shared key, no key, wrong key
    header team-red asks bulk   with x-smg-tenant-id: team-red; `empty tenant header`: with an empty one
    ip asks system              with nothing that names a tenant
    unknown tenant              with the header of a tenant that the row's result names
    acme key + header team-red  both;  `no header`, `no prio header`: without x-smg-priority;  (in brackets: a remark)

A row of a start-up has the priority `yaml`, and whether the gateway `runs` or ends (`exit 1`: any status but 0).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from . import messages
from .client import Exchange, Wanted, ask
from .engines import Orders
from .failures import Failure, differs
from .gateway import GatewayExited
from .metrics import Metrics, Selector
from .play import stage
from .scenario import Base, CannotCheck, Config, Scenario
from .turns import Turns

TENANT_HEADER = "x-smg-tenant-id"
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


class RequestRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request, and what comes of it."""

    status: int
    header: str | list[str] | None = None
    header_name: str = "x-smg-priority"
    request: str | None = None
    class_: str | msgspec.UnsetType | None = msgspec.field(default=msgspec.UNSET, name="class")
    admitted_class: str | msgspec.UnsetType | None = msgspec.UNSET
    """As `class`: in which one it was admitted; null: it never came that far."""
    clamp: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    """The labels of the one clamp that was counted; null: none."""
    unknown_priority_value_total: int | None = None
    """By how much it has grown."""
    note: str = ""


class StartRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A start-up, and what comes of it."""

    case: str
    yaml: str
    outcome: str
    """`runs`, or `exit N`."""
    mode: str | None
    message_contains: str | None
    note: str = ""


async def check(scenario: Scenario, base: Base, turns: Turns, details: list[str]) -> list[Failure]:
    """Play all rows; what happened is appended to `details`. Raises CannotCheck, GatewayExited."""
    rows = scenario.expect["rows"]
    other = scenario.expect.keys() - {"rows", "note"}
    if other or not isinstance(scenario.timeline, str):
        raise CannotCheck(f"rows together with {', '.join(other) or 'a timeline'}")
    if rows and all("yaml" in row for row in rows):
        if not re.fullmatch(r"start the gateway with the file; if it runs, send one bulk request", scenario.timeline):
            raise CannotCheck(f"the timeline {scenario.timeline!r}")
        return await _starts([_read(row, StartRow) for row in rows], scenario, base, turns, details)
    return await _requests([_read(row, RequestRow) for row in rows], scenario, base, turns, details)


def _read(row: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise CannotCheck(f"the row {row!r}: {error}") from error


async def _requests(
    rows: Sequence[RequestRow], scenario: Scenario, base: Base, turns: Turns, details: list[str]
) -> list[Failure]:
    tenants = _tenants_in(str(scenario.timeline))
    sent = [_headers(row, scenario.config, tenants.get(n)) for n, row in enumerate(rows)]
    failures: list[Failure] = []
    async with stage(scenario, base, turns) as world, turns.playing():
        for n, (row, headers) in enumerate(zip(rows, sent, strict=True), 1):
            before = await world.gateway.metrics()
            answer = await ask(world.gateway.url, _chat(headers))
            added = (await world.gateway.metrics()).since(before)
            what = f"row {n} ({row.request or row.header!r})"
            details.append(f"{what}: {answer}")
            failures += [Failure(f"{what}: {text}") for text in _compare(row, answer, added)]
    return failures


def _compare(row: RequestRow, answer: Exchange, added: Metrics) -> Iterator[str]:
    if answer.status != row.status or not answer.complete:
        yield f"expected {row.status}, got {answer}"
    if row.status == 401 and answer.body:
        yield f"expected an empty body, got {answer.body!r}"
    for admitted in (row.class_, row.admitted_class):
        if admitted is not msgspec.UNSET:
            expected = [] if admitted is None else [{"class": admitted, "outcome": "admitted"}]
            yield from _labels("admit_total", expected, added)
    if row.clamp is not msgspec.UNSET:
        yield from _labels("clamp_total", [] if row.clamp is None else [row.clamp], added)
    if row.unknown_priority_value_total is not None:
        got = added.total(Selector("unknown_priority_value_total"))
        if got != row.unknown_priority_value_total:
            yield f"unknown_priority_value_total: expected {row.unknown_priority_value_total} more, got {got:g} more"


def _labels(metric: str, expected: list[dict[str, str]], added: Metrics) -> Iterator[str]:
    got = [dict(labels) for _, labels in added.select(Selector(metric))]
    if got != expected:
        yield f"{metric}: expected one more of {expected}, got one more of {got}"


def _tenants_in(timeline: str) -> Mapping[int, str]:
    """`one request per row; the first sends " team-red "`: tenant headers by index of the row. Raises CannotCheck."""
    found = re.fullmatch(r'one request per row(?:, one after another)?(?:; the (\w+) sends "(.*)")?', timeline)
    if found is None or (found[1] and found[1] not in _ORDINALS):
        raise CannotCheck(f"the timeline {timeline!r}")
    return {_ORDINALS.index(found[1]): found[2]} if found[1] else {}


def _headers(row: RequestRow, config: Config, tenant: str | None) -> list[tuple[str, str]]:
    """`tenant`: the tenant header to send, whatever the row says. Raises CannotCheck."""
    if row.request is None:
        values = row.header if isinstance(row.header, list) else [row.header]
        return [(row.header_name, value) for value in values if value is not None]
    text = re.sub(r"\s*\([^()]*\)", "", row.request).strip()
    said = re.fullmatch(r"(?P<identity>.+?)(?: asks (?P<class>\w+)| no (?:prio |priority )?header)?", text)
    assert said is not None  # it takes any text
    headers = [header for identity in said["identity"].split(" + ") for header in _identity(identity, row, config)]
    if tenant is not None:
        headers = [(name, tenant if name == TENANT_HEADER else value) for name, value in headers]
    return headers + ([("x-smg-priority", said["class"])] if said["class"] else [])


def _identity(identity: str, row: RequestRow, config: Config) -> Iterator[tuple[str, str]]:
    key = config.tenant_api_keys.get(identity.removesuffix(" key"))
    header = re.fullmatch(r"header (.+)", identity)
    if key is not None:
        yield ("authorization", f"Bearer {key}")
    elif identity == "shared key" and config.api_key:
        yield ("authorization", f"Bearer {config.api_key}")
    elif identity == "wrong key":
        yield ("authorization", "Bearer wrong")
    elif header is not None:
        yield (TENANT_HEADER, header[1])
    elif identity == "empty tenant header":
        yield (TENANT_HEADER, "")
    elif identity == "unknown tenant":
        yield (TENANT_HEADER, (row.clamp or {}).get("tenant", "header:nobody").removeprefix("header:"))
    elif identity not in ("ip", "no key"):
        raise CannotCheck(f"the request {row.request!r}")


def _chat(headers: Sequence[tuple[str, str]]) -> Wanted:
    chat = {"model": "mock", "messages": [{"role": "user", "content": "row"}], "metadata": Orders(name="row")}
    return Wanted("POST", "/v1/chat/completions", headers, msgspec.json.encode(chat))


async def _starts(rows: Sequence[StartRow], scenario: Scenario, base: Base, turns: Turns, details: list[str]) -> list[Failure]:
    found = await asyncio.gather(*(_start(row, scenario, base, turns, details) for row in rows))
    return [failure for failures in found for failure in failures]


async def _start(row: StartRow, scenario: Scenario, base: Base, turns: Turns, details: list[str]) -> list[Failure]:
    try:
        async with stage(scenario, base, turns, row.yaml) as world:
            answer = await ask(world.gateway.url, _chat([("x-smg-priority", "bulk")]))
            mode = (await world.gateway.state())["mode"]
            found = [*differs("mode", row.mode, mode), *differs("status of a bulk request", 200, answer.status)]
            outcome, log = "runs", world.gateway.log
    except GatewayExited as ended:
        outcome, log = f"exit {ended.code}", ended.log
        found = list(_complaint(ended))
    details += [f"{row.case}: {outcome}", *(f"  {line}" for line in log)]
    if (outcome == "runs") is not (row.outcome == "runs"):
        found = [Failure(f"expected: {row.outcome}, got: {outcome} ({' / '.join(log[-2:])})")]
    elif row.message_contains is not None:
        found += messages.check(row.message_contains, row.yaml, "\n".join(log))
    return [Failure(f"{row.case}: {failure}") for failure in found]


def _complaint(ended: GatewayExited) -> Iterator[Failure]:
    """It has to give up with one line for people, and a status that says so."""
    errors = [line for line in ended.log if line.startswith("maitred: error: ")]
    if ended.code <= 0:
        yield Failure(f"expected a status above 0, got {ended.code}")
    if len(errors) != 1 or any("Traceback" in line for line in ended.log):
        yield Failure(f"expected one line that begins with `maitred: error:`, got {ended.log}")
