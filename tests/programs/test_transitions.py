"""ThunderAgent's documented transitions, formulas and passes, with the numbers of its recorded scenarios (s01, s02, ...)."""

import pytest
from programs_timeline import Timeline, strict

from maitred.core.units import SECOND
from maitred.programs import BackendStatus, ProgramRequest, Usage


def test_s01_a_new_program_goes_where_the_fewest_active_tokens_are():
    t = strict(10_000, 10_000)
    for name, tokens in [("A", 1000), ("B", 300), ("C", 200), ("D", 600), ("E", 200), ("F", 5000)]:
        t.run(name, tokens)
    assert t.where(*"ABCDEF") == ["b1", "b2", "b2", "b2", "b1", "b2"]


def test_s02_a_new_program_needs_its_estimate_and_the_buffer():
    t = strict(2000)
    assert t.run("ok", 1900) == "grant placed"
    assert t.snapshot("ok") == ("b1", "active", "acting", 1900)
    assert t.release("ok")
    assert t.start("big", 1901) == "wait no_room"
    assert t.snapshot("big") == (None, "paused", "reasoning", 1901)


def test_a_new_program_waits_while_others_do_though_it_would_fit():
    t = strict(5000)
    t.run("A", 3000)
    assert t.start("B", 4000) == "wait no_room"
    assert t.start("C", 500) == "wait no_room"


def test_s29_an_active_program_is_never_refused_whatever_its_size():
    t = strict(5000)
    t.run("A", 1000)
    assert t.run("A", 50_000) == "grant sticky"
    assert t.snapshot("A") == ("b1", "active", "acting", 50_000)
    (backend,) = t.core.backends
    assert backend.remaining == -45_100


def test_the_estimate_overwrites_what_the_last_answer_counted():
    t = strict(10_000)
    t.run("A", 1000, 1700)
    assert t.program("A").tokens == 1700
    t.start("A", 1500)
    assert t.snapshot("A") == ("b1", "active", "reasoning", 1500)


def test_tokens_grow_with_a_stream_and_are_exact_after_the_answer():
    t = strict(10_000)
    t.start("S", 200)
    for _ in range(2):  # 45 events: at the 20th and at the 40th
        t.core.progress(t.requests["S"][0], 20, t.now)
    assert t.program("S").tokens == 240
    t.end("S", 260)
    assert t.snapshot("S") == ("b1", "active", "acting", 260)


@pytest.mark.parametrize("flavour", ["ours", "thunderagent"])
def test_a_request_without_usage_ends_like_any_other(flavour):
    t = Timeline(10_000, flavour=flavour)
    t.start("A", 700)
    t.at(3)
    t.end("A")
    assert t.snapshot("A") == ("b1", "active", "acting", 700)
    assert t.program("A").acting_since == 3 * SECOND


def test_s04_overflow_pauses_acting_programs_smallest_first_and_the_next_tick_resumes_what_fits():
    t = strict(10_000, scheduler_interval_secs=1)
    for name, tokens in [("A", 1000), ("B", 2000), ("C", 3000), ("D", 3500)]:
        t.run(name, tokens)
    t.run("D", 3500, 5000)  # 11,000 and 4 buffers: 1,400 too many
    assert t.changes() == []
    t.at(1)
    assert t.changes() == ["pause A", "pause B"]
    assert t.where(*"ABCD") == [None, None, "b1", "b1"]
    t.at(2)  # 1,800 are left: enough for A
    assert t.changes() == ["pause A", "pause B", "resume A"]
    t.at(9)
    assert t.where(*"ABCD") == ["b1", None, "b1", "b1"]


def s05(timeline):
    for name in "ABC":
        timeline.run(name, 1000)
    for name, tokens in [("C", 2000), ("A", 5000), ("B", 4000)]:
        timeline.start(name, tokens)
    return timeline


