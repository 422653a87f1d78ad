"""The runner of the conformance scenarios can fail: for what is not as expected, and for what it does not understand."""

import asyncio
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest
import typer
from smg_conformance import expect, intentions, messages, metrics, moments, rows
from smg_conformance.engines import Visit
from smg_conformance.failures import Failure, unless_late
from smg_conformance.gateway import in_this_process
from smg_conformance.metrics import Metrics
from smg_conformance.moments import Event, Moment
from smg_conformance.play import Play, stage
from smg_conformance.record import CLASSES, Record, Request
from smg_conformance.scenario import CannotCheck, Config, File, Send, read_scenario
from smg_conformance.turns import Turns

import virtual_time
from conformance import __main__ as command

FULL = {"error": {"code": "full"}}
ROOT = Path(__file__).parent.parent.parent
METRICS = """
# TYPE maitred_scheduler_admit counter
maitred_scheduler_admit_total{class="default",outcome="admitted"} 2
maitred_scheduler_admit_total{class="default",outcome="rejected_queue_full"} 1
maitred_scheduler_admit_total{class="bulk",outcome="preempted"} 0
# TYPE maitred_scheduler_preemption counter
maitred_scheduler_preemption_total{victim_class="bulk",by_class="interactive"} 2
# TYPE maitred_http_rate_limit counter
maitred_http_rate_limit_total{result="rejected"} 3
"""


def scenario(timeline=(), kind="match", **expected):
    told = {"id": "x", "kind": kind, "title": "", "engines": [{}], "timeline": timeline, "expect": expected}
    return read_scenario(msgspec.json.encode(told))


def answered(name, sent=0.0, ended=1.0, status=200, body=b"{}", at_engine=None, **send):
    """A request with its answer, and the visit at an engine from `at_engine` to its end."""
    request = Request(Send(at=0, name=name, **send))
    request.exchange.sent_at, request.exchange.ended_at = sent, ended
    request.exchange.status, request.exchange.body, request.exchange.complete = status, body, True
    request.exchange.headers = [("Retry-After", "2"), ("content-type", "application/json; charset=utf-8")]
    visit = None if at_engine is None else Visit(name, 0, at_engine, {}, {}, ended_at=ended, end="answered")
    return request, visit


def recorded(*answers):
    record = Record([request for request, _ in answers])
    record.visits = sorted((visit for _, visit in answers if visit is not None), key=lambda visit: visit.at)
    record.metrics = Metrics(METRICS)
    none = dict.fromkeys(CLASSES, 0)
    pool = {"capacity": 4, "reserved": {**none, "system": 1}, "desired": {**none, "system": 100, "interactive": 2}}
    record.state = {"in_flight": 0, "waiting": 0, "mode": "priority", "pools": {"m": pool}}
    return record


def failures(record, **expected):
    return [str(failure) for failure in expect.check(scenario(**expected), record)]


def test_what_is_as_expected_passes_and_everything_else_fails():
    a = answered("a", ended=1.0, at_engine=0.1)
    b = answered("b", ended=0.2, status=429, body=msgspec.json.encode(FULL))
    record = recorded(a, b)
    right = {
        "a": {"status": 200, "wall_s": [0.9, 1.1], "within_s": 1.0, "complete": True, "headers": {"X-Preempted": None}},
        "b": {"status": 429, "body": FULL, "headers": {"retry-after": "2", "Content-Type": "application/json"}},
        "rejected": {"status": 429},
        "statuses_sorted": [429, 200],
        "walls_s_sorted": [1.0],
        "default_walls_s_sorted": [[0.9, 1.1]],
        "engine_order": ["a"],
        "engine": {"disconnects": 0, "order": ["a"]},
        "engine_inflight_at_0.5s": 1,
        "default_running_at_0.05s": 0,
        "engine_inflight_after_b": 1,
        "death_order": ["b"],
        "effective_reservations": {"system": 1, "bulk": 0, "unreserved": 3},
        "desired_total_reserved": 6,
        "metrics": {"admit_total{default}": {"admitted": 2, "rejected_queue_full": 1}},
        "mode": "priority",
    }
    assert failures(record, **right) == []
    wrong = {
        "a": [{"status": 503}, {"wall_s": [1.2, 1.4]}, {"within_s": 0.9}, {"complete": False}, {"body_from": "engine"}],
        "b": [{"body": {}}, {"headers": {"Retry-After": "1"}}, {"headers": {"Retry-After": None}}, {"data_lines": 3}],
        "rejected": [{"status": 408}],
        "statuses_sorted": [[200, 200]],
        "walls_s_sorted": [[1.0, 1.0], [3.0]],
        "engine_order": [["b"], ["a", "b"], []],
        "engine": [{"disconnects": 1}, {"order": []}],
        "engine_inflight_at_0.5s": [0],
        "bulk_running_at_0.5s": [1],
        "death_order": [["a"], []],
        "effective_reservations": [{"system": 2}, {"unreserved": 4}],
        "desired_total_reserved": [102],
        "metrics": [{"admit_total{default}": {"admitted": 2}}],
        "mode": ["legacy"],
    }
    for key, values in wrong.items():
        for value in values:
            assert len(failures(record, **{key: value})) == 1, (key, value)


