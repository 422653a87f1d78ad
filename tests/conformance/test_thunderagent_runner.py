"""The runner of ThunderAgent's scenarios can fail: for what is not as expected, and for what it does not understand."""

import asyncio
import json
from functools import partial

import msgspec
import pytest
import typer

import virtual_time
from conformance import __main__ as command
from conformance.smg_conformance.gateway import in_this_process
from conformance.smg_conformance.scenario import CannotCheck
from conformance.thunderagent_conformance import expect, intentions, rows, snapshots
from conformance.thunderagent_conformance.decisions import Change
from conformance.thunderagent_conformance.engines import Visit
from conformance.thunderagent_conformance.gateway import Flavour, flavours
from conformance.thunderagent_conformance.play import Play, body_of
from conformance.thunderagent_conformance.record import Observation, Record, Released
from conformance.thunderagent_conformance.scenario import Send, read_scenario, variants

ONE = {"backend_capacity_tokens": [10_000]}
RUN_A = {"do": "run", "program": "A", "estimate": 100}


def scenario(*timeline, kind="match", config=ONE, **expected):
    told = {"id": "x", "kind": kind, "title": "", "config": config, "timeline": timeline or [RUN_A], "expect": expected}
    return read_scenario(msgspec.json.encode(told))


def program(backend="b1", state="active", status="acting", total_tokens=100):
    return {"backend": backend, "state": state, "status": status, "total_tokens": total_tokens}


def recorded(of, *changes, **programs):
    """A record of a scenario whose first request was answered at b1, with these decisions, and these programs at the end."""
    record = Record(of.config, of.sends)
    exchange = record.requests[0].exchange
    exchange.sent_at, exchange.ended_at, exchange.status, exchange.complete = 1.0, 1.5, 200, True
    exchange.body = b'data: {"usage":{"total_tokens":1}}\n\ndata: [DONE]\n\n'
    body = {"model": "m", "extra_body": {"a": 1}}
    record.visits = [Visit("1", 0, 1.1, {"authorization": "Bearer k"}, body, ended_at=1.4, end="answered")]
    pages = {"b1": {"capacity_overflow": 0, "cache_config": {"total_tokens_capacity": 10_000}}}
    record.end = Observation(programs=programs, health={"status": "ok", "per_backend": {"b1": {"paused": 0}}}, pages=pages)
    record.observations = {"then": record.end}
    record.state = {"in_flight": 0, "waiting": 0}
    record._changes = [Change(name, action, "", backend) for name, action, backend in changes]
    return record


def failures(record, **expected):
    return [str(failure) for failure in expect.check(expected, record)]