def test_s05_no_more_programs_are_marked_than_needed():
    t = s05(strict(10_000, scheduler_interval_secs=1))
    t.at(1)
    assert t.changes() == ["mark C"]  # 2,100 cover the 1,300 that are too many
    (backend,) = t.core.backends
    assert (backend.remaining, backend.marked_tokens) == (-1300, 2100)
    t.end("B", 4000)
    assert t.snapshot("B") == ("b1", "active", "acting", 4000)
    t.end("C", 2000)
    assert t.snapshot("C") == (None, "paused", "acting", 2000)


def test_a_mark_is_withdrawn_when_the_pressure_ends():
    t = s05(strict(10_000, scheduler_interval_secs=1))
    t.at(1)
    t.release("B")
    t.at(2)
    assert t.changes() == ["mark C", "unmark C"]
    t.end("C", 2000)
    assert t.where("C") == ["b1"]


def test_a_mark_counts_what_its_program_has_now():
    t = s05(strict(10_000, scheduler_interval_secs=1))
    t.at(1)
    t.core.progress(t.requests["C"][0], 500, t.now)
    (backend,) = t.core.backends
    assert backend.marked_tokens == 2600


def test_paused_programs_count_nothing():
    t = strict(10_000, scheduler_interval_secs=1)
    t.run("A", 6000)
    t.start("A", 11_000)
    t.end("A", 11_000)
    t.at(1)
    assert t.where("A") == [None]
    (backend,) = t.core.backends
    assert backend.used == 0


def s07(steps, **config):
    """P1 and P2 are paused; then a new program and P1 ask. Room for one opens at a time."""
    t = strict(10_000, scheduler_interval_secs=1, **config)
    t.run("P1", 2000)
    for _ in range(steps):
        t.run("P2", 2000)
    t.run("X", 5000, 9800)
    t.at(1)
    assert t.where("P1", "P2") == [None, None]
    t.start("NEW", 2000)
    t.start("P1", 2000)
    for second, tokens in enumerate([7000, 5000, 2000], start=2):
        t.start("X", tokens)
        t.at(second)
        t.end("X", tokens)
    return [change.removeprefix("resume ") for change in t.changes() if change.startswith("resume")]


@pytest.mark.parametrize("steps", [1, 2])
def test_s07_returning_programs_are_resumed_before_new_ones_and_idle_ones_last(steps):
    assert s07(steps) == ["P1", "NEW", "P2"]


def test_s08_chosen_programs_are_placed_largest_first_where_most_room_is():
    t = strict(10_000, 6000, scheduler_interval_secs=1)
    t.start("blk0", 9900)
    t.start("blk1", 5900)
    for name, tokens in [("n5", 5000), ("n4", 4000), ("n3", 3000), ("n2", 2000)]:
        assert t.start(name, tokens) == "wait no_room"
    t.release("blk0")
    t.release("blk1")
    t.at(1)
    assert t.changes() == ["resume n5", "resume n4", "resume n3"]
    assert t.where("n5", "n4", "n3", "n2") == ["b1", "b2", "b1", None]


def test_of_backends_with_equal_room_the_one_that_was_first_stays_first():
    t = strict(10_000, 6000, scheduler_interval_secs=1)
    t.start("blk0", 9900)
    t.start("blk1", 5900)
    t.start("n3", 3000)
    t.start("n4", 3900)
    t.release("blk0")
    t.release("blk1")
    t.at(1)  # 4,000 of the 10,000 go to n4, and 6,000 are left at either
    assert t.where("n4", "n3") == ["b1", "b1"]


def test_s10_without_decay_a_new_program_waits_for_idle_ones():
    t = strict(10_000)
    t.run("A", 6000)
    t.run("B", 3500)
    t.start("N", 2000)
    t.at(30)
    assert t.changes() == []
    assert t.where(*"ABN") == ["b1", "b1", None]


