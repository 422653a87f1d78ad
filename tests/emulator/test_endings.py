"""How long answers are, and what clients are told of why they end."""

from hypothesis import given
from hypothesis import strategies as st

from maitred.emulator.endings import Ending, Endings, FinishReason


def test_a_model_that_has_more_to_say_is_cut_and_one_that_is_done_stops():
    endings = Endings("100", seed=1)
    assert endings.draw(most=99) == Ending(99, FinishReason.LENGTH)
    assert endings.draw(most=100) == Ending(100, FinishReason.STOP)
    assert endings.draw(most=500) == Ending(100, FinishReason.STOP)


def test_a_model_says_at_least_what_it_must():
    assert Endings("100", seed=1).draw(most=500, least=130) == Ending(130, FinishReason.STOP)


def test_a_model_that_never_ends_by_itself_says_all_it_may():
    assert Endings.exactly(64) == Ending(64, FinishReason.LENGTH)


@given(st.integers(0, 2**32), st.integers(1, 400))
def test_the_nth_answer_has_the_same_length_in_every_run(seed, most):
    def lengths():
        endings = Endings("lognormal:200,150", seed)
        return [endings.draw(most=most) for _ in range(20)]

    assert lengths() == lengths()
    assert all(1 <= ending.tokens <= most for ending in lengths())


def test_another_seed_gives_other_lengths():
    first, second = (Endings("lognormal:200,150", seed) for seed in (1, 2))
    assert [first.draw(most=9999) for _ in range(8)] != [second.draw(most=9999) for _ in range(8)]
