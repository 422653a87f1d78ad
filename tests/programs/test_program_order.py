"""Our flavour: what is resumed and paused, and when: ageing, hold, headroom, minimum stay, classes, families."""

import random

import pytest
from programs_timeline import BULK, SYSTEM, Timeline, pressed

from maitred.core.units import SECOND


def test_a_large_program_is_passed_by_small_ones_only_for_as_long_as_its_size_says():
    t = pressed(patience_secs=10**6)
    t.start("X", 9900)
    t.start("large", 8000)
    t.at(6.9)
    t.start("sooner", 1000)
    t.at(7.1)
    t.start("later", 1000)
    t.end("X", 0)
    t.release("X")
    # 0 + 8 s; 6.9 + 1 s and 7.1 + 1 s: the large one is second, and no room is left for the third.
    assert t.changes() == ["resume sooner", "resume large"]
    assert t.waits("later")


def test_without_ageing_small_programs_always_go_first():
    t = pressed(patience_secs=10**6, ageing_secs_per_1k_tokens=0)
    t.start("X", 9900)
    t.start("first", 5000)
    t.at(60)
    t.start("second", 5000)
    t.end("X", 0)
    t.release("X")
    assert t.changes() == ["resume first"]


@pytest.mark.parametrize(("flavour", "is_starved"), [("ours", False), ("thunderagent", True)])
def test_a_stream_of_small_programs_does_not_starve_a_large_one(flavour, is_starved):
    # Programs of 1,000 tokens come every second, each is under way for 9 s: they could fill the memory for ever.
    t = Timeline(10_000, flavour=flavour, scheduler_interval_secs=1, max_wait_secs=600)
    waited = None
    for second in range(300):
        t.at(second)
        if second >= 9 and (name := f"s{second - 9}") in t.requests and t.requests[name]:
            t.end(name, 1000)
            t.release(name)
        t.start(f"s{second}", 1000)
        if second == 20:
            t.start("large", 8000)
        if second > 20 and waited is None and not t.waits("large"):
            waited = second - 20
    assert (waited is None) == is_starved
    if not is_starved:
        assert waited <= 10 + 9 + 2  # patience, then the end of those that are under way, then a tick


def test_higher_classes_are_resumed_first_and_paused_last():
    t = pressed()
    t.run("b", 3000, priority_class=BULK)
    t.run("s", 2000, priority_class=SYSTEM)
    t.run("d", 4000)
    t.start("d", 6500)
    assert t.changes() == ["pause b"]
    t.start("d2", 3300)
    t.start("b", 3000, priority_class=BULK)
    t.start("s2", 3300, priority_class=SYSTEM)
    t.end("d", 1000)
    assert t.changes() == ["pause b", "resume s2", "resume d2"]


def test_a_hold_for_a_lower_class_keeps_no_higher_class_waiting():
    t = pressed(patience_secs=10)
    t.start("X", 6000)
    t.start("b", 8000, priority_class=BULK)
    t.at(20)
    assert t.start("d", 1000).startswith("grant")
    t.end("d", 1000)
    t.release("d")
    t.at(21)
    assert t.start("b2", 1000, priority_class=BULK).startswith("wait")


def test_no_program_of_a_higher_class_is_paused_to_make_room_for_a_lower_one():
    t = pressed(displace_secs=10, max_wait_secs=100)
    t.run("s", 6000, priority_class=SYSTEM)
    t.start("d", 6000)
    t.at(99)
    assert t.changes() == []
    t.at(100)
    assert t.changes()[0] == "resume d"


def test_room_is_made_for_a_program_that_has_waited_for_displace_secs():
    t = pressed(displace_secs=10)
    t.run("A", 2000)
    t.run("B", 3000)
    t.run("C", 4000)
    t.start("D", 5000)
    t.at(9.9)
    assert t.changes() == []
    t.at(10)  # 700 are left, 4,400 missing: B and C would free 7,200 together, A and B 5,200
    assert t.changes() == ["pause A", "pause B", "resume D"]
    assert {str(d.reason) for d in t.log if d.action == "pause"} == {"made_room"}


def test_a_backend_is_held_for_the_program_that_has_waited_longest():
    t = Timeline(10_000, 10_000, headroom=0, patience_secs=10)
    t.start("X", 5000)
    t.start("Y", 7000)
    t.start("large", 8000)
    t.at(11)
    assert t.start("small", 1000).startswith("grant")
    assert t.where("small") == ["b2"]  # the first one, with more room, is held
    t.end("X", 0)
    t.release("X")
    assert t.where("large") == ["b1"]


