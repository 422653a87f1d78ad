"""What comes from outside: the class in a header, the keys of the configuration, a log to run again."""

from __future__ import annotations

import msgspec
import pytest

from maitred.admission import AdmissionConfig, ClassConfig, parse_class, replay
from maitred.decisions import DecisionLog
from maitred.request import PriorityClass

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
    config = msgspec.convert({"classes": {"bulk": {"reserved_floor": 2}}}, AdmissionConfig)

    bulk, interactive = config.of(BULK), config.of(INTERACTIVE)

    assert (bulk.reserved_floor, bulk.queue_size, bulk.queue_timeout_secs) == (2, 1024, 300.0)
    assert (interactive.reserved_per_slot, interactive.queue_size) == (0.25, 256)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reserved_floor", -1),
        ("reserved_per_slot", -0.1),
        ("reserved_per_slot", 1.01),
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


def test_everything_reserved_no_queue_and_a_lifetime_of_patience_are_legal() -> None:
    assert ClassConfig(reserved_per_slot=1, queue_size=0, queue_timeout_secs=1e9).queue_size == 0


def test_a_log_that_does_not_say_how_the_core_was_made_cannot_run_again() -> None:
    log = DecisionLog(lambda line: None)

    replay([b'{"room": "routing", "input": "choose", "at": 0}\n'], log)
    with pytest.raises(ValueError, match="how this core was made"):
        replay([b'{"room": "admission", "input": "advance", "at": 0}\n'], log)


def test_a_log_of_a_class_that_is_none_cannot_run_again() -> None:
    pools, classes = b'{"room": "admission", "input": "open", "at": 0, "config": {}, "pools": {"m": 1}}\n', b"urgent"
    submit = b'{"room": "admission", "input": "submit", "at": 0, "id": 1, "pool": "m", "class": "%s", "load": {}}\n' % classes

    with pytest.raises(ValueError, match="the log speaks of a class 'urgent'"):
        replay([pools, submit], DecisionLog(lambda line: None))