def test_requests_that_are_left_in_the_books_fail():
    record = recorded(answered("a"))
    record.state["waiting"] = 1
    assert failures(record) == ["at the end 0 are in flight and 1 wait still"]


def test_starts_after_compares_what_the_engines_saw():
    stream = answered("stream", ended=1.0, at_engine=0.0)
    assert failures(recorded(stream, answered("b", at_engine=1.1)), b={"starts_after": "end of stream"}) == []
    early = recorded(stream, answered("b", at_engine=0.9))
    assert failures(early, b={"starts_after": "end of stream"}) == ["b: started 0.10 s before the end of stream"]


def test_only_what_took_too_long_counts_as_late():
    record = recorded(answered("a", ended=1.0))
    late, early = (list(expect.check(scenario(a={"wall_s": wall}), record)) for wall in ([0.1, 0.5], [1.5, 2]))
    assert [failure.late for failure in (*late, *early)] == [True, False]


@pytest.mark.parametrize(
    "expected",
    [
        {"nobody": {"status": 200}},
        {"a": {"colour": "red"}},
        {"a": "preempted (0 bytes)"},
        {"a..c": {"status": 200}},
        {"engine": {"temperature": 1}},
        {"metrics": {"admit_total": "two"}},
        {"effective_reservations": {"gold": 1}},
        {"engine_inflight_at_dawn": 1},
        {"wanted": "world peace"},
    ],
)
def test_an_expectation_that_is_not_understood_is_no_pass(expected):
    with pytest.raises(CannotCheck):
        failures(recorded(answered("a")), **expected)


def test_of_a_defect_the_wanted_is_checked_and_not_the_recorded():
    a, b = {"status": 503}, {"complete": True}
    defect = scenario(kind="defect", recorded={"a": "dead"}, recorded_b="dead", wanted={"a": a}, wanted_b=b)
    assert expect.effective(defect) == {"a": a, "b": b}
    with pytest.raises(CannotCheck):
        expect.effective(scenario(kind="defect", recorded={"a": {"status": 200}}))


def test_what_is_wanted_in_words_can_be_missed():
    refused = recorded(answered("a", status=503))
    for words in ("keep at least one slot reachable for every class, or warn", "protect a promoted request"):
        assert list(intentions.check(words, refused))
    assert list(intentions.check("count every outcome", refused))
    refused.exchange("a").body = b""
    assert list(intentions.check("never end a stream with zero bytes", refused))
    assert not list(intentions.check("keep at least one slot reachable for every class", recorded(answered("a"))))


def test_metrics_by_their_recorded_names():
    seen = Metrics(METRICS)
    right = {
        "admit_total{default}": {"admitted": 2, "rejected_queue_full": 1},
        "preemption_total{victim_class=bulk,by_class=interactive}": 2,
        "preemption_total": {"bulk by interactive": 2},
        "smg_http_rate_limit_total{rejected}": 3,
        "admit_total": {"default": {"admitted": 2, "rejected_queue_full": 1}, "bulk": {"preempted": 0}},
        "never_heard_of_total": 0,
    }
    assert list(metrics.compare(right, seen)) == []
    for key, value in {
        "admit_total{default}": {"admitted": 2},
        "admit_total{bulk}": {"preempted": 1},
        "preemption_total": 0,
        "preemption_total{by_class=system}": 2,
        "never_heard_of_total": 1,
    }.items():
        assert len(list(metrics.compare({key: value}, seen))) == 1, key


@pytest.mark.parametrize(
    ("words", "moment"),
    [
        (0.5, Moment(0.5)),
        ("after a", Moment(0, Event.ENDED, ("a",))),
        ("2.5 s after a", Moment(2.5, Event.ENDED, ("a",))),
        ("when a runs", Moment(0, Event.RUNS, ("a",))),
        ("when a is queued", Moment(0, Event.QUEUED, ("a",))),
        ("0.1 s after the first chunk of a", Moment(0.1, Event.FIRST_DATA, ("a",))),
        ("after a leaves", Moment(0, Event.ENDED, ("a",))),
        ("after r0..r2 and a", Moment(0, Event.ENDED, ("r0", "r1", "r2", "a"))),
        ("after all", Moment(0, Event.ENDED, ("a", "r0", "r1", "r2"))),
        ("end of a", Moment(0, Event.ENDED, ("a",))),
    ],
)
def test_times_in_words(words, moment):
    assert moments.read_moment(words, ["a", "r0", "r1", "r2"]) == moment


@pytest.mark.parametrize(
    "timeline",
    [
        [{"at": "after nobody", "do": "send", "name": "a"}],
        [{"at": "at noon", "do": "release_held"}],
        [{"at": 0, "do": "send", "name": "a"}, {"at": 1, "do": "send", "name": "a"}],
        [{"at": 0, "do": "remove_engine", "index": 4}],
        "somehow",
    ],
)
def test_a_timeline_that_is_not_understood_is_not_played(timeline):
    with pytest.raises(CannotCheck):
        Play(scenario(timeline=timeline))


