"""The life of a program in our flavour: several requests at once, bounds, expiry, failure and drain of backends."""

import pytest
from programs_timeline import SYSTEM, Timeline, paused, pressed

from maitred.core.request import PriorityClass
from maitred.core.units import SECOND
from maitred.programs import BackendStatus, ProgramRequest, Programs, ProgramsConfig, Usage

DOWN, DRAINING = BackendStatus.DOWN, BackendStatus.DRAINING


def test_a_program_acts_when_the_last_of_its_requests_has_ended_however():
    t = Timeline(10_000)
    t.start("A", 1000)
    t.at(1)
    t.start("A", 2000)
    assert t.snapshot("A") == ("b1", "active", "reasoning", 3000)
    t.end("A", 1200)
    assert t.snapshot("A") == ("b1", "active", "reasoning", 3200)
    t.at(5)
    t.end("A")  # it failed
    assert t.snapshot("A") == ("b1", "active", "acting", 3200)
    assert t.program("A").acting_since == 5 * SECOND


def test_requests_of_a_paused_program_wait_and_go_together():
    t = pressed()
    t.start("X", 8000)
    t.start("A", 3000)
    t.start("A", 1000)
    assert t.program("A").tokens == 4000
    t.end("X", 0)
    assert t.where("A") == ["b1"]
    assert len(t.program("A").contexts) == 2


def test_a_client_that_leaves_frees_its_place_at_once():
    t = pressed()
    t.start("X", 5000)
    t.start("A", 6000)
    t.start("B", 4000)
    assert t.where("B") == ["b1"]  # small ones pass
    t.start("C", 100)
    t.end("A")
    assert not list(t.core.find("", "A"))
    assert t.core.num_waiting == 0


def test_a_program_that_fits_nowhere_is_refused_at_once():
    t = Timeline(5000, 8000)
    assert t.start("A", 7901) == "reject oversized"
    assert t.start("B", 7900) == "grant placed"


def test_a_waiting_program_that_fits_nowhere_any_more_is_refused():
    t = Timeline(8000)
    t.start("X", 7000)
    t.start("A", 7000)
    t.backend(0, capacity=5000)
    assert [str(d.reason) for d in t.log if d.action == "reject"] == ["oversized"]
    assert t.core.num_waiting == 0


def test_idle_programs_expire_and_their_memory_is_given_away():
    t = Timeline(5000, program_ttl_secs=60, max_wait_secs=1000, patience_secs=1000)
    t.run("A", 3000)
    t.at(30)
    t.start("B", 3000)
    t.at(59)
    assert t.waits("B")
    t.at(60)
    assert t.where("B") == ["b1"]
    assert not list(t.core.find("", "A"))


def test_one_program_more_than_a_tenant_may_have_replaces_the_one_that_is_idle_for_longest():
    t = Timeline(50_000, max_programs_per_tenant=2)
    t.run("A", 100)
    t.at(1)
    t.run("B", 100)
    t.at(2)
    t.run("A", 100)
    t.start("C", 100)
    assert {p.key.name for p in t.core.programs} == {"A", "C"}
    t.start("A", 100)
    assert t.start("D", 100) == "reject too_many_programs"
    assert t.start("D", 100, tenant="other") == "grant placed"


def test_the_number_of_waiting_requests_is_bounded():
    t = Timeline(5000, max_waiting=1)
    t.start("X", 4000)
    t.start("A", 3000)
    assert t.start("B", 3000) == "reject too_many_waiting"
    assert not list(t.core.find("", "B"))


def test_models_that_clients_invent_are_not_kept():
    core = Programs(ProgramsConfig(mode="tr"))
    core.set_backend(0, 0, models=["m"], capacity=1000)
    assert core._places.backends.pool("invented") is not core._places.backends.pool("invented")
    assert list(core._places.backends.models()) == ["m"]


def test_idle_programs_of_a_failed_backend_move_with_their_next_request():
    t = Timeline(10_000, 10_000)
    t.run("A", 3000)
    t.backend(0, status=DOWN, capacity=10_000)
    assert paused(t, "A")
    assert t.core.lost_kv_tokens == 3000
    assert t.start("A", 3500) == "grant resumed"
    assert t.where("A") == ["b2"]


def test_a_request_that_its_backend_failed_moves_at_once():
    t = Timeline(10_000, 10_000)
    t.start("A", 3000)
    t.backend(0, status=DOWN, capacity=10_000)
    assert t.where("A") == ["b1"]
    decisions = t.follow(t.core.move(t.requests["A"][0], t.now))
    assert decisions[-1].action == "grant"
    assert decisions[-1].backend == 1


def test_all_requests_of_a_program_move_together():
    t = Timeline(10_000, 10_000)
    for tokens in (1000, 2000, 3000):
        t.start("A", tokens)
    t.backend(0, status=DOWN, capacity=10_000)
    assert t.start("A", 500) == "wait backend_down"
    first, second, third, _ = t.requests["A"]
    assert t.follow(t.core.move(first, t.now))[-1].action == "wait"
    assert t.follow(t.core.end(second, None, t.now)) == []
    decisions = t.follow(t.core.move(third, t.now))
    assert [d.request for d in decisions if d.action == "grant"] == [4, first, third]
    assert t.where("A") == ["b2"]


