"""Tenants take turns for places in KV memory: no tenant keeps another waiting, with idle programs or with busy ones."""

import pytest
from programs_timeline import BULK, SYSTEM, Timeline

from maitred.core.units import SECOND
from maitred.programs import ProgramRequest, Programs, ProgramsConfig, Usage


def full(*, num=10, waiting=0):
    """Return a timeline in which `num` programs of the tenant A fill the memory, and act; `waiting` others wait."""
    t = Timeline(11_200, headroom=0.0)
    for i in range(num):
        t.run(f"a{i}", 1000, tenant="A")
    for i in range(waiting):
        assert t.start(f"w{i}", 1000, tenant="A") == "wait no_room"
    return t


def granted(t, name, tenant):
    return t.program(name, tenant).backend is not None


def test_idle_programs_give_way_to_another_tenant_after_the_patience():
    t = full()  # `fixed`: they count in full for ever
    t.at(6)
    assert t.start("b", 1000, tenant="B") == "wait no_room"
    t.at(15.9)
    assert not granted(t, "b", "B")
    t.at(20)  # the first tick after 16 s
    assert granted(t, "b", "B")
    assert sum(p.backend is None for p in t.core.programs) == 1  # and one alone


def test_idle_programs_of_the_own_tenant_do_not_give_way():
    t = full()
    t.start("b", 1000, tenant="A")
    t.at(60)
    assert not granted(t, "b", "A")


@pytest.mark.parametrize("waiting", [0, 30])
def test_programs_that_ask_again_at_once_give_way_as_their_requests_end(waiting):
    t = full(waiting=waiting)
    for i in range(10):
        t.start(f"a{i}", 1000, tenant="A")
    t.at(1)
    t.start("b", 1000, tenant="B")
    served = now = 0
    while not granted(t, "b", "B"):
        now += 1
        assert now <= 12, "a patience of 10 s, and the end of one request"
        t.at(1 + now)
        for i in range(10):
            if t.program(f"a{i}", "A").contexts:
                t.end(f"a{i}", 1000)
                t.start(f"a{i}", 1000, tenant="A")
                served += 1
    assert served < 130


def test_a_large_program_of_another_tenant_gets_the_room_of_several():
    t = full()
    for i in range(10):
        t.start(f"a{i}", 1000, tenant="A")
    t.start("b", 10_900, tenant="B")
    t.at(11)
    for i in range(10):
        assert not granted(t, "b", "B")
        t.end(f"a{i}", 1000)
        t.start(f"a{i}", 1000, tenant="A")
    assert granted(t, "b", "B")


def test_a_tenant_gets_no_more_than_others_keep():
    t = full(num=4)
    for i in range(5):
        t.run(f"b{i}", 1000, tenant="B")
    t.start("b9", 1500, tenant="B")  # B would hold 6,500, and A holds 4,000
    t.at(60)
    assert not granted(t, "b9", "B")
    assert all(granted(t, f"a{i}", "A") for i in range(4))


def test_a_higher_class_does_not_give_way():
    t = Timeline(11_200, headroom=0.0)
    for i in range(10):
        t.run(f"a{i}", 1000, tenant="A", priority_class=SYSTEM)
    t.start("b", 1000, tenant="B")
    t.start("c", 1000, tenant="C", priority_class=BULK)
    t.at(60)
    assert not granted(t, "b", "B")
    assert not granted(t, "c", "C")


def test_each_of_many_tenants_gets_its_turn():
    t = full(waiting=20)
    for name in "BCDE":
        t.start("p", 1000, tenant=name)
    t.at(30)
    assert all(granted(t, "p", name) for name in "BCDE")


def test_programs_of_all_tenants_together_are_bounded():
    core = Programs(ProgramsConfig(mode="tr", max_programs=3))
    core.set_backend(0, 0, models=["m"])
    ended = [(number, name) for number, name in enumerate("ABC", 1)]
    for number, tenant in ended:
        core.begin(ProgramRequest(id=number, model="m", tenant=tenant, program="p", prompt_tokens=10), number * SECOND)
    core.end(2, Usage(10, 10), 4 * SECOND)
    core.end(1, Usage(10, 10), 5 * SECOND)
    core.begin(ProgramRequest(id=4, model="m", tenant="D", program="p", prompt_tokens=10), 6 * SECOND)
    assert [p.key.tenant for p in core.programs] == ["A", "C", "D"]
    core.begin(ProgramRequest(id=5, model="m", tenant="E", program="p", prompt_tokens=10), 7 * SECOND)
    said = core.begin(ProgramRequest(id=6, model="m", tenant="F", program="p", prompt_tokens=10), 8 * SECOND)
    assert [p.key.tenant for p in core.programs] == ["C", "D", "E"]
    assert [f"{d.action} {d.reason}" for d in said] == ["reject too_many_programs"]
    core.check()


def test_one_of_a_higher_class_that_is_let_in_opens_nothing_that_is_kept_for_the_oldest():
    t = Timeline(4_000, headroom=0.0)
    t.start("busy", 2_000)
    assert t.start("large", 3_000, priority_class=BULK) == "wait no_room"
    t.at(11)
    assert t.start("small", 1_000, priority_class=BULK) == "wait no_room"  # what is left is kept for the large one
    t.at(12)
    t.start("chat", 500, priority_class=SYSTEM)
    assert t.program("chat").backend == 0
    assert t.program("small").backend is None
    t.at(30)
    assert t.program("small").backend is None
    t.release("busy")
    assert t.program("large").backend == 0