def test_s10_decay_counts_alike_in_both_passes_so_nothing_goes_to_and_fro():
    t = strict(10_000, acting_estimator="decay", scheduler_interval_secs=0.5)
    t.run("A", 6000)
    t.run("B", 3500)
    t.start("N", 2000)
    t.at(0.5)  # 6,717 of 9,500 tokens count still: 3,082 are left
    assert t.changes() == ["resume N"]
    t.at(60)
    assert t.changes() == ["resume N"]
    assert t.where(*"ABN") == ["b1", "b1", "b1"]


@pytest.mark.parametrize(
    ("estimator", "used"), [("fixed", 9700), ("fixed(weight=0.5)", 7700), ("fixed(weight=0.0)", 5700), ("decay", 6200)]
)
def test_acting_tokens_count_as_the_estimator_says(estimator, used):
    t = strict(10_000, acting_estimator=estimator, scheduler_interval_secs=3)
    t.run("A", 4000)
    t.start("B", 5500)
    t.at(3)  # 2^-3 of 4,000 are 500
    (backend,) = t.core.backends
    assert backend.used == used


def test_s13_release_frees_the_memory_and_the_next_tick_gives_it_away():
    t = strict(5000, scheduler_interval_secs=1)
    t.run("X", 4500)
    t.start("N", 2000)
    t.at(0.3)
    assert t.release("X")
    assert not t.release("X")
    assert t.waits("N")
    t.at(1)
    assert t.where("N") == ["b1"]


def test_s14_characters_per_token_are_learned():
    t = strict(100_000)
    rows = [("a", 1000, 500, 777), ("b", 2000, 500, 50), ("c", 2400, 600, 50), ("d", 2720, 1, 50), ("e", 5461, 1000, 50)]
    estimates = []
    for number, (name, characters, prompt, total) in enumerate(rows):
        t.core.begin(ProgramRequest(id=number, model="m", program=name, characters=characters), 0)
        estimates.append(t.program(name).tokens)
        t.core.end(number, Usage(prompt, total), 0)
        assert t.program(name).tokens == total
    assert estimates == [200, 1000, 999, 999, 9]


def test_our_flavour_believes_no_ratio_that_no_tokenizer_has():
    t = Timeline(100_000)
    for number, (characters, prompt) in enumerate([(2720, 1), (3200, 1000), (1000, 10)]):
        t.core.begin(ProgramRequest(id=number, model="m", program="p", characters=characters), 0)
        t.core.end(number, Usage(prompt, 50), 0)
    t.core.begin(ProgramRequest(id=9, model="m", program="p", characters=16_000), 0)
    # 16, the most; then 0.2 * 3.2 + 0.8 * 16 = 13.44; then 0.2 * 16 + 0.8 * 13.44 = 13.952
    assert t.program("p").tokens == 1146


def test_what_is_learned_of_one_model_and_tenant_says_nothing_of_another():
    t = Timeline(100_000)
    t.core.begin(ProgramRequest(id=1, model="m", tenant="a", program="p", characters=1000), 0)
    t.core.end(1, Usage(500, 600), 0)
    for number, tenant, tokens in [(2, "a", 500), (3, "b", 200)]:
        t.core.begin(ProgramRequest(id=number, model="m", tenant=tenant, program="q", characters=1000), 0)
        assert t.program("q", tenant).tokens == tokens


@pytest.mark.parametrize(("flavour", "kept"), [("ours", 10_000), ("thunderagent", 10**15)])
def test_our_flavour_believes_no_usage_above_the_capacity(flavour, kept):
    t = Timeline(10_000, flavour=flavour)
    t.start("A", 500)
    t.end("A", 10**15 if flavour == "thunderagent" else 2**39)
    assert t.program("A").tokens == kept


@pytest.mark.parametrize("flavour", ["ours", "thunderagent"])
def test_a_negative_usage_counts_like_none(flavour):
    t = Timeline(10_000, flavour=flavour)
    t.run("A", 500, -50)
    assert t.program("A").tokens == 500