def test_requests_that_waited_for_others_go_to_the_backend_if_it_is_well_again():
    t = Timeline(10_000)
    t.start("A", 1000)
    t.backend(0, status=DOWN, capacity=10_000)
    t.start("A", 500)
    decisions = t.backend(0, capacity=10_000)
    assert [(str(d.action), d.request) for d in decisions] == [("grant", 2)]


def test_programs_leave_a_drained_backend_between_two_requests():
    t = Timeline(10_000, 10_000)
    t.start("A", 3000)
    t.run("B", 2000)
    t.run("B2", 2500)
    t.backend(0, status=DRAINING, capacity=10_000)
    assert t.where("A") == ["b1"]
    t.end("A", 3000)
    assert t.where("A") == [None]
    assert t.core.lost_kv_tokens == 0
    t.start("A", 3000)
    assert t.where("A") == ["b2"]
    (first, _) = t.core.backends
    assert first.num_programs == 0


def test_programs_leave_a_backend_that_serves_their_model_no_more():
    t = Timeline(10_000, 10_000)
    t.run("A", 3000)
    t.backend(0, models=["other"], capacity=10_000)
    t.start("A", 3000)
    assert t.where("A") == ["b2"]


@pytest.mark.parametrize("reported", [3000, 20_000])
def test_shared_tokens_are_subtracted_and_go_with_the_programs_that_share_them(reported):
    t = Timeline(20_000)
    for name in "ABCD":
        t.run(name, 3000)
    t.backend(0, capacity=20_000, shared_tokens=reported)
    (backend,) = t.core.backends
    shared = min(reported, 12_000)
    assert backend.used == 12_000 - shared + 400
    t.release("A")
    t.release("B")
    assert backend.used == 6000 - shared // 2 + 200
    for name in "EFGH":
        t.run(name, 3000)
    assert backend.shared_tokens == shared


def test_another_class_of_the_next_request_counts():
    t = Timeline(10_000)
    t.run("A", 100)
    t.run("A", 100, priority_class=SYSTEM)
    assert t.program("A").priority_class is PriorityClass.SYSTEM


def test_what_a_new_core_would_need_cannot_be_reconfigured():
    t = Timeline(10_000)
    with pytest.raises(ValueError, match=r"programs\.flavour cannot change"):
        t.core.reconfigure(ProgramsConfig(mode="tr", flavour="thunderagent"), 0)


def test_another_ageing_orders_those_that_wait_already():
    t = pressed(patience_secs=10**6, ageing_secs_per_1k_tokens=0)
    t.start("X", 9900)
    t.start("large", 8000)
    t.at(1)
    t.start("small", 3000)
    t.core.reconfigure(
        ProgramsConfig(mode="tr", acting_estimator="fixed", headroom=0, patience_secs=10**6, ageing_secs_per_1k_tokens=1), t.now
    )
    t.end("X", 0)
    t.release("X")
    assert t.changes()[0] == "resume small"


def reconfigured(t, **keys):
    """Let a core of `pressed()` go by other keys."""
    known = {"mode": "tr", "acting_estimator": "fixed", "headroom": 0, "patience_secs": 10**6}
    t.follow(t.core.reconfigure(ProgramsConfig(**known | keys), t.now))


@pytest.mark.parametrize(("secs", "granted_at"), [(100, 110), (1000, 1010), (20, 60)])
def test_another_longest_wait_counts_for_those_that_wait_already(secs, granted_at):
    """A waits from 10 s on. What would be over by now is over at once."""
    t = pressed(max_wait_secs=500, patience_secs=10**6)
    t.start("X", 9900)
    t.at(10)
    t.start("A", 8000)
    t.at(60)
    reconfigured(t, max_wait_secs=secs)
    t.at(max(60, granted_at - 1e-6))
    assert t.waits("A") == (granted_at != 60)
    t.at(granted_at)
    assert [(d.reason, d.at) for d in t.log if d.action == "resume"] == [("max_wait", granted_at * SECOND)]


@pytest.mark.parametrize(("secs", "gone_at"), [(100, 105), (5000, 5005), (20, 60)])
def test_another_time_to_live_counts_for_programs_that_are_idle_already(secs, gone_at):
    t = Timeline(10_000)
    t.at(5)
    t.run("A", 100)
    t.at(60)
    reconfigured(t, program_ttl_secs=secs)
    t.at(max(60, gone_at - 1e-6))
    assert bool(list(t.core.find("", "A"))) == (gone_at != 60)
    t.at(gone_at)
    assert not list(t.core.find("", "A"))
    assert (t.log[-1].reason, t.log[-1].at) == ("expired", gone_at * SECOND)


def test_one_odd_answer_does_not_have_larger_requests_refused():
    core = Programs(ProgramsConfig(mode="tr"))
    core.set_backend(0, 0, models=["m"], capacity=4000)
    core.begin(ProgramRequest(id=1, model="m", program="A", characters=80), 0)
    core.end(1, Usage(prompt_tokens=80, total_tokens=90), 1)  # one character per token: a long template on a short message
    core.release("", "A", 2)
    (decision,) = core.begin(ProgramRequest(id=2, model="m", program="B", characters=12_000), 3)
    assert decision.action == "grant"
    assert next(iter(core.programs)).tokens == 3900  # what fits beside the buffer, and not 12,000
    core.end(2, Usage(prompt_tokens=2400, total_tokens=2500), 4)
    decisions = core.begin(ProgramRequest(id=3, model="m", program="C", characters=30_000), 5)
    assert decisions[0].reason == "oversized"  # at the ratio with which every model starts it does not fit either