def test_what_is_as_expected_passes_and_everything_else_fails():
    record = recorded(scenario(), ("A", "pause", "b1"), ("B", "pause", "b1"), ("A", "resume", "b1"), A=program())
    record.state_changes = [{"A": "b1/active"}]
    record.requests[0].estimate = 90
    record.csv = "program_id,step_id\nA,1\n"
    record.profiles = {"A": {"step_count": 1}}
    right = {
        "then": {"A": program()},
        "final": {"A": ["b1", "active"]},
        "A": program(),
        "then_total_tokens": 100,
        "A_answered": True,
        "A_backend": "b1",
        "A_admitted_after_s": 0.1,
        "assignment": {"A": "b1"},
        "status": 200,
        "wait_s_max": 0.6,
        "state_sequence": [{"A": "b1/active"}],
        "pause_order": [["A", 100], "B"],
        "resume_order": ["A"],
        "resumes": 1,
        "resume_log": [["A", "b1"]],
        "capacity_overflow": 0,
        "estimate_then_after_answer": {"A": [90, 100]},
        "client_data_lines": 2,
        "client_saw_usage_chunk": True,
        "backend_received_keys": ["extra_body", "model"],
        "backend_extra_body": {"a": 1},
        "backend_authorization": "Bearer k",
        "health": {"status": "ok", "per_backend": {"b1": {"paused": 0}}},
        "metrics_page_one_backend": {"capacity_overflow": 0},
        "profile_step_count": 1,
        "csv_header": "program_id,step_id",
        "csv_rows": 1,
    }
    assert failures(record, **right) == []
    wrong = {
        "then": [{"A": program(total_tokens=99)}, {"A": program(), "B": program()}, {}],
        "final": [{"A": [None, "paused"]}],
        "A": [program(status="reasoning")],
        "then_total_tokens": [99],
        "A_answered": [False],
        "A_backend": ["b2", None],
        "A_admitted_after_s": [None],
        "assignment": [{"A": "b2"}, [{"program": "A", "backend": "b1", "status": 500}]],
        "status": [429],
        "wait_s_max": [0.4],
        "state_sequence": [[]],
        "pause_order": [["B", "A"], ["A"], [["A", 99], "B"]],
        "resume_order": [["B"], ["A", "B"]],
        "resumes": [0],
        "pauses": [1],
        "resume_log": [[["A", "b2"]]],
        "capacity_overflow": [1],
        "marked_for_pause_then": [1],
        "estimate_then_after_answer": [{"A": [91, 100]}, {"A": [90, 101]}],
        "client_data_lines": [3],
        "client_saw_usage_chunk": [False],
        "backend_received_keys": [["model"]],
        "backend_extra_body": [None],
        "backend_authorization": [None],
        "health": [{"status": "bad"}, {"per_backend": {"b1": {"paused": 1}}}],
        "metrics_page_one_backend": [{"capacity_overflow": 1}, {"shared_tokens": 0}],
        "profile_step_count": [2],
        "profile_keys": [["avg_pause_s"]],
        "csv_header": ["program_id"],
        "csv_rows": [2],
    }
    for key, values in wrong.items():
        for value in values:
            assert len(failures(record, **{key: value})) == 1, (key, value)


def test_requests_that_are_left_in_the_books_fail():
    record = recorded(scenario())
    record.state = {"in_flight": 0, "waiting": 1}
    assert failures(record) == ["at the end 0 are in flight and 1 wait still"]


@pytest.mark.parametrize(
    "expected",
    [
        {"colour": "red"},
        {"B_answered": True},
        {"A": "well"},
        {"final": ["A"]},
        {"assignment": "b1"},
        {"release_answer": [200, {}]},
        {"A_wait_after_release_s_max": 1},
    ],
)
def test_an_expectation_that_is_not_understood_is_no_pass(expected):
    with pytest.raises(CannotCheck):
        failures(recorded(scenario(), A=program()), **expected)


@pytest.mark.parametrize("wanted", ["world peace", "answer 409 and do not forward; world peace", 5])
def test_what_is_wanted_and_not_understood_is_no_pass(wanted):
    with pytest.raises(CannotCheck):
        intentions.effective(scenario(kind="defect", wanted=wanted))


def test_a_defect_without_anything_wanted_is_no_pass():
    with pytest.raises(CannotCheck):
        intentions.effective(scenario(kind="defect", A_answered=True))


@pytest.mark.parametrize(
    "timeline",
    [
        [{"do": "juggle"}],
        [{**RUN_A, "mood": "bad"}],
        [RUN_A, {"do": "release", "program": "B"}],
        [RUN_A, {"do": "open_gate", "gate": "g"}],
        [RUN_A, {"do": "start_backend", "backend": "b9"}],
        [{"do": "run", "program": "A"}],
    ],
)
def test_a_timeline_that_is_not_understood_is_not_played(timeline):
    with pytest.raises(CannotCheck):
        scenario(*timeline)


def test_a_body_has_exactly_the_characters_that_its_estimate_needs():
    send = Send(program="A", estimate=100, payload_extra={"docker_ids": ["ü"]})
    assert len(body_of(send, "1").decode()) == 500
    with pytest.raises(CannotCheck):
        Play(scenario({"do": "run", "program": "A", "estimate": 3}))


def test_which_flavour_a_scenario_is_played_with():
    large = {"do": "start", "program": "A", "estimate": 20_000}
    assert flavours(scenario()) == [Flavour.THUNDERAGENT]
    assert flavours(scenario(kind="defect")) == [Flavour.OURS]
    assert flavours(scenario(large, {"do": "release", "program": "A"}, kind="defect")) == [Flavour.THUNDERAGENT]
    assert flavours(scenario(kind="mixed")) == [Flavour.THUNDERAGENT, Flavour.OURS]


