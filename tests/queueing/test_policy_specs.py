"""How policies are written, and the error for each mistake."""

from __future__ import annotations

from random import Random

import pytest

from maitred.core.contracts import PrefixCacheView, QueuePolicy, WaitQueue
from maitred.core.errors import ConfigError
from maitred.core.policy_spec import PolicySpec, parse_spec
from maitred.queueing import SCHEDULERS
from maitred.queueing.base import KeyPolicy


def test_a_policy_is_a_name_or_a_call_with_values_and_named_values() -> None:
    parsed = parse_spec(" bounded( vtc(lpm, slack=2e4) , max_wait=5)", "scheduler")
    vtc = PolicySpec("vtc", (PolicySpec("lpm"),), {"slack": PolicySpec("2e4")})
    assert parsed == PolicySpec("bounded", (vtc,), {"max_wait": PolicySpec("5")})


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("", "a name is missing"),
        ("bounded(", "a name is missing"),
        ("bounded(sjf", "a bracket is not closed"),
        ("bounded(sjf))", r"'\)' follows its end"),
        ("bounded(sjf max_wait=1)", "a comma is missing before 'max_wait=1"),
        ("bounded(max_wait=1, sjf)", "'sjf' has no name and follows one that has"),
        ("bounded(max_wait=1, max_wait=2)", "'max_wait' is named twice"),
        ("bounded(sjf()=1, x(3)=1)", r"'x' is no name of a parameter|takes"),
        ("bounded(" * 9, "more than 8 policies within each other"),
        ("bounded(sjf, maxwait=5)", r"scheduler 'bounded' has no parameter 'maxwait' \(did you mean 'max_wait'\?\)"),
        ("bounded(sjf, 1, 2, 3)", r"takes no '3' \(its parameters: policy, max_wait, max_displacement\)"),
        ("bounded(sjf, policy=lof)", "is given 'policy' twice"),
        ("bounded(sjf, max_wait=soon)", "max_wait is 'soon': expected a number"),
        ("bounded(sjf, max_wait=edf(1))", "max_wait takes no policy"),
        ("bounded(sjf, max_displacement=1.5)", "max_displacement is '1.5': expected a whole number"),
        ("bounded(sjf, max_wait=nan)", "'bounded': max_wait must be from 0 to 1e9 seconds, not nan"),
        ("sglang(lpn)", r"'sglang': unknown policy 'lpn' \(did you mean 'lpm'\?\)"),
        ("by-priority(sjf, values=up)", r"unknown values 'up' \(valid: high-first, low-first\)"),
        ("bounded(sfj)", r"unknown scheduler 'sfj' \(did you mean 'sjf'\?\)"),
        ("priority-fcfs(slo)", "unknown priority policy 'slo'"),
        ("srpt(hnt)", r"unknown length predictor 'hnt' \(did you mean 'hint'\?\)"),
        ("sjf(3)", r"takes no '3' \(it has no parameters\)"),
        ("test_policy_specs:Strict", r"'test_policy_specs:Strict' needs 'limit' \(its parameters: limit\)"),
        ("test_policy_specs:Strict(0)", "'test_policy_specs:Strict': limit must be at least 1"),
        ("test_policy_specs:nowhere", "cannot load scheduler"),
    ],
)
def test_a_mistake_is_an_error_when_the_policy_is_looked_up(written: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SCHEDULERS.get(written)


class Strict:
    """A policy of a user's own, which needs a parameter."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self.limit = limit

    def make_queue(self, prefix: object, rng: object) -> None:
        raise AssertionError


def test_a_users_class_takes_parameters_too() -> None:
    made = SCHEDULERS.get("test_policy_specs:Strict(limit=7)")()
    assert isinstance(made, Strict)
    assert made.limit == 7


def test_a_name_alone_is_the_class() -> None:
    assert SCHEDULERS.get("sjf") is SCHEDULERS.get("sjf()")
    assert isinstance(SCHEDULERS.get("sjf"), type)


class Broken(QueuePolicy):
    """A user's own, which cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("the model file is missing")

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        raise AssertionError


class Unfinished(KeyPolicy):
    """Another, without a key."""


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Broken", "cannot be made: RuntimeError: the model file is missing"),
        ("Unfinished", "cannot be made: TypeError: Can't instantiate abstract class Unfinished"),
    ],
)
def test_a_mistake_in_a_users_policy_is_one_line(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SCHEDULERS.get(f"test_policy_specs:{name}")
