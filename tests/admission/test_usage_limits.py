"""Limits of requests and tokens per minute and per day: what is refused, what is given back, and that the rule holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from admission_timeline import Timeline, classes
from hypothesis import given
from hypothesis import strategies as st

from maitred.admission import Admission, AdmissionConfig, ReleaseReason, Ticket
from maitred.admission.terms.limits import LimitState
from maitred.core.decisions import DecisionLog
from maitred.core.units import SECOND, Micros, from_seconds
from maitred.replay import replay

MINUTE, SLOT = 60 * SECOND, SECOND
GONE, FAILED, DRAINED = ReleaseReason.CLIENT_GONE, ReleaseReason.FAILED, ReleaseReason.DRAINED


class Limited(Timeline):
    """A timeline with limits. An answer of `used` tokens ends at the instant at which it has begun."""

    def __init__(self, *rules: dict[str, Any], slots: int = 100) -> None:
        super().__init__(slots, {"limits": list(rules)})

    def take(self, at: float, name: str, cost: int = 1, tenant: str = "auth:a", used: int | None = None) -> str:
        """Let a request enter, and end at once. Return the reason of its refusal, or "" for none."""
        told = self.submit(at, name, tenant=tenant, cost=cost)
        if "reject" in told[-1]:
            return told[-1].split(" ")[2]
        self.first_byte(at, name)
        self.end(at, name, DRAINED, used)
        return ""

    def end(self, at: float, name: str, end: ReleaseReason, used: int | None = None) -> None:
        self._lines(self.core.release(self._names.index(name), end, from_seconds(at), used))

    @property
    def wait_secs(self) -> float | None:
        wait = self.last[-1].retry_after
        return None if wait is None else wait / SECOND


def test_requests_per_minute_count_until_their_slot_is_a_minute_old() -> None:
    t = Limited({"requests_per_minute": 2})
    assert (t.take(0.4, "a"), t.take(30.0, "b")) == ("", "")
    assert t.take(31.0, "c") == "requests_per_minute"
    assert t.wait_secs == 30.0  # until 61 s, when the second of "a" is a minute old
    assert t.take(60.9, "d") == "requests_per_minute"
    assert t.take(61.0, "e") == ""
    assert t.take(61.0, "f", tenant="auth:b") == ""  # each tenant has its own


def test_tokens_are_reserved_at_entry_and_settled_by_usage() -> None:
    t = Limited({"tokens_per_minute": 100})
    t.submit(0, "a", tenant="auth:a", cost=80)
    assert t.take(1, "b", cost=40) == "tokens_per_minute"
    t.first_byte(2, "a")
    t.end(20, "a", DRAINED, 50)
    assert t.take(20, "c", cost=50) == ""
    assert t.take(20, "d", cost=1) == "tokens_per_minute"
    t = Limited({"tokens_per_minute": 100})
    assert t.take(0, "more than estimated", cost=10, used=90) == ""
    assert t.take(1, "e", cost=11) == "tokens_per_minute"
    assert t.take(1, "f", cost=10) == ""
    assert t.take(2, "never", cost=101) == "tokens_per_minute"
    assert t.wait_secs is None


@pytest.mark.parametrize(
    ("begins", "end", "keeps"),
    [(False, FAILED, False), (False, GONE, True), (True, GONE, True), (True, FAILED, True), (True, DRAINED, True)],
)
def test_what_never_began_is_given_back_unless_its_client_left_an_engine(begins: bool, end: ReleaseReason, keeps: bool) -> None:
    t = Limited({"requests_per_minute": 1, "tokens_per_day": 100})
    t.submit(0, "a", tenant="auth:a", cost=60)
    if begins:
        t.first_byte(0, "a")
    t.end(1, "a", end)
    assert t.take(2, "b", cost=60) == ("tokens_per_day" if keeps else "")  # the longer wait of two is told


def test_what_waited_in_vain_is_given_back() -> None:
    t = Limited({"requests_per_minute": 4, "tokens_per_minute": 30}, slots=1)
    t.submit(0, "held", tenant="auth:a", cost=10)
    t.submit(0, "late", tenant="auth:a", cost=10)
    t.submit(0, "leaves", tenant="auth:a", cost=10)
    assert t.take(1, "over", cost=10) == "tokens_per_minute"
    t.end(2, "leaves", GONE)
    assert t.advance(20) == ["late reject queue_timeout"]
    assert t.core.limits.status(0) is not None
    assert t.core.limits.status(1) is None
    t.end(21, "held", FAILED)
    assert [t.take(22, f"again {number}", cost=10) for number in range(3)] == ["", "", ""]


def test_the_rule_of_a_tenant_and_of_a_model_stands_before_those_of_each() -> None:
    t = Limited(
        {"requests_per_minute": 1},
        {"tenant": "auth:big", "requests_per_minute": 3},
        {"model": "*", "requests_per_day": 2},
        {"model": "other", "requests_per_day": 1},
    )
    t.resize(0, 100, pool="other")
    assert [t.take(at, f"a{at}") for at in (0, 1, 61)] == ["", "requests_per_minute", ""]
    assert t.take(200, "a") == "requests_per_day"
    assert [t.take(at, f"b{at}", tenant="auth:big") for at in (200, 200.1, 200.2)] == ["", "", "requests_per_day"]
    assert t.submit(201, "o", pool="other", tenant="auth:big")[-1].startswith("o admit")
    assert t.submit(201, "p", pool="other", tenant="auth:big")[-1].startswith("p reject requests_per_day")


def test_a_client_is_told_of_the_tightest_limit() -> None:
    t = Limited({"requests_per_minute": 60, "requests_per_day": 10_000, "tokens_per_day": 500})
    t.submit(1.5, "a", tenant="auth:a", cost=100)
    status = t.core.limits.status(0)
    assert status is not None
    assert status.requests == LimitState(60, 59, from_seconds(60.5))
    assert status.tokens == LimitState(500, 400, from_seconds(24 * 3600 + 24 * 60 - 1.5))
    assert t.take(2, "b", cost=401) == "tokens_per_day"
    refusal = t.core.refusal(t.last[-1])
    assert refusal is not None
    assert refusal.message == (
        "Rate limit reached for tokens per day: limit 500, used 100, requested 401. Try again in 87838 s."
    )


def test_other_rules_keep_what_was_counted() -> None:
    t = Limited({"requests_per_minute": 2})
    t.take(0, "a")
    t.reconfigure(1, {"limits": [{"requests_per_minute": 1}]})
    assert t.take(2, "b") == "requests_per_minute"
    t.submit(61, "c", tenant="auth:a")
    t.reconfigure(62)
    assert t.take(62, "d") == ""
    t.end(62, "c", DRAINED)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ([{}], "a limit needs one of requests_per_minute"),
        ([{"requests_per_day": -1}], "limits must be from 0"),
        ([{"tenant": "acme", "requests_per_day": 1}], "write auth:acme"),
        ([{"requests_per_day": 1}, {"tokens_per_day": 1}], "two rules are for tenant '\\*' and all models"),
    ],
)
def test_rules_that_say_nothing_or_contradict_each_other(rules: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert({"limits": rules}, AdmissionConfig)


@given(
    st.lists(
        st.tuples(st.integers(0, 20_000_000), st.integers(1, 40), st.integers(0, 60), st.sampled_from((DRAINED, FAILED, GONE))),
        min_size=5,
        max_size=60,
    )
)
def test_no_more_than_the_limit_was_reserved_within_any_minute(events: list[tuple[Micros, int, int, ReleaseReason]]) -> None:
    """By a model that keeps every reservation: never more than the limit, and room comes back a slot too late at most."""
    limit, now, live = 100, 0, list[tuple[int, int, ReleaseReason, Micros]]()
    core = Admission(classes({"limits": [{"tokens_per_minute": limit}]}), {"m": 1_000})
    counted = list[list[int]]()  # when, and how much

    def within(span: Micros) -> int:
        return sum(amount for at, amount in counted if at > now - span)

    for number, (pause, cost, used, end) in enumerate(events):
        now += pause
        before = within(MINUTE), within(MINUTE + SLOT)
        ticket = Ticket(number, "m", tenant="auth:a", cost=cost)
        (decision,) = core.submit(ticket, now)
        core.check()
        if decision.action == "reject":
            assert before[1] + cost > limit
            continue
        counted.append([now, cost])
        assert before[0] + cost <= limit
        core.confirm_first_byte(number, now)
        live.append((number, used, end, now))
        if number % 3 == 0:
            one, had, ending, at = live.pop(0)
            core.release(one, ending, now, had)
            reserved = next(each for each in counted if each[0] == at and each[1] == events[one][1])
            if had < reserved[1]:
                reserved[1] = had
            elif had > reserved[1]:
                counted.append([now, had - reserved[1]])
        if within(MINUTE) > limit:  # Only what was used beyond an estimate can bring that about.
            assert any(used > events[one][1] for one, (_, _, used, _) in enumerate(events))
    core.check()


def test_a_log_of_decisions_repeats_what_limits_decided() -> None:
    first, second = list[bytes](), list[bytes]()
    config = classes({"limits": [{"requests_per_minute": 2, "tokens_per_minute": 50}]})
    core = Admission(config, {"m": 2}, log=DecisionLog(first.append))
    for number in range(30):
        now = number * 4 * SECOND
        core.submit(Ticket(number, "m", tenant="auth:a", cost=20), now)
        core.confirm_first_byte(number, now)
        core.release(number, DRAINED, now + SECOND, 5 * (number % 7))
    refused = [line for line in first if b'"reject"' in line]
    assert 5 < sum(b'"requests_per_minute"' in line for line in refused) < 30
    replay(first, DecisionLog(second.append))
    assert second == first


def test_a_window_that_was_forgotten_is_not_told_as_what_is_counted() -> None:
    """A request outlives its window: a new term counts anew, or others have pushed the window out. As its request ended, the
    old window was told to the gateways in place of the one that counts."""
    t = Limited({"tokens_per_minute": 100})
    t.submit(0, "a", tenant="auth:a", cost=80)
    t.first_byte(0, "a")
    t.core.recall([], from_seconds(1), anew=True)
    assert t.take(1, "b", cost=30) == ""
    t.end(2, "a", DRAINED, 50)
    (told,) = t.core.limits.take_changed(10, from_seconds(2))
    assert [amount for _, amount in told.aged] == [30]
    assert t.take(3, "c", cost=70) == ""