def test_headroom_is_left_free_beside_others_but_not_at_an_empty_backend():
    t = Timeline(10_000, headroom=0.1)
    assert t.start("A", 9900) == "grant placed"
    t.end("A", 4000)
    assert t.start("B", 4900) == "wait no_room"  # 5,900 are left, 1,000 of them headroom
    assert t.start("C", 4800) == "grant resumed"


def test_of_the_programs_that_free_enough_those_are_spared_that_the_others_make_up_for():
    t = pressed(min_stay_secs=0)
    for name, tokens in [("A", 1000), ("B", 2000), ("C", 3000), ("D", 3500)]:
        t.run(name, tokens)
    t.run("D", 3500, 5000)  # as in s04: 1,400 too many
    assert t.changes() == ["pause B"]
    t.at(60)
    assert t.changes() == ["pause B"]


def test_nothing_is_resumed_and_paused_in_the_same_breath():
    """Many programs at a backend that holds half of them: no program changes twice at one instant, and none that was resumed is
    paused within its minimum stay, because others always can be."""
    rng = random.Random(3)
    t = Timeline(30_000, 30_000, min_stay_secs=5, acting_estimator="decay")
    names = [f"p{n}" for n in range(40)]
    due = {name: rng.random() * 10 for name in names}
    size = {name: rng.randrange(500, 3000) for name in names}
    for _ in range(2000):
        name = min(due, key=due.get)
        t.at(due[name])
        if t.requests.get(name):
            if t.waits(name):
                due[name] += 1
                continue
            t.end(name, size[name])
            due[name] += rng.expovariate(0.2)
        else:
            size[name] += rng.randrange(100)
            if size[name] > 6000:
                t.release(name)
                size[name] = 500
            t.start(name, size[name])
            due[name] += rng.expovariate(0.5)
    changes = [d for d in t.log if d.action in ("pause", "resume")]
    assert len(changes) > 100
    last = {}
    for d in changes:
        before = last.get(d.program)
        assert before is None or before.at < d.at or before.action == d.action
        last[d.program] = d


@pytest.mark.parametrize(("stay", "paused_one"), [(5, "old"), (0, "young")])
def test_a_program_that_was_placed_just_now_is_paused_only_if_no_other_one_is_left(stay, paused_one):
    t = pressed(min_stay_secs=stay)
    t.run("old", 3000)
    t.at(10)
    t.run("young", 2000)
    t.run("X", 4000)
    t.start("X", 6000)
    assert t.changes() == [f"pause {paused_one}"]


def test_an_idle_program_that_would_count_more_than_its_tokens_is_not_resumed_to_be_paused():
    t = pressed(acting_estimator="fixed(weight=2.0)", min_stay_secs=0)
    t.start("X", 3000)
    t.run("A", 4000)
    assert t.changes() == ["pause A"]  # it counts 8,000
    t.at(60)
    assert t.changes() == ["pause A"]


def test_decay_lets_idle_programs_stay_while_others_use_their_memory():
    t = pressed(acting_estimator="decay", scheduler_interval_secs=2)
    t.run("A", 4000)
    t.run("B", 4000)
    t.start("N", 4000)
    t.at(2)  # a quarter of 8,000 counts
    assert t.changes() == ["resume N"]
    t.at(4)
    t.start("A", 4000)  # all of it counts again, beside 4,000 of N and 250 of B: 8,550 with the buffers
    t.at(60)
    assert t.changes() == ["resume N"]


def test_the_tools_of_each_program_are_learned():
    t = Timeline(100_000, acting_estimator="learned", scheduler_interval_secs=1)
    for name, tool_secs in [("slow", 8), ("fast", 2)]:
        start = t.now / SECOND
        t.run(name, 4000)
        t.at(start + tool_secs)
        t.run(name, 4000)
    start = t.now / SECOND
    t.run("slow", 4000)
    t.run("fast", 4000)
    t.at(start + 8)
    slow, fast = t.program("slow"), t.program("fast")
    assert slow.charge == 4000
    # The last time was 0 s, and counts a fifth: 1.6 s are usual. All tokens count for 6.4 s, a quarter of half a second more is
    # what is left after 8 s.
    assert fast.charge == round(2 ** (6.4 - 8) * 4000 * 1024) / 1024


