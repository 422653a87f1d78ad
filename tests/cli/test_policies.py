"""`maitred policies`, and the flags for routing policies of `maitred simulate` and `maitred serve`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from maitred.admission import POLICIES
from maitred.config.root import KINDS
from maitred.core.registry import NOT_SAID
from maitred.queueing import SCHEDULERS
from maitred.routing import ROUTERS, SCORERS


def test_every_policy_has_its_line_with_cost_and_starvation(maitred: Any) -> None:
    result = maitred("policies")
    assert result.code == 0
    rows = {row.split()[0]: row for row in result.out.splitlines() if row.strip()}
    assert set(SCHEDULERS) <= set(rows)
    assert "not documented" not in result.out
    assert re.search(r"lpm .* O\(log n\) .* requests with nothing in the cache .* yes$", rows["lpm"].rstrip())
    assert re.search(r"fcfs +in order of arrival.* O\(1\) .* no$", rows["fcfs"].rstrip())
    assert rows["bounded"].rstrip().endswith("as the inner policy")
    assert re.search(r"slo-based +base_score=0.0, age_weight=1e-06 ", rows["slo-based"])
    assert re.search(r"quantile +q=0.5 ", rows["quantile"])


def test_one_policy_is_shown_with_its_parameters(maitred: Any) -> None:
    result = maitred("policies", "bounded")
    assert result.code == 0
    assert result.out.startswith("bounded(policy, max_wait, max_displacement)\n")
    assert "seconds" in result.out


def test_an_unknown_policy_is_a_mistake_in_one_line(maitred: Any) -> None:
    result = maitred("policies", "lmp")
    assert result.code == 2
    assert result.err == "maitred: error: unknown policy 'lmp' (did you mean 'lpm'?)\n"


def test_routers_and_scorers_are_listed_with_what_they_look_at(maitred: Any) -> None:
    rows = {row.split()[0]: row.rstrip() for row in maitred("policies").out.splitlines() if row.strip()}
    assert {*ROUTERS, *SCORERS} <= set(rows)
    assert re.search(r"power-of-two .* O\(1\) +in flight$", rows["power-of-two"])
    assert re.search(r"kv-utilization +1 - used share of the KV blocks +O\(n\) +KV usage$", rows["kv-utilization"])
    assert "for tests only" in rows["always-busiest"]


def test_one_router_and_one_scorer_are_shown_with_the_parameters_that_users_may_write(maitred: Any) -> None:
    assert maitred("policies", "session-affinity").out.startswith("session-affinity(policy, sessions=100000, by=closest, ")
    assert maitred("policies", "least-loaded").out.startswith("least-loaded(load=in_flight)\n")
    shown = maitred("policies", "prefix-affinity").out
    assert shown.startswith("prefix-affinity(block=16, most)\n")
    assert "\n  looks at: the prompt\n" in shown
    assert (
        maitred("policies", "power-of-to").err
        == "maitred: error: unknown policy 'power-of-to' (did you mean 'power-of-two'?)\n"
    )


def test_admission_policies_are_listed_with_what_they_refuse(maitred: Any) -> None:
    rows = {row.split()[0]: row.rstrip() for row in maitred("policies").out.splitlines() if row.strip()}
    assert re.search(r"token-bucket +rate=1000.0, capacity=10000.0 +Refuses .*\(BLIS `token-bucket`\)$", rows["token-bucket"])
    assert all(" Refuses " in rows[name] for name in POLICIES)
    assert maitred("policies", "token-bucket").out.startswith("token-bucket(rate=1000.0, capacity=10000.0)\n  Refuses ")


def test_every_kind_is_listed_and_every_plug_in_has_a_summary(maitred: Any) -> None:
    result = maitred("policies").out
    names = [line.split()[0] for line in result.splitlines() if line.strip()]
    for kind in KINDS:
        assert f" {kind.kind} ({kind.flag}) " in result
        assert set(kind) <= set(names)
        for name in kind:
            assert NOT_SAID not in kind.describe(name).values(), f"{kind.kind} {name} does not say what it is"


def test_a_class_elsewhere_is_shown_as_those_that_are_known(maitred: Any) -> None:
    Path("my_scorers.py").write_text(
        "class Half:\n"
        "    'Half of all.'\n"
        "    def __init__(self, of: float = 1.0): ...\n"
        "    def scores(self, request, fleet): ...\n"
        "    def on_chosen(self, request, view): ...\n"
    )
    assert maitred("policies", "my_scorers:Half").out == (
        "my_scorers:Half(of=1.0)\n  Half of all\n  cost: not documented\n  looks at: not documented\n"
    )
    assert "cannot load scheduler 'my_scorers:Third'" in maitred("policies", "my_scorers:Third").err


ROUTED = ["simulate", "--rate", "50", "--num-requests", "40", "--num-instances", "3", "--quiet"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--routing-policy", "power-of-two"],
        ["--routing-policy", "weighted", "--routing-scorers", "queue-depth:2,kv-utilization:2,load-balance:1"],
        ["--routing-policy", "session-affinity(round-robin)", "--tenant-mix", "auth:a:0.5,auth:b:0.5"],
    ],
)
def test_a_policy_is_taken_without_a_word(maitred: Any, flags: list[str]) -> None:
    result = maitred(*ROUTED, *flags)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (["--routing-scorers", "load-aware:1"], "routing scorers have no effect with least-loaded"),
        (["--routing-policy", "weighted"], "the scorer precise-prefix-cache looks at the prefix caches of the instances"),
        (
            ["--routing-policy", "weighted", "--routing-scorers", "prefix-affinity:1", "--enable-prefix-caching"],
            "the scorer prefix-affinity looks at what prompts say, which is not known here",
        ),
        (["--routing-policy", "session-affinity"], "session-affinity: no request names a program, routing key or tenant here"),
    ],
)
def test_a_flag_without_effect_is_a_warning(maitred: Any, flags: list[str], warning: str) -> None:
    result = maitred(*ROUTED, *flags)
    assert result.code == 0
    assert result.err.startswith(f"maitred: warning: {warning}")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("command", [ROUTED, ["serve", "--backend", "http://127.0.0.1:9", "--strict-config"]])
@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--routing-policy", "powr-of-two"], "--routing-policy: routing.policy: unknown routing policy 'powr-of-two'"),
        (
            ["--routing-scorers", "queu-depth:2"],
            "--routing-scorers: routing.scorers: unknown scorer 'queu-depth' (did you mean",
        ),
        (
            ["--routing-scorers", "queue-depth"],
            "--routing-scorers: routing.scorers: 'queue-depth' has no weight (write NAME:WEI",
        ),
    ],
)
def test_a_mistake_names_the_flag(maitred: Any, command: list[str], flags: list[str], error: str) -> None:
    result = maitred(*command, *flags)
    assert result.code == 2
    assert result.err.startswith(f"maitred: error: {error}")
    assert len(result.err.splitlines()) == 1


def test_a_mistake_in_a_file_names_its_line(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text("routing:\n  policy: weighted\n  scorers:\n    - queue-depth:2\n    - {name: load-balance, weight: 0}\n")
    result = maitred("check", str(path))
    assert result.code == 2
    assert f"{path}:3: routing.scorers: the weight of 'load-balance' is 0" in result.err
    path.write_text("routing: {policy: weighted, scorers: [queue-depth:2, {name: load-balance, weight: 1}]}\n")
    assert maitred("check", str(path)).code == 0
