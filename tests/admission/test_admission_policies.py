"""Admission policies: requests that are refused before they ask for a slot, in every mode, with hand-computed numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maitred.admission import (
    EMPTY_LOAD,
    Admission,
    AdmissionConfig,
    AdmissionPolicy,
    PolicyConfig,
    Refusal,
    ReleaseReason,
    Ticket,
)
from maitred.core.contracts import FleetLoad, InstanceLoad
from maitred.core.decisions import Decision, DecisionLog, decision_on
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.core.slo_classes import SLO_PRIORITIES
from maitred.core.units import SECOND, from_seconds
from maitred.replay import replay

OFF = {"mode": "off"}


def config(**keys: Any) -> AdmissionConfig:
    return msgspec.convert({**OFF, **keys}, AdmissionConfig)


class PolicyTimeline:
    """A core with the pool `m`; every input is followed by `check()`."""

    def __init__(self, slots: int = 4, **keys: Any) -> None:
        self.log: list[bytes] = []
        self.core = Admission(config(**keys), {"m": slots}, log=DecisionLog(self.log.append))
        self.count = 0

    def ask(self, secs: float = 0, slo: str = "standard", load: FleetLoad = EMPTY_LOAD, **fields: Any) -> Decision:
        self.count += 1
        ticket = Ticket(self.count, "m", slo_priority=SLO_PRIORITIES[slo], **fields)
        decision = decision_on(ticket.id, self.core.submit(ticket, from_seconds(secs), load))
        self.core.check()
        return decision

    def says(self, *asked: Any, **fields: Any) -> str:
        decision = self.ask(*asked, **fields)
        return str(decision.reason) if decision.action == "reject" else str(decision.action)


def test_by_default_no_request_is_refused() -> None:
    door = PolicyTimeline()
    assert not door.core.reads_load
    assert [door.says() for _ in range(3)] == ["admit"] * 3
    assert config().admits_all


def test_reject_all_refuses_every_request_and_counts_them_by_class() -> None:
    door = PolicyTimeline(policy="reject-all")

    assert door.says(priority_class=PriorityClass.BULK) == "reject_all"
    assert door.says(slo="critical") == "reject_all"

    refused = {c.label: sum(view.refused.values()) for c, view in door.core.view("*").classes.items()}
    assert refused == {"system": 0, "interactive": 0, "default": 1, "bulk": 1}
    assert not config(policy="reject-all").admits_all


def test_the_token_bucket_counts_tokens_of_prompts() -> None:
    """100 tokens, 10 more per second."""
    door = PolicyTimeline(policy="token-bucket", token_bucket_capacity=100, token_bucket_refill_rate=10)

    assert door.says(0, prompt_tokens=60) == "admit"  # leaves 40
    short = door.ask(0, prompt_tokens=50)
    assert (short.reason, short.retry_after) == ("token_bucket", 1 * SECOND)  # 10 are missing
    assert door.says(0.999, prompt_tokens=50) == "token_bucket"
    assert door.says(1, prompt_tokens=50) == "admit"  # 40 + 10
    assert door.says(1, prompt_tokens=1) == "token_bucket"
    assert door.says(100, prompt_tokens=100) == "admit"  # never more than 100
    assert door.says(100, prompt_tokens=1) == "token_bucket"


def test_a_prompt_larger_than_the_bucket_is_not_told_to_come_back() -> None:
    door = PolicyTimeline(policy="token-bucket", token_bucket_capacity=100, token_bucket_refill_rate=10)
    never = PolicyTimeline(policy="token-bucket", token_bucket_capacity=100, token_bucket_refill_rate=0)

    assert door.says(0, prompt_tokens=100) == "admit"  # the bucket is empty now, which makes no difference
    assert door.says(0, prompt_tokens=100) == "token_bucket"  # as large as the bucket is not too large
    too_large = door.ask(0, prompt_tokens=101)
    assert (too_large.reason, too_large.retry_after) == ("prompt_too_large", None)
    assert door.says(10, prompt_tokens=101) == "prompt_too_large"
    assert door.says(10, prompt_tokens=100) == "admit"  # it cost nothing
    assert sum(view.refused["prompt_too_large"] for view in door.core.view("*").classes.values()) == 2
    assert never.says(prompt_tokens=60) == "admit"
    for_ever = never.ask(prompt_tokens=60)
    assert (for_ever.reason, for_ever.retry_after) == ("token_bucket", None)


def test_tier_shed_lets_the_urgent_in_while_an_instance_is_loaded() -> None:
    """Loaded: waiting + running + in flight above 10 in one of them."""
    door = PolicyTimeline(policy="tier-shed", tier_shed_threshold=10)
    at_it = FleetLoad((InstanceLoad(in_flight=5, waiting=2, running=3), InstanceLoad()))
    above = FleetLoad((InstanceLoad(), InstanceLoad(in_flight=5, waiting=3, running=3)))

    assert door.core.reads_load
    assert door.says(slo="background", load=at_it) == "admit"
    assert door.says(slo="background", load=EMPTY_LOAD) == "admit"
    assert [door.says(slo=slo, load=above) for slo in SLO_PRIORITIES] == ["admit", "admit", *["tier_shed"] * 3]
    assert PolicyTimeline(policy="tier-shed", tier_shed_min_priority=4).says(slo="standard", load=above) == "tier_shed"


@pytest.mark.parametrize(
    ("instances", "says"),
    [
        ([InstanceLoad(waiting=4), InstanceLoad(kv_usage=0.25)], "admit"),  # (4/4 + 0.25/0.5) / 2 is less than 1
        ([InstanceLoad(waiting=6), InstanceLoad(kv_usage=0.25)], "saturated"),  # (6/4 + 0.25/0.5) / 2 is 1
        ([InstanceLoad(waiting=2, kv_usage=0.5)], "saturated"),  # the more of 2/4 and 0.5/0.5
        ([InstanceLoad(in_flight=99, running=99, waiting=3)], "admit"),
        ([InstanceLoad(99, None, None, None)], "admit"),  # its load is unknown: 100 requests in flight are its measure
        ([InstanceLoad(100, None, None, None)], "saturated"),
        ([InstanceLoad(waiting=None, kv_usage=0.5)], "saturated"),
        ([InstanceLoad(waiting=4, kv_usage=None)], "saturated"),
        ([], "saturated"),
    ],
)
def test_gaie_legacy_sheds_what_can_be_shed_while_the_fleet_is_saturated(instances: list[InstanceLoad], says: str) -> None:
    door = PolicyTimeline(policy="gaie-legacy", gaie_qd_threshold=4, gaie_kv_threshold=0.5)

    assert door.says(slo="sheddable", load=FleetLoad(instances)) == says
    assert door.says(slo="standard", load=FleetLoad(instances)) == "admit"


def test_a_tenant_over_its_budget_gets_no_more_sheddable_work_in() -> None:
    """Half of four slots: over it with three."""
    door = PolicyTimeline(slots=4, tenant_budgets={"a": 0.5})

    assert [door.says(slo="batch", tenant="a") for _ in range(4)] == ["admit"] * 3 + ["tenant_budget"]
    assert door.says(slo="standard", tenant="a") == "admit"
    assert door.says(slo="batch", tenant="b") == "admit"
    door.core.release(1, ReleaseReason.DRAINED, 0)
    door.core.release(2, ReleaseReason.DRAINED, 0)
    assert door.says(slo="batch", tenant="a") == "admit"


def test_budgets_follow_the_slots_and_outlive_a_reload() -> None:
    door = PolicyTimeline(slots=4, tenant_budgets={"a": 0.5})
    for _ in range(3):
        door.ask(slo="batch", tenant="a")

    door.core.resize("n", 4, 0)
    assert door.says(slo="batch", tenant="a") == "admit"  # 3 of 8 in flight
    door.core.reconfigure(config(tenant_budgets={"a": 0.25}), 0)
    assert door.says(slo="batch", tenant="a") == "tenant_budget"  # 4 of 8
    assert door.says(slo="batch", tenant="a") == "tenant_budget"
    for number in (1, 2):
        door.core.release(number, ReleaseReason.DRAINED, 0)
    assert door.says(slo="batch", tenant="a") == "admit"  # 2 are a quarter, and not over it


def test_a_budget_comes_after_the_policy_below_it() -> None:
    door = PolicyTimeline(slots=2, tenant_budgets={"a": 0.0}, policy="tier-shed")

    assert door.core.reads_load
    assert door.says(slo="batch", tenant="a", load=FleetLoad((InstanceLoad(in_flight=1),))) == "tier_shed"


@pytest.mark.parametrize("mode", ["off", "legacy", "priority", "flow-control"])
def test_a_policy_stands_before_every_mode(mode: str) -> None:
    door = PolicyTimeline(mode=mode, policy="token-bucket", token_bucket_capacity=10, token_bucket_refill_rate=0)
    busy = FleetLoad((InstanceLoad(),))

    assert [door.says(prompt_tokens=n, load=busy) for n in (11, 10, 1)] == ["prompt_too_large", "admit", "token_bucket"]


def test_a_reload_that_does_not_concern_the_policy_leaves_the_bucket_as_it_is() -> None:
    keys: Any = {"policy": "token-bucket", "token_bucket_capacity": 10, "token_bucket_refill_rate": 0}
    door = PolicyTimeline(**keys)
    door.ask(prompt_tokens=10)

    door.core.reconfigure(config(**keys, mode="priority"), 0)
    assert door.says(prompt_tokens=1) == "token_bucket"
    door.core.reconfigure(config(**{**keys, "token_bucket_capacity": 11}, mode="priority"), 0)
    assert door.says(prompt_tokens=11) == "admit"


def test_a_policy_of_ones_own_is_named_by_its_place() -> None:
    door = PolicyTimeline(policy="outside_policies:ShortPrompts")

    assert [door.says(prompt_tokens=n) for n in (100, 101)] == ["admit", "policy"]


def test_a_refusal_has_a_reason_of_its_own_and_is_counted_by_it() -> None:
    door = PolicyTimeline(policy="outside_policies:AtMost(10)")
    assert [door.says(prompt_tokens=n) for n in (10, 11)] == ["admit", "too_many_tokens"]
    rejected = door.ask(prompt_tokens=12)
    told = door.core.refusal(rejected)
    assert told is not None
    assert (told.status, told.message, told.is_final) == (413, "12 tokens are more than 10", True)
    assert door.core.refusal(door.ask(prompt_tokens=1)) is None
    assert door.core.view("*").classes[PriorityClass.DEFAULT].refused == {"too_many_tokens": 2}


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"reason": "Too Many"}, "must be like too_many_files, not 'Too Many'"),
        ({"reason": "queue_full"}, "queue_full is a reason of admission itself"),
        ({"reason": "mine", "status": 200}, "status of a refusal must be from 400 to 599, not 200"),
    ],
)
def test_a_refusal_that_cannot_be_said(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Refusal(**said)


def test_parameters_are_written_behind_the_name() -> None:
    door = PolicyTimeline(policy="token-bucket(rate=0, capacity=30)")
    assert [door.says(prompt_tokens=n) for n in (20, 20, 10)] == ["admit", "token_bucket", "admit"]
    # parameters behind the name take precedence over BLIS's keys, which give the others
    door = PolicyTimeline(policy="token-bucket(0)", token_bucket_capacity=30, token_bucket_refill_rate=1e6)
    assert [door.says(secs, prompt_tokens=20) for secs in (0, 1)] == ["admit", "token_bucket"]
    assert list(config(policy="tier-shed(threshold=9)", token_bucket_capacity=30).ineffective_keys()) == [
        "token_bucket_capacity has no effect: the policy is tier-shed(threshold=9), not token-bucket"
    ]
    assert config(policy="always-admit()").admits_all


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ("token-bucket(rat=1)", r"'token-bucket' has no parameter 'rat' \(did you mean 'rate'\?\)"),
        ("token-bucket(rate=-1)", "'token-bucket': rate must be at least 0, not -1.0"),
        ("tier-shed(threshold=x)", "threshold is 'x': expected a whole number"),
        ("tier-shed(threshold=-2)", "threshold must be at least 0, not -2"),
        ("gaie-legacy(kv_threshold=1.5)", "kv_threshold must be above 0 and at most 1, not 1.5"),
        ("gaie-legacy(0)", "qd_threshold must be more than 0, not 0.0"),
        ("reject-all(1)", r"takes no '1' \(it has no parameters\)"),
    ],
)
def test_parameters_that_cannot_be(policy: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=rf"admission\.policy: .*{complaint}"):
        Admission(config(policy=policy), {})


def test_an_unknown_policy_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown admission policy 'tier-shedd'.*'tier-shed'"):
        Admission(config(policy="tier-shedd"), {})


def test_what_a_ticket_says_of_a_request() -> None:
    core = Admission(config(slo_priorities={"batch": -7}, slo_targets={"batch": 900, "critical": 100}), {})
    request = Request(id=7, arrival=0, prompt_tokens=50, model="m", tenant="a", slo_class="batch")

    ticket = core.make_ticket(request, 60)

    assert (ticket.id, ticket.pool, ticket.tenant, ticket.cost, ticket.prompt_tokens) == (7, "m", "a", 60, 50)
    assert (ticket.slo_priority, ticket.slo_target, ticket.sheddable) == (-7, 900, True)
    own = core.make_ticket(msgspec.structs.replace(request, slo_class="", slo_target=5, priority_class=PriorityClass.SYSTEM), 1)
    assert (own.slo_priority, own.slo_target) == (4, 5)


def test_a_log_with_loads_runs_again_byte_for_byte() -> None:
    door = PolicyTimeline(policy="gaie-legacy", tenant_budgets={"a": 0.1})
    for n in range(12):
        load = FleetLoad((InstanceLoad(waiting=n, kv_usage=n / 12),))
        door.ask(n, "batch" if n % 2 else "critical", load, tenant="ab"[n % 3 == 0], prompt_tokens=n)
    again: list[bytes] = []

    replay(door.log, DecisionLog(again.append))

    assert again == door.log
    assert b'"saturated"' in b"".join(again)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("token_bucket_capacity", -1),
        ("token_bucket_refill_rate", float("inf")),
        ("token_bucket_refill_rate", float("nan")),
        ("tier_shed_threshold", -1),
        ("gaie_qd_threshold", 0),
        ("gaie_kv_threshold", 1.1),
        ("tenant_budgets", {"a": 1.5}),
        ("slo_priorities", {"batch": 101}),
        ("slo_targets", {"batsh": 1000}),
        ("slo_targets", {"batch": 0}),
        ("flow_control", {"max_concurrency": 0}),
        ("flow_control", {"usage_limit_threshold": 0}),
        ("flow_control", {"usage_limit_threshold": 1.1}),
        ("flow_control", {"queue_depth_threshold": 0}),
        ("flow_control", {"dispatch_tick_interval_us": 0}),
        ("flow_control", {"request_ttl_us": -1}),
        ("flow_control", {"per_band_capacity": -1}),
        ("flow_control", {"saturation_detector": "sometimes"}),
        ("flow_control", {"queue_shedding": True}),
    ],
)
def test_what_policies_and_flow_control_cannot_be_given(key: str, value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({key: value}, AdmissionConfig)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"token_bucket_capacity": 5}, "the policy is always-admit, not token-bucket"),
        ({"flow_control": {"max_concurrency": 5}}, "mode is off: flow_control has no effect"),
        ({"mode": "flow-control", "slo_targets": {"batch": 5}}, "slo_targets have no effect"),
        ({"mode": "flow-control", "flow_control": {"saturation_detector": "never"}}, "no request ever waits"),
    ],
)
def test_what_has_no_effect_is_said(keys: dict[str, Any], words: str) -> None:
    assert any(words in line for line in config(**keys).warnings())
    assert not list(config().policy_warnings())


def test_a_refill_in_the_far_future_promises_nothing() -> None:
    for rate in (1e-310, 1e-9):
        door = PolicyTimeline(policy="token-bucket", token_bucket_capacity=100, token_bucket_refill_rate=rate)
        door.ask(prompt_tokens=100)

        assert door.ask(prompt_tokens=100).retry_after is None


def test_a_reload_that_does_not_concern_the_policy_leaves_it_what_it_remembers() -> None:
    bucket = {"policy": "token-bucket", "token_bucket_capacity": 100, "token_bucket_refill_rate": 0}
    door = PolicyTimeline(**bucket)
    door.ask(prompt_tokens=60)

    door.core.reconfigure(config(**bucket, slo_targets={"critical": 5}, tenant_budgets={"a": 1.0}), 0)
    assert door.says(prompt_tokens=60) == "token_bucket"
    door.core.reconfigure(config(**{**bucket, "token_bucket_capacity": 120}), 0)
    assert door.says(prompt_tokens=60) == "admit"


def test_a_reload_counts_anew_what_tenants_with_budgets_hold() -> None:
    door = PolicyTimeline(4, tenant_budgets={"a": 0.25})
    for _ in range(2):
        assert door.says(slo="batch", tenant="a") == "admit"
    for targets in ({}, {"critical": 5}):
        door.core.reconfigure(config(tenant_budgets={"a": 0.25}, slo_targets=targets), 0)
        assert door.says(slo="batch", tenant="a") == "tenant_budget"
    door.core.release(1, ReleaseReason.DRAINED, 0)

    assert door.says(slo="batch", tenant="a") == "admit"


class Broken(AdmissionPolicy):
    def __init__(self, config: PolicyConfig) -> None:
        raise RuntimeError("no licence")

    def refusal(self, ticket: Ticket, load: FleetLoad, now: int) -> Refusal | None:
        return None


@pytest.mark.parametrize(
    ("policy", "what"),
    [("nonsense", "unknown admission policy 'nonsense'"), (f"{__name__}:Broken", "cannot be made: RuntimeError: no licence")],
)
def test_a_policy_that_cannot_be_had_changes_nothing(policy: str, what: str) -> None:
    door = PolicyTimeline(1, mode="priority")
    door.ask()

    with pytest.raises(ConfigError, match=what):
        door.core.reconfigure(config(mode="flow-control", policy=policy), 1)

    assert (door.core.config.mode, door.core.pool_names) == ("priority", ["m"])
    assert door.says() == "queue"


def test_a_policy_that_cannot_be_had_settles_nothing_and_so_loses_no_decision() -> None:
    """A waiter's time is over when the new rules come, and fail: its rejection is told by the next input."""
    door = PolicyTimeline(1, mode="priority")
    door.ask()
    assert door.says() == "queue"
    due = door.core.next_deadline()
    assert due is not None

    with pytest.raises(ConfigError):
        door.core.reconfigure(config(mode="priority", policy="nonsense"), due + 1)

    assert [(d.action, d.reason) for d in door.core.advance(due + 1)] == [("reject", "queue_timeout")]


@pytest.mark.parametrize("key", ["slo_priorities", "slo_targets"])
def test_former_names_of_slo_classes_are_no_keys(key: str) -> None:
    """A request that names `interactive` is of the class `standard`: a key `interactive` would hold for no request."""
    with pytest.raises(msgspec.ValidationError, match=f"{key}: the SLO class interactive is called standard now"):
        config(**{key: {"interactive": 7}})


def test_a_budget_of_a_tenant_that_cannot_be_is_warned_of() -> None:
    warnings = list(config(tenant_budgets={"acme": 0.5, "auth:acme": 0.5}).warnings())

    assert warnings == ["tenant_budgets: 'acme' matches no tenant: write auth:acme, header:acme, ip:ADDRESS or anonymous"]
