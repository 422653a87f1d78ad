"""Inputs from outside: the class in a header, the keys of the configuration, a log to run again."""

from __future__ import annotations

import msgspec
import pytest

from maitred.admission import (
    EMPTY_LOAD,
    Admission,
    AdmissionConfig,
    ClassConfig,
    ReleaseReason,
    Ticket,
    TransitionError,
    inputs,
    overcommit_problem,
    parse_class,
    tenant_problem,
)
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.replay import replay

BULK, DEFAULT, INTERACTIVE, SYSTEM = PriorityClass


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("system", SYSTEM),
        ("interactive", INTERACTIVE),
        ("default", DEFAULT),
        ("bulk", BULK),
        ("BuLk", BULK),
        ("\t Interactive \n", INTERACTIVE),
        # asks for nothing
        (None, DEFAULT),
        ("", DEFAULT),
        (" \t ", DEFAULT),
        ("b\u00fclk", DEFAULT),
        ("bul\u212a", DEFAULT),  # the sign for Kelvin is a k in lower case
        ("bu\x01lk", DEFAULT),
        # names no class: to be counted
        ("urgent", None),
        ("3", None),
        ("bulk,interactive", None),
    ],
)
def test_the_class_in_a_header(text: str | None, found: PriorityClass | None) -> None:
    assert parse_class(text) is found