@pytest.mark.parametrize("flavour", ["ours", "thunderagent"])
def test_after_max_wait_a_program_is_resumed_where_most_room_is_whether_it_fits_or_not(flavour):
    t = Timeline(5000, 9000, flavour=flavour, max_wait_secs=30, patience_secs=1000)
    t.start("A", 4000)
    t.start("B", 8000)
    t.at(2)
    assert t.start("C", 4500).startswith("wait")
    t.at(31.999)
    assert t.waits("C")
    t.at(32)  # 900 are left at either, and the first one has fewer tokens to work on
    assert t.snapshot("C") == ("b1", "active", "reasoning", 4500)
    assert t.log[-1].reason == "resumed"


def test_after_max_wait_without_any_backend_a_request_is_refused():
    t = Timeline(5000, max_wait_secs=30)
    t.backend(0, status=BackendStatus.DOWN, capacity=5000)
    assert t.start("A", 1000) == "wait no_room"
    t.at(30)
    assert [(str(d.action), str(d.reason)) for d in t.log[-2:]] == [("reject", "no_backend"), ("end", "ended")]
    assert t.core.num_waiting == 0


def test_s17_the_capacity_of_a_backend_that_comes_later_counts():
    t = Timeline(10_000, 10_000)
    t.backend(0, status=BackendStatus.DOWN)
    t.backend(0, status=BackendStatus.UP, capacity=10_000)
    assert t.start("A", 20_000) == "reject oversized"
    assert t.start("B", 9000) == "grant placed"
    assert t.start("C", 9000) == "grant placed"
    assert t.start("D", 9000) == "wait no_room"


@pytest.mark.parametrize("flavour", ["ours", "thunderagent"])
def test_s22_release_of_a_waiting_program_refuses_its_requests(flavour):
    t = Timeline(6000, flavour=flavour)
    t.run("X", 5000)
    t.start("N", 5000)
    assert t.release("N")
    assert [(str(d.action), str(d.reason)) for d in t.log[-2:]] == [("reject", "released"), ("end", "released")]


def test_s31_a_paused_program_resumes_where_most_room_is_not_where_it_was():
    t = strict(5000, 9000, scheduler_interval_secs=1)
    t.run("A", 2000)
    t.run("B", 100)
    assert t.where(*"AB") == ["b1", "b2"]
    t.run("A", 2000, 5500)
    t.at(1)
    assert t.snapshot("A") == (None, "paused", "acting", 5500)
    t.at(2)
    assert t.snapshot("A") == ("b2", "active", "acting", 5500)


def test_default_mode_counts_programs_and_nothing_else():
    t = Timeline(100, 100, mode="default")
    for name, tokens in [("A", 5000), ("B", 100), ("C", 100), ("D", 100)]:
        t.run(name, tokens)
    assert t.run("A", 6000) == "grant sticky"
    assert t.where(*"ABCD") == ["b1", "b2", "b1", "b2"]
    t.release("A")
    t.release("C")
    t.run("E", 100)
    assert t.where("E") == ["b1"]
    assert t.core.next_deadline() == 3600 * SECOND  # no tick: only the end of the idle ones is due


def test_default_mode_moves_the_programs_of_a_failed_backend_with_their_next_request():
    t = Timeline(100, 100, mode="default")
    t.run("A", 100)
    t.run("B", 100)
    t.backend(0, status=BackendStatus.DOWN)
    assert t.run("A", 100) == "grant placed"
    assert t.where(*"AB") == ["b2", "b2"]


def test_our_flavour_does_at_events_what_the_flavour_thunderagent_does_at_ticks():
    t = Timeline(5000)
    t.run("X", 4500)
    t.start("N", 2000)
    t.at(0.3)
    t.release("X")
    assert t.where("N") == ["b1"]
    t.run("M", 1500)
    t.start("M", 4500)  # 1,700 too many
    assert t.changes() == ["resume N", "mark N"]