@pytest.mark.parametrize(
    "timeline",
    [[{"at": 0, "do": "send", "name": "a", "engine_mood": "bad"}], [{"at": 0, "do": "juggle"}]],
)
def test_a_key_that_is_not_known_is_not_read_over(timeline):
    with pytest.raises(CannotCheck):
        scenario(timeline=timeline)


def test_requests_in_words():
    config = Config(tenant_api_keys={"acme": "k"}, api_key="s", trust_tenant_header=True)

    def said(words, **row):
        return rows._headers(rows.RequestRow(status=200, request=words, **row), config, None)

    bearer, tenant, priority = "authorization", "x-smg-tenant-id", "x-smg-priority"
    assert said("acme asks bulk") == [(bearer, "Bearer k"), (priority, "bulk")]
    assert said("acme (max bulk) no header") == [(bearer, "Bearer k")]
    assert said("acme key + header Red asks system") == [(bearer, "Bearer k"), (tenant, "Red"), (priority, "system")]
    assert said("shared key asks system") == [(bearer, "Bearer s"), (priority, "system")]
    assert said("empty tenant header asks system") == [(tenant, ""), (priority, "system")]
    assert said("unknown tenant no prio header", clamp={"tenant": "header:zzz"}) == [(tenant, "zzz")]
    assert said("no key") == []
    with pytest.raises(CannotCheck):
        said("a stranger asks system")


def test_a_message_must_name_the_culprit():
    file = "classes:\n  bulk: {queue_size: 3}\n"
    for recorded_words, good, bad in (
        ("unknown variant `gold`", "unknown class 'gold'", "unknown class 'golden'"),
        ("missing field", "classes.bulk: lacks reserved_floor", "classes.bulk is wrong"),
        ("queue_timeout_secs must be > 0", "bulk.queue_timeout_secs must be > 0", "a timeout must be > 0"),
        ("classes: invalid type", "priority.yaml:1: not a mapping", "priority.yaml: not a mapping"),
        ("exceeds capacity", "sum (2000) exceeds capacity (1024)", "too much is reserved"),
    ):
        assert list(messages.check(recorded_words, file, good)) == []
        assert len(list(messages.check(recorded_words, file, bad))) == 1


def in_memory(arguments, key):
    return in_this_process(arguments, key, virtual_time.MACHINE.get())


def told(name, **expected):
    timeline = [{"at": 0, "do": "send", "name": "a"}]
    return {"id": name, "kind": "match", "title": name, "engines": [{}], "timeline": timeline, "expect": expected}


def test_the_command_fails_for_what_is_wrong_and_for_what_it_cannot_check(tmp_path, monkeypatch, capsys):
    """Its gateways are served in this process and in virtual time here: a start takes a processor for most of a second."""
    file = tmp_path / "scenarios.json"
    scenarios = [
        told("right", a={"status": 200}),
        told("wrong", a={"status": 429}),
        told("odd", a={"colour": "red"}),
        told("late", a={"within_s": 0}),
    ]
    file.write_text(json.dumps({"scenarios": [*scenarios, {"id": "other", "title": "of another kind"}]}))
    monkeypatch.setattr(command, "run_smg", partial(command.run_smg, launch=in_memory))
    monkeypatch.setattr(asyncio, "run", virtual_time.run)
    with pytest.raises(typer.Exit) as ended:
        command.main(command.System.SMG, [file], jobs=3)
    assert ended.value.exit_code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 passed, 4 failed"
    assert lines[0].startswith("right passed")
    assert "       a: expected 429, got 200" in lines
    assert "       cannot check: a: the key 'colour'" in lines
    assert any("note: played 3 times: before, it was only late (a: wall time: expected 0.00 to" in line for line in lines)
    assert any("cannot check: Object missing required field `kind`" in line for line in lines)


def test_the_command_plays_a_gateway_in_a_process_of_its_own(tmp_path):
    file = tmp_path / "scenarios.json"
    file.write_text(json.dumps({"scenarios": [told("right", a={"status": 200})]}))
    shell = [sys.executable, "-m", "tests.conformance", "smg", str(file)]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed"


def test_a_playing_that_lagged_is_no_verdict_and_one_that_kept_its_time_is():
    wrong = Failure("a: expected 200, got 429")
    assert unless_late(wrong, lag_secs=0.0) == wrong
    excused = unless_late(wrong, lag_secs=0.48)
    assert excused.late
    assert str(excused) == "a: expected 200, got 429 (the timeline lagged by 0.48 s)"


def test_a_playing_measures_by_how_much_it_lagged():
    timeline = [{"at": 0, "do": "send", "name": "a", "engine_delay_s": 0.3}]

    async def played():
        play = Play(scenario(timeline))
        turns = Turns(1, in_this_process)
        async with stage(scenario(timeline), File(scenarios=[]), turns) as world:
            asyncio.get_running_loop().call_later(0.1, time.sleep, 0.3)
            return (await play.on(world, {})).lag_secs

    assert asyncio.run(played()) >= 0.25
