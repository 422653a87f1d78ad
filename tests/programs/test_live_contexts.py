"""A program is as large as its live contexts together: sub-agents, compactions, branches, and what its memory holds."""

import random

import pytest
from programs_timeline import Timeline, paused, strict

from maitred.programs.idle_contexts import MAX_PASSED, IdleContexts


def tokens_of(timeline, name):
    return timeline.program(name).tokens


def test_a_small_sub_agent_under_the_same_id_does_not_make_a_program_small():
    t = Timeline(13_000)
    t.run("A", 10_000, 10_028)
    t.run("A", 520, 528)
    assert tokens_of(t, "A") == 10_556
    assert t.start("B", 2000) == "wait no_room"  # 13,000 less 10,556, two buffers and the headroom leaves less


def test_a_context_that_is_continued_counts_once():
    t = Timeline(100_000)
    t.run("A", 10_000, 10_028)
    t.run("A", 520, 528)
    t.start("A", 10_300)
    assert tokens_of(t, "A") == 10_300 + 528
    t.end("A", 10_400)
    t.run("A", 800, 900)
    assert tokens_of(t, "A") == 10_400 + 900


def test_an_estimate_that_is_an_eighth_too_small_still_continues_its_context():
    t = Timeline(100_000)
    t.run("A", 9000)
    t.start("A", 8000)
    assert tokens_of(t, "A") == 8000
    t.start("A", 7000)
    assert tokens_of(t, "A") == 15_000


def test_a_context_of_which_old_parts_were_dropped_is_still_one():
    t = Timeline(100_000)
    for size in (9800, 7000, 5000, 2000):
        t.run("A", size)
        assert tokens_of(t, "A") == size
    t.run("A", 600)
    assert tokens_of(t, "A") == 2600


def test_branches_stay_when_they_have_ended():
    t = Timeline(100_000)
    t.start("A", 900)
    t.start("A", 400)
    t.end("A", 1000)
    assert tokens_of(t, "A") == 1400
    t.end("A", 450)
    assert t.snapshot("A") == ("b1", "active", "acting", 1450)
    t.start("A", 1200)
    assert tokens_of(t, "A") == 1650


def test_a_context_before_a_compaction_is_forgotten_after_eight_ends():
    t = Timeline(200_000)
    t.run("A", 100_000)
    for turn in range(MAX_PASSED - 1):
        t.run("A", 3000 + 400 * turn)
        assert tokens_of(t, "A") == 103_000 + 400 * turn
    t.run("A", 6000)
    assert tokens_of(t, "A") == 6000


def test_a_program_alone_never_needs_more_than_its_memory():
    t = Timeline(13_000)
    t.run("A", 12_000)
    t.start("A", 3000)  # a part of the first context is evicted
    assert tokens_of(t, "A") == 12_900
    t.end("A", 3000)
    assert t.where("A") == ["b1"]
    t.start("A", 12_200)  # continues what is left of the first one, and evicts the other
    assert tokens_of(t, "A") == 12_900


def test_a_program_that_was_paused_comes_back_with_its_last_request():
    t = Timeline(10_000, headroom=0.0, min_stay_secs=0, buffer_tokens=0)
    t.run("A", 3000)
    t.run("A", 900)
    t.run("B", 6000)
    t.start("B", 7000)
    assert paused(t, "A")
    assert tokens_of(t, "A") == 900
    assert t.start("A", 3100) == "wait paused"
    assert tokens_of(t, "A") == 3100
    t.release("B")
    assert t.snapshot("A") == ("b1", "active", "reasoning", 3100)


def test_a_failed_request_that_is_sent_again_is_no_second_context():
    t = Timeline(100_000)
    t.run("A", 10_000)
    for _ in range(5):
        t.start("A", 10_300)
        t.end("A")
    assert tokens_of(t, "A") == 10_300


def test_thunderagent_knows_the_last_request_alone():
    t = strict(100_000)
    t.run("A", 10_000)
    t.run("A", 520, 528)
    assert tokens_of(t, "A") == 528
    t.start("A", 900)
    t.start("A", 400)
    t.end("A", 1000)
    assert tokens_of(t, "A") == 1000


@pytest.mark.parametrize("seed", range(20))
def test_idle_contexts_are_bounded_and_never_more_than_what_has_ended(seed):
    rng = random.Random(seed)
    idle, ended = IdleContexts(is_one=False), 0
    for _ in range(300):
        size = rng.choice([100, 500, 3000, 10_000, 90_000]) + rng.randrange(50)
        before = idle.tokens
        idle.begin_request(size)
        assert before - idle.tokens <= size * 3
        limit = rng.choice([20_000, 1_000_000])
        idle.begin_request(0, [size], limit)  # nothing is so small that this continues it, but all must fit
        assert idle.tokens + size <= max(limit, size)
        idle.end_request(size, (), limit)
        assert idle.tokens <= max(limit, size)
        ended += size
        assert idle.last == size
        assert len(idle.all) <= MAX_PASSED
        assert idle.tokens <= ended
