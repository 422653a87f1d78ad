"""What an input leaves to settle is settled before it is answered, in the order that `agenda` gives, and nothing is left."""

from random import Random

import pytest
from programs_timeline import pressed

from maitred.core.errors import InvariantError
from maitred.core.request import PriorityClass
from maitred.core.units import SECOND
from maitred.programs import ProgramAction, ProgramRequest, Programs, ProgramsConfig, Usage


def words(decisions, core):
    """Return decisions as `action program`, or as `action request` where they are about one."""
    names = {p.serial: p.key.name for p in core.programs}
    return [f"{d.action} {names.get(d.program, d.program) if d.request is None else d.request}" for d in decisions]


def test_an_end_that_lacks_memory_pauses_first_and_then_lets_in_what_the_pause_has_left():
    t = pressed(min_stay_secs=0)
    t.run("small", 4000)
    t.start("grows", 5000)
    assert t.start("waits", 900) == "wait no_room"  # 9,000 and two buffers leave 800
    # 1,200 are missing now. The pause of 4,000 leaves 2,900, in which 900 fit; the paused one does not.
    assert words(t.end("grows", 6900), t.core) == ["pause small", "resume waits", "grant 3"]


def test_a_begin_uses_no_room():
    t = pressed(min_stay_secs=0)
    t.run("shrinks", 9000)
    assert t.start("waits", 2000) == "wait no_room"
    # An agent that has dropped a part of its context asks with 7,000: 2,900 are left, and the next event finds it.
    assert words(t.follow(begin(t, "shrinks", 7000)), t.core) == ["grant 3"]
    assert words(t.end("shrinks", 7000), t.core) == ["resume waits", "grant 2"]


def begin(t, name, tokens):
    t.num_requests += 1
    t.requests.setdefault(name, []).append(t.num_requests)
    return t.core.begin(ProgramRequest(id=t.num_requests, model="m", program=name, prompt_tokens=tokens), t.now)


def test_each_refusal_of_a_backend_that_became_smaller_lets_others_in_before_the_next_one():
    t = pressed(patience_secs=3)
    t.start("runs", 7000)
    t.start("large", 9000)
    t.at(2)
    t.start("larger", 9500)
    t.at(4)
    assert t.start("small", 1500) == "wait no_room"  # 2,900 are left, and held for the large one
    decisions = t.backend(0, capacity=9050)
    said = [f"{d.action} {d.reason}" for d in decisions]
    refused = ["reject oversized", "end ended"]
    assert said == [*refused, "resume room", "grant resumed", *refused]
    assert t.where("small") == ["b1"]


def test_requests_that_are_too_large_are_refused_before_programs_are_paused():
    t = pressed(min_stay_secs=0)
    t.run("acts", 3000)
    t.start("runs", 6000)
    t.start("large", 9500)
    decisions = t.backend(0, capacity=8000)  # 9,200 are used
    assert [f"{d.action} {d.reason}" for d in decisions] == ["reject oversized", "end ended", "pause overflow"]


def test_a_core_that_was_not_settled_says_so():
    t = pressed()
    t.run("a", 1000)
    t.core._agenda.note_change(next(iter(t.core.backends)))
    with pytest.raises(InvariantError, match="not been settled"):
        t.core.check()


@pytest.mark.parametrize("seed", range(6))
def test_what_is_settled_stays_settled(seed):
    """Telling a core once more what it knows of a backend changes nothing, but may withdraw a mark that a larger one covers."""
    rng = Random(seed)
    core = Programs(ProgramsConfig(mode="tr", acting_estimator="learned", min_stay_secs=rng.choice([0, 2]), patience_secs=3))
    backend = {"models": ["m"], "capacity": 10_000}
    core.set_backend(0, 0, **backend)
    under_way, num_again = [], 0
    for number in range(400):
        now = number * SECOND // 3
        if under_way and rng.random() < 0.5:
            total = rng.choice([500, 2000, 6000])
            core.end(under_way.pop(rng.randrange(len(under_way))), Usage(total, total), now)
        else:
            name, tokens = f"p{rng.randrange(9)}", rng.choice([400, 1500, 3000, 5000])
            priority = rng.choice([PriorityClass.DEFAULT, *PriorityClass])
            request = ProgramRequest(id=number, model="m", program=name, prompt_tokens=tokens, priority_class=priority)
            core.begin(request, now)
            under_way.append(number)
        num_again += len(core.set_backend(0, now, **backend))
        again = core.set_backend(0, now, **backend)
        assert {decision.action for decision in again} <= {ProgramAction.UNMARK}
        core.check()
    assert num_again


