"""`maitred simulate --admission ...`: modes, and the sources that may give them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LOAD = ("--rate", 200, "--num-requests", 300, "--input-tokens", 100, "--output-tokens", 20)
OVERLOAD = (*LOAD, "--class-mix", "interactive:1,bulk:9")
"""Five times the load that four slots can carry; the chats alone are half of that load."""
SLOTS = ("--capacity", 4)
SMG = """\
classes:
  bulk:
    reserved_floor: 0
    queue_size: 5
    queue_timeout_secs: 300
    starvation_threshold_secs: 120
    can_preempt: false
"""


def figures(maitred: Any, *flags: object, **options: Any) -> Any:
    result = maitred("simulate", *OVERLOAD, *flags, "--metrics-path", "m.json", **options)
    told = [line for line in result.err.splitlines() if not line.startswith("maitred: warning: a capacity has no effect")]
    assert (result.code, len(told)) == (0, 1), result.err
    return json.loads(Path("m.json").read_text(encoding="utf-8"))


def p99(of: Any, cls: str) -> float:
    return float(of["per_class"][cls]["ttft_p99_ms"])


def test_classes_protect_chats_and_the_legacy_queue_does_not(maitred: Any) -> None:
    legacy = figures(maitred, "--admission", "legacy", *SLOTS)
    priority = figures(maitred, "--admission", "priority", *SLOTS)
    assert p99(priority, "interactive") < p99(legacy, "interactive") / 5
    assert p99(priority, "bulk") > p99(legacy, "bulk") / 2
    for of in (legacy["per_class"], priority["per_class"]):
        for cls in of.values():
            ends = ("completed_requests", "rejected_requests", "preempted_requests", "unfinished_requests")
            assert sum(cls[end] for end in ends) == cls["injected_requests"]


def test_a_capacity_alone_means_priority_and_nothing_at_all_means_no_admission(maitred: Any) -> None:
    assert figures(maitred, *SLOTS) == figures(maitred, "--admission", "priority", *SLOTS)
    assert figures(maitred) == figures(maitred, "--admission", "off", *SLOTS)


@pytest.mark.parametrize("flag", ["--admission-config", "--priority-scheduler-config"])
def test_an_admission_section_in_a_file_of_its_own(maitred: Any, flag: str) -> None:
    Path("smg.yaml").write_text(SMG, encoding="utf-8")
    of = figures(maitred, "--admission", "priority", flag, "smg.yaml", *SLOTS)
    assert of["per_class"]["bulk"]["rejected_requests"] > 50
    assert of["per_class"]["interactive"]["rejected_requests"] == 0


def test_a_mode_counts_whichever_source_gives_it(maitred: Any) -> None:
    Path("m.yaml").write_text("mode: legacy\nlegacy: {max_concurrent_requests: 4}\n", encoding="utf-8")
    Path("c.yaml").write_text("admission: {mode: legacy, legacy: {max_concurrent_requests: 4}}\n", encoding="utf-8")
    by_flag = figures(maitred, "--admission", "legacy", *SLOTS)
    assert figures(maitred, "--admission-config", "m.yaml") == by_flag
    assert figures(maitred, "--config", "c.yaml") == by_flag
    by_variable = figures(maitred, *SLOTS, env={"MAITRED_ADMISSION__MODE": "legacy"})
    assert by_variable == by_flag


def test_a_config_with_rules_but_no_mode_changes_nothing(maitred: Any) -> None:
    Path("c.yaml").write_text("admission: {classes: {bulk: {queue_size: 0}}}\n", encoding="utf-8")
    assert figures(maitred, "--config", "c.yaml") == figures(maitred)


def test_victims_and_those_tried_again_are_shown_by_class(maitred: Any) -> None:
    victims = maitred("simulate", *OVERLOAD, *SLOTS, env={"MAITRED_ADMISSION__ON_PREEMPT": "reject"})
    assert "preempted" in victims.out
    assert "retries" not in victims.out
    tried = maitred("simulate", *OVERLOAD, *SLOTS)
    assert "retries" in tried.out


def test_tenants_are_drawn_and_their_policies_heeded(maitred: Any) -> None:
    Path("a.yaml").write_text("mode: priority\ntenant_policies: {'auth:acme': {max_class: bulk}}\n", encoding="utf-8")
    tenants = ("--tenant-mix", "auth:acme:1,auth:globex:1")
    plain = figures(maitred, "--admission-config", "a.yaml")["per_class"]["interactive"]["injected_requests"]
    capped = figures(maitred, "--admission-config", "a.yaml", *tenants)["per_class"]["interactive"]["injected_requests"]
    assert plain / 4 < capped < plain * 3 / 4
    trace = ("simulate", "--trace", "sample:mixed", "--admission-config", "a.yaml", "--metrics-path", "m.json")
    assert maitred(*trace, "--tenant-mix", "auth:acme:1").code == 0
    assert set(json.loads(Path("m.json").read_text(encoding="utf-8"))["per_class"]) == {"bulk"}


PRIORITY = ["--admission", "priority", "--capacity", "2", "--admission-config"]
LEGACY = ["--admission", "legacy", "--capacity", "2", "--admission-config"]
MISTAKES = [
    (["--admission", "priorty"], "--admission: admission.mode: 'priorty' cannot be chosen (did you mean 'priority'?)"),
    (["--admission-config", "a.yaml"], "--admission-config: without admission it has no effect (turn it on with --admission"),
    ([*PRIORITY, "a.yaml"], "sum of class reservations (6) exceeds capacity (2) (on_overcommit: clamp"),
    ([*LEGACY, "l.yaml"], "are two limits for one thing (give one of them)"),
    ([*PRIORITY, "bad.yaml"], "bad.yaml:1: unknown key 'admission.clases' (did you mean 'classes'?)"),
    ([*PRIORITY, "none.yaml"], "none.yaml"),
    ([*PRIORITY, "a.yaml", "--metrics-path", "a.yaml"], "is already what --admission-config reads"),
    (["--tenant-mix", "acme:1"], "--tenant-mix: 'acme' matches no tenant: write auth:acme"),
]


@pytest.mark.parametrize(("flags", "what"), MISTAKES, ids=[" ".join(flags) for flags, _ in MISTAKES])
def test_a_mistake_is_one_line_with_a_hint(maitred: Any, flags: list[str], what: str) -> None:
    Path("a.yaml").write_text("classes: {bulk: {reserved_floor: 6}}\n", encoding="utf-8")
    Path("l.yaml").write_text("legacy: {max_concurrent_requests: 7}\n", encoding="utf-8")
    Path("bad.yaml").write_text("clases: {}\n", encoding="utf-8")
    result = maitred("simulate", *OVERLOAD, *flags)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("maitred: error: ")
    assert result.err.count("\n") == 1
    assert what in result.err


def test_the_log_of_a_run_with_preemptions_and_tenants_replays_to_the_same_bytes(maitred: Any) -> None:
    from maitred.core.decisions import DecisionLog
    from maitred.replay import replay

    Path("a.yaml").write_text("{mode: priority, on_preempt: retry, slot_cost: tokens, slot_tokens: 100}", encoding="utf-8")
    tenants = ("--tenant-mix", "auth:acme:1,anonymous:1")
    figures(maitred, "--admission-config", "a.yaml", *SLOTS, *tenants, "--decision-log", "log.jsonl")
    lines, again = Path("log.jsonl").read_bytes().splitlines(keepends=True), list[bytes]()
    replay(lines, DecisionLog(again.append))
    assert any(b'"preempt"' in line for line in lines)
    assert any(b"auth:acme" in line for line in lines)
    assert [line for line in lines if b'"seal"' not in line] == again