def test_children_share_the_place_of_their_parent_in_the_order_of_pauses():
    t = pressed(min_stay_secs=0)
    t.run("parent", 3000)
    t.run("other", 2000)
    t.run("child", 1000, parent="parent")
    t.start("X", 100)
    t.end("X", 3000)  # 9,000 and 4 buffers
    t.start("X", 3700)  # 100 too many: the child is smallest, and its parent larger than the other one
    assert t.changes() == ["pause other"]


def test_the_place_of_children_changes_with_their_parent():
    t = pressed(min_stay_secs=0)
    t.run("parent", 3000)
    t.run("other", 2000)
    t.run("child", 1000, parent="parent")
    t.run("X", 100)
    for _ in range(8):  # then the context of 3,000 is taken for dead
        t.run("parent", 500)
    t.start("X", 6800)  # 700 too many: the parent, with 500, is the first one now, and its child the second
    assert t.changes() == ["pause child"]


def test_children_are_resumed_together_in_the_place_of_their_parent():
    t = pressed(patience_secs=10**6)
    t.run("parent", 500)
    t.start("X", 9300)
    for name in ("c1", "c2"):
        t.start(name, 1000, parent="parent")
    t.at(1)
    t.start("small", 600)
    t.at(2)
    t.start("c3", 3000, parent="parent")
    order = [program.key.name for program in t.core._places.backends.pool("m").paused]
    assert order == ["c1", "c2", "c3", "small"]  # 0 s + 0.5 s, thrice; 1 s + 0.6 s


def test_the_common_prefix_of_a_family_counts_once_at_one_backend():
    t = Timeline(20_000, 20_000)
    t.run("parent", 6000)
    t.start("child", 7000, parent="parent")
    assert t.where("child") == ["b1"]  # beside its parent, though the other backend is empty
    t.end("child", 7500, prompt=7000, cached=5000)
    first, _ = t.core.backends
    assert first.used == 6000 + 2500 + 200
    t.release("parent")
    assert first.used == 7500 + 100


def test_a_child_of_another_tenant_has_no_parent():
    t = Timeline(20_000)
    t.run("parent", 6000, tenant="a")
    t.start("child", 7000, tenant="b", parent="parent")
    assert t.program("child", "b").parent is None


def test_a_family_has_at_most_so_many_generations_as_its_root_is_looked_for():
    t = Timeline(10**6)
    for n in range(40):
        t.run(f"p{n}", 100, parent=f"p{n - 1}")
    assert max(program.generation for program in t.core.programs) == 16


def test_a_family_has_at_most_so_many_programs_as_one_request_of_its_root_may_reorder():
    t = Timeline(10**6)
    t.run("root", 100)
    for n in range(300):
        t.run(f"p{n}", 100, parent="root" if n % 2 else f"p{n - 1}")
    root = t.program("root")
    assert sum(program.root is root for program in t.core.programs) == 256
    assert t.program("p299").parent is None

    t.release("p1")
    t.run("p300", 100, parent="root")
    assert t.program("p300").parent is root


def test_a_parent_is_not_idle_while_its_children_work():
    t = Timeline(20_000, program_ttl_secs=60)
    t.run("parent", 6000)
    t.at(30)
    t.run("child", 7000, parent="parent")
    t.at(89)
    assert t.program("parent")
    t.at(90)
    assert not list(t.core.find("", "parent"))


def test_only_as_many_idle_programs_make_room_as_are_needed_and_none_of_a_higher_class():
    t = pressed(acting_estimator="decay", scheduler_interval_secs=60, min_stay_secs=0)
    t.run("s", 500, priority_class=SYSTEM)
    for number in range(30):
        t.run(f"i{number}", 150 + number)
    t.start("N", 7000)  # after 60 s 31 buffers are left of what they count: 6,900, and 200 are missing
    t.at(60)
    assert t.changes() == ["pause i0", "pause i1", "resume N"]


def test_idle_programs_of_a_higher_class_make_no_room():
    t = pressed(acting_estimator="decay", scheduler_interval_secs=60)
    for number in range(30):
        t.run(f"s{number}", 200, priority_class=SYSTEM)
    t.start("N", 7500)
    t.at(60)
    assert t.changes() == []
