"""The lengths of answers, and their finish reasons."""

from hypothesis import given
from hypothesis import strategies as st

from maitred.emulator.tokens import FinishReason, FinishSampler, PlannedFinish


def test_a_model_that_has_more_to_say_is_cut_and_one_that_is_done_stops():
    endings = FinishSampler("100", seed=1)
    assert endings.draw(max_tokens=99) == PlannedFinish(99, FinishReason.LENGTH)
    assert endings.draw(max_tokens=100) == PlannedFinish(100, FinishReason.STOP)
    assert endings.draw(max_tokens=500) == PlannedFinish(100, FinishReason.STOP)


def test_a_model_says_at_least_what_it_must():
    assert FinishSampler("100", seed=1).draw(max_tokens=500, min_tokens=130) == PlannedFinish(130, FinishReason.STOP)


def test_a_model_that_never_ends_by_itself_says_all_it_may():
    assert FinishSampler.exactly(64) == PlannedFinish(64, FinishReason.LENGTH)


@given(st.integers(0, 2**32), st.integers(1, 400))
def test_the_nth_answer_has_the_same_length_in_every_run(seed, most):
    def lengths():
        endings = FinishSampler("lognormal:200,150", seed)
        return [endings.draw(max_tokens=most) for _ in range(20)]

    assert lengths() == lengths()
    assert all(1 <= ending.output_tokens <= most for ending in lengths())


def test_another_seed_gives_other_lengths():
    first, second = (FinishSampler("lognormal:200,150", seed) for seed in (1, 2))
    assert [first.draw(max_tokens=9999) for _ in range(8)] != [second.draw(max_tokens=9999) for _ in range(8)]