def test_an_entry_keeps_the_defaults_of_its_class_where_it_says_nothing() -> None:
    config = msgspec.convert({"classes": {"bulk": {"reserved_floor": 2, "reserved_per_slot": 0.1}}}, AdmissionConfig)

    bulk, interactive = config.class_rules(BULK), config.class_rules(INTERACTIVE)

    assert (bulk.reserved_floor, bulk.queue_size, bulk.queue_timeout_secs) == (2, 1024, 300.0)
    assert (interactive.reserved_per_slot, interactive.queue_size) == (0.25, 256)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reserved_floor", -1),
        ("reserved_per_slot", -0.1),
        ("reserved_per_slot", 1e308),
        ("reserved_per_slot", float("nan")),
        ("reserved_per_slot", float("inf")),
        ("queue_size", -1),
        ("queue_timeout_secs", 0),
        ("queue_timeout_secs", 1.1e9),
        ("queue_timeout_secs", 1e308),
        ("queue_timeout_secs", float("nan")),
        ("queue_timeout_secs", float("inf")),
    ],
)
def test_what_a_class_cannot_be_given(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=key):
        ClassConfig(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("promotion_share", 1.1),
        ("promotion_share", -0.1),
        ("promotion_burst", -1),
        ("preemption_budget_ms", -1),
        ("slot_tokens", 0),
        ("mode", "strict"),
        ("default_max_class", "urgent"),
        ("on_preempt", "drop"),
        ("classes", {"bulk": {"reserved_per_slot": 1.01}}),
        ("tenant_policies", {"auth:a": {"max_class": "gold"}}),
        ("tenant_policies", {"auth:a": {"max_in_flight": 0}}),
        ("tenant_policies", {"auth:a": {"max_queued": -1}}),
        ("tenant_policies", {"auth:a": {"weight": 0}}),
        ("tenant_policies", {"auth:a": {"weight": float("nan")}}),
        ("legacy", {"queue_size": -1}),
        ("legacy", {"queue_timeout_secs": 0}),
        ("legacy", {"rate_limit_tokens_per_second": -1}),
        ("legacy", {"rate_limit_tokens_per_second": float("nan")}),
    ],
)
def test_what_the_section_cannot_be_given(key: str, value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({key: value}, AdmissionConfig)


@pytest.mark.parametrize(
    ("tenant", "advice"),
    [
        ("acme", "write auth:acme"),
        ("auth:", "write auth:ID"),
        ("auth: acme", "without spaces"),
        ("ip:10.0.0.300", "not an IP address"),
        ("ip:2001:DB8::0", "write ip:2001:db8::"),
        ("user:acme", "matches no tenant"),
    ],
)
def test_a_tenant_that_can_never_come_is_an_error(tenant: str, advice: str) -> None:
    """SMG takes a bare key and never matches it (s21): so does its flavour, with a warning."""
    said = {"tenant_policies": {tenant: {"max_class": "system"}}}

    with pytest.raises(msgspec.ValidationError, match=advice):
        msgspec.convert(said, AdmissionConfig)
    smg = msgspec.convert({**said, "flavour": "smg", "mode": "priority"}, AdmissionConfig)
    assert any(advice in line for line in smg.warnings())


def test_a_long_name_in_a_header_matches_no_tenant() -> None:
    assert tenant_problem("header:" + "a" * 128) is None
    assert "more than 128 characters are hashed" in (tenant_problem("header:" + "a" * 129) or "")


@pytest.mark.parametrize("tenant", ["auth:acme", "header:Team Red", "ip:127.0.0.1", "ip:2001:db8::", "anonymous"])
def test_tenants_that_can_come(tenant: str) -> None:
    config = msgspec.convert({"tenant_policies": {tenant: {"max_class": "system"}}}, AdmissionConfig)

    assert (config.class_cap(tenant), config.class_cap("auth:other")) == (SYSTEM, DEFAULT)
    assert not tenant_problem(tenant)


def test_system_for_all_tenants_is_worth_a_warning() -> None:
    assert any("control plane" in line for line in AdmissionConfig(mode="priority", default_max_class="system").warnings())
    assert not list(AdmissionConfig(mode="priority", default_max_class="interactive").warnings())


def test_smgs_entries_replace_whole_classes() -> None:
    entry = {
        "reserved_floor": 1,
        "queue_size": 3,
        "queue_timeout_secs": 1,
        "starvation_threshold_secs": 1,
        "can_preempt": False,
    }
    config = msgspec.convert({"flavour": "smg", "classes": {"default": entry}}, AdmissionConfig)

    assert config.class_rules(DEFAULT).reserved_per_slot == 0  # and not 0.10
    assert (config.class_rules(SYSTEM).reserved_floor, config.class_rules(INTERACTIVE).reserved_floor) == (32, 128)
    with pytest.raises(msgspec.ValidationError, match="bulk: missing field `reserved_floor`"):
        msgspec.convert({"flavour": "smg", "classes": {"bulk": {"queue_size": 3}}}, AdmissionConfig)


@pytest.mark.parametrize(
    ("flavour", "capacity", "problem"),
    [
        ("smg", 256, None),  # 32 + 128 + 26
        ("smg", 100, "sum of class reservations (142) exceeds capacity (100)"),
        ("maitred", 4, None),
        ("maitred", 1, None),  # shares of one slot: what rounding up adds is no overcommitment
    ],
)
def test_reservations_beyond_the_capacity(flavour: str, capacity: int, problem: str | None) -> None:
    assert overcommit_problem(msgspec.convert({"flavour": flavour}, AdmissionConfig), capacity) == problem


def test_a_floor_above_the_capacity_is_beyond_it() -> None:
    config = msgspec.convert({"classes": {"interactive": {"reserved_floor": 100}}}, AdmissionConfig)

    assert overcommit_problem(config, 4) == "sum of class reservations (100) exceeds capacity (4)"
    assert overcommit_problem(config, 128) is None


def test_a_class_of_smgs_counts_at_most_the_capacity() -> None:
    entry = {
        "reserved_floor": 2000,
        "queue_size": 3,
        "queue_timeout_secs": 1,
        "starvation_threshold_secs": 1,
        "can_preempt": False,
    }
    config = msgspec.convert({"flavour": "smg", "classes": {"bulk": entry}}, AdmissionConfig)

    assert overcommit_problem(config, 1024) == "sum of class reservations (1415) exceeds capacity (1024)"


def test_everything_reserved_no_queue_and_a_lifetime_of_patience_are_legal() -> None:
    assert ClassConfig(reserved_per_slot=1, queue_size=0, queue_timeout_secs=1e9).queue_size == 0


def test_a_log_that_does_not_say_how_the_core_was_made_cannot_run_again() -> None:
    log = DecisionLog(lambda line: None)

    replay([b'{"room": "elsewhere", "input": "choose", "at": 0}\n'], log)
    with pytest.raises(ValueError, match="how this core was made"):
        replay([b'{"room": "admission", "input": "advance", "at": 0}\n'], log)


def test_a_log_of_a_class_that_is_none_cannot_run_again() -> None:
    opened: list[bytes] = []
    core = Admission(AdmissionConfig(), {"m": 1}, log=DecisionLog(opened.append))
    core.submit(Ticket(1, "m"), 0)
    log = [line.replace(b'"class":"default"', b'"class":"urgent"') for line in opened]

    with pytest.raises(ValueError, match="there is no class 'urgent'"):
        replay(log, DecisionLog(lambda line: None))


def test_an_input_that_raises_is_in_the_log_and_raises_again() -> None:
    lines, again = list[bytes](), list[bytes]()
    core = Admission(AdmissionConfig(), {"m": 1}, log=DecisionLog(lines.append))
    core.submit(Ticket(1, "m"), 0)
    with pytest.raises(KeyError):
        core.forget("n", 2)
    with pytest.raises(TransitionError):
        core.submit(Ticket(1, "m"), 3)
    assert [b'"raised"' in line for line in lines[-2:]] == [True, True]
    replay(lines, DecisionLog(again.append))
    assert again == lines


def test_an_input_as_data_is_what_the_method_does() -> None:
    core, other = (Admission(AdmissionConfig(mode="priority"), {"m": 1}) for _ in range(2))
    told = [inputs.Submit.of(Ticket(n, "m"), EMPTY_LOAD, n) for n in range(3)]
    told += [inputs.FirstByte(3, 0), inputs.Release(4, 0, ReleaseReason.DRAINED), inputs.Advance(10**9)]
    said = [core.apply(given) for given in told]
    done = [other.submit(Ticket(n, "m"), n) for n in range(3)]
    other.confirm_first_byte(0, 3)
    done += [(), other.release(0, ReleaseReason.DRAINED, 4), other.advance(10**9)]
    assert [list(decisions) for decisions in said] == [list(decisions) for decisions in done]