def test_room_that_a_moved_program_leaves_is_used_at_once():
    """Other programs have waited for it, of another model: those of its own model had their turn before it could come back."""
    core = Programs(ProgramsConfig(mode="tr", acting_estimator="fixed", headroom=0.0))
    core.set_backend(0, 0, models=["m", "n"], capacity=10_000)
    core.begin(ProgramRequest(id=1, model="m", program="moves", prompt_tokens=9000), 0)
    core.set_backend(1, 0, models=["m"], capacity=20_000)
    core.begin(ProgramRequest(id=2, model="n", program="waits", prompt_tokens=5000), 0)
    assert core.num_waiting == 1
    decisions = core.move(1, SECOND // 2)
    assert words(decisions, core) == ["pause moves", "wait 1", "resume moves", "grant 1", "resume waits", "grant 2"]
    assert [program.backend for program in core.programs] == [1, 0]


def test_room_of_a_program_that_is_too_large_to_move_is_used_at_once():
    core = Programs(ProgramsConfig(mode="tr", acting_estimator="fixed", headroom=0.0, max_wait_secs=0.5))
    core.set_backend(0, 0, models=["m", "n"], capacity=None)
    core.begin(ProgramRequest(id=1, model="m", program="large", prompt_tokens=9000), 0)
    core.set_backend(0, 0, models=["m", "n"], capacity=8000)
    core.begin(ProgramRequest(id=2, model="n", program="waits", prompt_tokens=5000), 0)
    assert words(core.move(1, 1), core)[-2:] == ["resume waits", "grant 2"]


def test_room_of_a_program_that_is_forgotten_for_another_one_is_used_at_once():
    """A tenant with as many programs as it may have begins one more, at another backend."""
    core = Programs(ProgramsConfig(mode="tr", acting_estimator="fixed", headroom=0.0, max_programs_per_tenant=1))
    core.set_backend(0, 0, models=["m", "n"], capacity=10_000)
    core.begin(ProgramRequest(id=1, model="m", tenant="a", program="idle", prompt_tokens=9000), 0)
    core.end(1, Usage(9000, 9000), 0)
    core.set_backend(1, 0, models=["m"], capacity=20_000)
    core.begin(ProgramRequest(id=2, model="n", tenant="b", program="waits", prompt_tokens=5000), 0)
    decisions = core.begin(ProgramRequest(id=3, model="m", tenant="a", program="next", prompt_tokens=15_000), SECOND // 2)
    assert words(decisions, core)[-3:] == ["grant 3", "resume waits", "grant 2"]


@pytest.mark.parametrize("seed", range(12))
def test_a_backend_that_a_program_has_left_has_nothing_to_settle(seed):
    """However it went, telling the core once more what it knows of that backend lets nobody in."""
    rng = Random(seed)
    core = Programs(
        ProgramsConfig(mode="tr", acting_estimator="fixed", min_stay_secs=0, max_programs_per_tenant=rng.choice([4, 100]))
    )
    known = [{"models": models, "capacity": 10_000} for models in (["m", "n"], ["m"], ["n"])]
    for number in range(400):
        now = number * SECOND // 3
        for index, backend in enumerate(known):
            core.set_backend(index, now, **backend)
        places = {program.serial: program.backend for program in core.programs}
        under_way = sorted(request for program in core.programs for request in program.contexts)
        kind = rng.choice(["begin"] * 4 + ["end", "end", "move", "release"]) if under_way else "begin"
        total = rng.choice([500, 1500, 3000, 6000])
        if kind == "begin":
            request = ProgramRequest(id=number, model=rng.choice("mn"), program=f"p{rng.randrange(9)}", prompt_tokens=total)
            decisions = core.begin(request, now)
        elif kind == "end":
            decisions = core.end(rng.choice(under_way), Usage(total, total), now)
        elif kind == "move":
            decisions = core.move(rng.choice(under_way), now)
        else:
            decisions = core.release("", f"p{rng.randrange(9)}", now)
        core.check()
        for decision in decisions:
            left = places.get(decision.program)
            # What a request needs lets nobody in, but if a program is forgotten for that of the request.
            frees = (ProgramAction.END,) if kind == "begin" else (ProgramAction.PAUSE, ProgramAction.END)
            if decision.action in frees and left is not None:
                again = core.set_backend(left, now, **known[left])
                assert {decision.action for decision in again} <= {ProgramAction.UNMARK}, (kind, number)