def test_ways_to_play_a_scenario_are_played_one_by_one():
    of = scenario(wanted="hysteresis", decay_on={"A_answered": True}, decay_off={"A_answered": False})
    played = {name: (way.config.use_acting_token_decay, way.expect["A_answered"]) for name, way in variants(of)}
    assert played == {"decay_on": (True, True), "decay_off": (False, False)}


def test_notes_say_what_is_expected_instead():
    rows_of = [{"body": "[]", "status": 500, "text": "x"}, {"body": "{}", "status": 400, "text": "y"}]
    other = scenario(answers=rows_of, note="status 500 for lists is a defect (wanted 400)")
    assert [(row["status"], row["text"]) for row in intentions.effective(other)["answers"]] == [(400, None), (400, "y")]
    order = scenario(kind="defect", resume_order=["B", "A"], note="recorded: so; wanted: A, B")
    assert intentions.effective(order)["resume_order"] == ["A", "B"]
    note = "the usage chunk reaching a client that did not ask, and the dropped Authorization header, are defects"
    sent = {**RUN_A, "headers": {"Authorization": "Bearer k"}}
    stream = scenario(sent, client_data_lines=3, client_saw_usage_chunk=True, backend_authorization=None, note=note)
    assert intentions.effective(stream) == {
        **stream.expect,
        "client_data_lines": 2,
        "client_saw_usage_chunk": False,
        "backend_authorization": "Bearer k",
    }


def wanted(words, record):
    return [str(failure) for failure in intentions.check(scenario(wanted=words), record)]


def test_a_wanted_mark_is_needed():
    of = scenario()
    record = recorded(of)
    programs = {name: program(status="reasoning", total_tokens=size) for name, size in (("A", 5000), ("B", 4000), ("C", 2000))}
    for marked, tokens, found in ((1, 2000, 0), (3, 11_000, 1), (1, 5000, 1), (0, 0, 1)):
        page = {"capacity_overflow": 1300, "future_paused_tokens": tokens}
        health = {"per_backend": {"b1": {"marked_for_pause": marked}}}
        record.marks = Observation(programs=programs, health=health, pages={"b1": page})
        assert len(wanted("mark the smallest prefix that covers the overflow", record)) == found


def test_a_wanted_mark_is_withdrawn():
    record = recorded(scenario())
    assert wanted("withdraw marks when pressure ends", record) == []
    record.end.health["per_backend"]["b1"]["marked_for_pause"] = 1
    assert len(wanted("withdraw marks when pressure ends", record)) == 1


def test_wanted_calm_is_none_with_a_pause_after_a_resume():
    calm = recorded(scenario(), ("A", "pause", "b1"), ("A", "resume", "b1"), ("B", "resume", "b1"))
    assert wanted("no pause/resume ping-pong", calm) == []
    restless = recorded(scenario(), ("A", "resume", "b1"), ("A", "pause", "b1"))
    assert len(wanted("no pause/resume ping-pong", restless)) == 1
    assert "pauses" not in intentions.effective(scenario(wanted="hysteresis", pauses=6, resumes=6))
    assert intentions.effective(scenario(wanted="hysteresis", pauses=0, resumes=0))["pauses"] == 0


def test_a_wanted_capacity_is_known_and_held():
    large = scenario({"do": "run", "program": "A", "estimate": 20_000})
    record = recorded(large, A=program())
    assert len(wanted("re-read the capacity", record)) == 1
    record.requests[0].exchange.status = 400
    assert wanted("re-read the capacity", record) == []
    record.end.pages["b1"]["cache_config"] = None
    assert len(wanted("re-read the capacity", record)) == 1


def test_a_wanted_refusal_at_a_release():
    record = recorded(scenario())
    words = "answer 409 or 499 and do not forward"
    exchange = record.requests[0].exchange
    record.released = [Released("A", 1.2, type(exchange)("release"))]
    record.released[0].exchange.body = b'{"released": true}'
    assert len(wanted(words, record)) == 2
    exchange.status, record.visits = 409, []
    assert wanted(words, record) == []
    record.released[0].at = 2.0
    assert len(wanted(words, record)) == 1


def test_programs_act_unless_a_request_is_under_way():
    words = "the program becomes acting when its last request ends"
    record = recorded(scenario(), A=program(status="reasoning"))
    record.observations, record.end.at = {}, 1.2
    assert wanted(words, record) == []
    record.end.at = 2.0
    assert len(wanted(words, record)) == 1


def test_pauses_in_vain_are_found():
    record = recorded(scenario(), A=program(None, "paused"))
    assert wanted("no program is paused in vain", record) == []
    record.end.pages["b1"]["capacity_overflow"] = 5
    assert len(wanted("no program is paused in vain", record)) == 1


def test_a_counter_that_drifts_is_found():
    record = recorded(scenario())
    record.observations = {}
    assert wanted("store the amount at the mark", record) == []
    record.end.pages["b1"]["future_paused_tokens"] = 5
    assert len(wanted("store the amount at the mark", record)) == 1


def test_an_unknown_capacity_refuses_nothing():
    record = recorded(scenario())
    assert wanted("an unknown capacity has no limit", record) == []
    record.requests[0].exchange.status = 503
    assert len(wanted("an unknown capacity has no limit", record)) == 1


def test_a_waiting_program_that_fits_is_found():
    record = recorded(scenario(), A=program(None, "paused", "reasoning", 3000))
    record.end.pages["b1"] |= {"active_program_tokens": 5000, "active_program_count": 1}
    assert len(wanted("a program is resumed wherever it fits", record)) == 1
    record.end.pages["b1"]["active_program_tokens"] = 8000
    assert wanted("a program is resumed wherever it fits", record) == []


def test_rows_in_words():
    answers = [["[]", 500], ["null", 200], ["7", 200], ['"a"', 200], ["absent", 200], ["usage.total_tokens=-1", 200]]
    told = {
        "recorded_answers": answers,
        "wanted": '4xx instead of 500; program_id must be a non-empty string; no shared "default" program',
    }
    of = scenario(**told)
    of = msgspec.structs.replace(of, timeline="one POST /v1/chat/completions per row; ...")
    found = rows.read_rows(of)
    assert [row.clause for row in found] == ["statuses", "ids", "ids", None, "default", None]
    assert [row.program for row in found] == [None, None, None, "a", None, "t-1"]
    for wrong in (
        {**told, "wanted": "world peace"},
        {**told, "recorded_answers": [["7", 200], ["odd", 200]]},
        {**told, "a": 1},
    ):
        with pytest.raises(CannotCheck):
            rows.read_rows(msgspec.structs.replace(of, expect=wrong))


def test_a_program_where_none_is_expected_fails():
    assert len(list(snapshots.programs("end", {}, Observation(programs={"A": program()})))) == 1


def test_the_command_fails_for_what_is_wrong_and_for_what_it_cannot_check(tmp_path, monkeypatch, capsys):
    """Its gateways are served in this process and in virtual time here: a start takes a processor for most of a second."""

    def in_memory(arguments, key):
        return in_this_process(arguments, key, virtual_time.MACHINE.get())

    def told(name, kind="match", **expected):
        return {"id": name, "kind": kind, "title": name, "config": ONE, "timeline": [RUN_A], "expect": expected}

    scenarios = [
        told("right", A=program()),
        told("wrong", A=program(total_tokens=99)),
        told("odd", colour="red"),
        {"id": "other", "title": "of another kind"},
    ]
    file = tmp_path / "scenarios.json"
    file.write_text(json.dumps({"scenarios": scenarios}))
    monkeypatch.setattr(command, "run_thunderagent", partial(command.run_thunderagent, launch=in_memory))
    monkeypatch.setattr(asyncio, "run", virtual_time.run)
    with pytest.raises(typer.Exit) as ended:
        command.main(command.System.THUNDERAGENT, [file], jobs=2)
    assert ended.value.exit_code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 passed, 3 failed"
    assert lines[0].startswith("right passed")
    assert any(line.startswith("       A: expected {'backend': 'b1'") for line in lines)
    assert "       cannot check: the expectation 'colour'" in lines
    assert any("cannot check: Object missing required field" in line for line in lines)
