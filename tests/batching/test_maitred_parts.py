"""What `maitred` decides with: predicted answers, the memory foreseen, the shares of prompts, and victims; by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trtllm_conformance.kv_cache_manager import KvCacheManager

from maitred.batching import LlmRequest, LlmRequestState
from maitred.batching.maitred.answer_lengths import AnswerLengths
from maitred.batching.maitred.memory_forecast import MemoryForecast
from maitred.batching.maitred.prompt_shares import PromptRest, PromptShares
from maitred.batching.maitred.state import MaitredState
from maitred.batching.maitred.victims import choose_victim


def started(number: int, tokens: int, **fields: float) -> LlmRequest:
    """Return a request that generates and holds `tokens` tokens."""
    request = LlmRequest(number, tokens - 1, 100, state=LlmRequestState.GENERATION_IN_PROGRESS)
    request.num_generated_tokens = 1
    for name, value in fields.items():
        setattr(request, name, value)
    return request


class TestMemoryForecast:
    def test_the_peaks_are_just_before_ends(self) -> None:
        forecast = MemoryForecast([(10, 80), (100, 5)])
        assert forecast.peak == 105
        assert forecast.missing(50, 5, 0) == 120
        forecast.add(50, 5)
        assert forecast.peak == 120

    def test_what_ends_after_a_candidate_is_not_its_doing(self) -> None:
        forecast = MemoryForecast([(1000, 1)])
        assert forecast.peak == 1001
        assert forecast.missing(10, 5, 0) == 26  # 11 and 15 tokens when it ends
        assert MemoryForecast([]).missing(7, 3, 0) == 10

    @given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=8), st.integers(1, 30), st.integers(1, 30))
    def test_it_is_what_counting_each_step_finds(self, requests: list[tuple[int, int]], left: int, held: int) -> None:
        def need(all_requests: list[tuple[int, int]], steps: int) -> int:
            return max(sum(size + step for rest, size in all_requests if rest >= step) for step in range(1, steps + 1))

        forecast = MemoryForecast(requests)
        assert forecast.peak == (need(requests, 30) if requests else 0)
        before = forecast.missing(left, held, 0)
        assert before == need([*requests, (left, held)], left)
        assert forecast.missing(left, held, before) == 0
        # A step later no more than one token is missing less.
        later = [(rest - 1, size + 1) for rest, size in requests if rest > 1]
        if len(later) == len(requests):
            assert MemoryForecast(later).missing(left, held, 0) >= before - 1
        forecast.add(left, held)
        with_two = need([*requests, (left, held), (left, held)], left)
        assert (forecast.missing(left, held, with_two) <= 0, forecast.missing(left, held, with_two - 1)) == (True, 1)
        assert forecast.peak == need([*requests, (left, held)], 30)


def new_state(*, reuse: bool = False) -> MaitredState:
    """Return the state of a scheduler before the first request."""
    kv_cache = KvCacheManager({1 << 20: 100}, 10, enable_block_reuse=reuse)
    shares = PromptShares(0.9, 10, 1000, whole_only=False)
    limits = {"max_running": 100, "max_num_tokens": 1000, "max_prefill_tokens": 1000}
    return MaitredState(kv_cache, shares, **limits, look_past=8, max_skips=16, max_pauses=2, prefill_speed=256)


def complete(state: MaitredState, prompt: int, answer: int) -> None:
    request = LlmRequest(0, prompt, answer)
    request.num_generated_tokens = answer
    state.on_request_end(request, is_complete=True)


class TestMaitredState:
    def test_the_horizon_is_what_a_request_needs_to_be_worth_a_pause(self) -> None:
        """20 requests of 3,000 tokens: 3,000 x 20 / 256 steps. Half of it, if half of what is paused is still cached."""
        for reuse, steps in ((False, 235), (True, 118)):
            state = new_state(reuse=reuse)
            assert state.horizon(20) > 1 << 20  # nothing is known of sizes yet
            complete(state, 2000, 2000)
            assert state.horizon(20) == steps

    def test_what_a_return_finds_in_the_cache_shortens_it(self) -> None:
        state = new_state()
        complete(state, 2000, 2000)
        for _ in range(200):
            state.on_return(0.25)
        share = 0.25 + 0.75 * (63 / 64) ** 200
        assert state.horizon(20) == 1 + int(share * 3000 * 20 / 256)

    def test_a_pause_before_a_request_was_worth_it_is_a_warning(self) -> None:
        """Predictions grow by a tenth, up to four times, and fall back as answers are complete."""
        state = new_state()
        for _ in range(40):
            complete(state, 1600, 100)  # to the limit, which is followed from then on
        waiting = LlmRequest(1, 10, 800)
        waiting.has_token_limit = False
        (expected,) = state.tokens_left([waiting])
        late, early = started(2, 1000), started(3, 1000)
        late.num_generated_tokens, early.num_generated_tokens = 50, 10
        assert state.horizon(6) == 39
        state.on_pause([late], 6)
        assert state.tokens_left([waiting]) == [expected]
        state.on_pause([late, early], 6)
        assert state.tokens_left([waiting]) == [int(1.1 * expected)]
        for _ in range(30):
            state.on_pause([early], 6)
        assert state.tokens_left([waiting]) == [4 * expected]
        for _ in range(600):
            complete(state, 1600, 100)
        assert state.tokens_left([waiting])[0] <= expected


class TestAnswerLengths:
    def test_answers_that_are_as_long_as_they_may_be_are_foreseen_exactly(self) -> None:
        lengths = AnswerLengths()
        for length in range(1, 200):
            lengths.observe(length, length)
        assert min(lengths.predict(number, 0, 777) for number in range(20)) >= 777

    def test_limits_that_are_never_reached_are_not_followed(self) -> None:
        lengths = AnswerLengths()
        for _ in range(50):
            lengths.observe(100, 4000)
        assert max(lengths.predict(number, 0, 4000) for number in range(20)) < 200

    def test_together_the_predictions_are_like_the_answers(self) -> None:
        lengths = AnswerLengths()
        for length in [50, 400] * 500:
            lengths.observe(length, None)
        predicted = [lengths.predict(number, 0, None) for number in range(400)]
        assert 0.45 < sum(length < 100 for length in predicted) / 400 < 0.55
        assert all(362 <= lengths.predict(number, 60, None) <= 431 for number in range(400))  # the bucket of 400

    def test_a_longer_answer_than_any_becomes_twice_as_long(self) -> None:
        lengths = AnswerLengths()
        for _ in range(3000):
            lengths.observe(10, None)
        assert lengths.predict(1, 1300, None) == 2 * 1218  # 1,300 is in the bucket that begins with 1,218

    @given(st.lists(st.tuples(st.integers(1, 500), st.sampled_from([None, 500, 1000])), max_size=60), st.integers(0, 99))
    def test_a_predicted_length_never_falls_while_the_answer_grows(
        self, answers: list[tuple[int, int | None]], number: int
    ) -> None:
        lengths = AnswerLengths()
        for length, limit in answers:
            lengths.observe(length, limit)
        for limit in (None, 700):
            predicted = [lengths.predict(number, so_far, limit) for so_far in range(600)]
            assert predicted == sorted(predicted)
            assert all(length > so_far for so_far, length in enumerate(predicted))

    @pytest.mark.parametrize("stride", [1, 4, 8, 1000])
    def test_every_part_of_the_distribution_is_predicted_as_often(self, stride: int) -> None:
        """A router may hand every fourth request to this instance."""
        lengths = AnswerLengths()
        for length in [50, 400, 3000, 20_000] * 500:
            lengths.observe(length, None)
        predicted = [lengths.predict(number * stride, 0, None) for number in range(4000)]
        bounds = [(0, 100), (100, 1000), (1000, 10_000), (10_000, 100_000)]
        counts = [sum(low <= length < high for length in predicted) for low, high in bounds]
        assert min(counts) > 800, counts


class TestPromptShares:
    def prompts(self, *rests: int, priorities: tuple[float, ...] = ()) -> list[PromptRest]:
        made = [PromptRest(LlmRequest(place, rest, 10), place, rest) for place, rest in enumerate(rests)]
        for prompt, priority in zip(made, priorities, strict=False):
            prompt.request.priority = priority
        return made

    @pytest.mark.parametrize(
        ("rests", "chunks"),
        [((500_000, 100, 3000), [1024, 100, 924]), ((500_000, 100), [1948, 100]), ((100, 100), [100, 100]), ((5000,), [2048])],
    )
    def test_short_prompts_go_first_and_the_first_in_line_keeps_its_share(
        self, rests: tuple[int, ...], chunks: list[int]
    ) -> None:
        prompts = self.prompts(*rests)
        PromptShares(0.5, 1, 1 << 60, whole_only=False).assign(prompts, 2048)
        assert [prompt.chunk for prompt in prompts] == chunks

    def test_urgent_prompts_go_before_shorter_ones(self) -> None:
        prompts = self.prompts(50, 3000, 3000, priorities=(0.0, 1.0, 1.0))
        PromptShares(0.5, 1, 1 << 60, whole_only=False).assign(prompts, 2048)
        assert [prompt.chunk for prompt in prompts] == [0, 2048, 0]

    def test_chunks_end_on_block_boundaries_where_they_can(self) -> None:
        prompts = self.prompts(500, 90)
        PromptShares(0.5, 16, 1 << 60, whole_only=False).assign(prompts, 125)
        assert [prompt.chunk for prompt in prompts] == [64, 48]  # of 63, and then of 77
        PromptShares(0.5, 16, 1 << 60, whole_only=False).assign(prompts[:1], 7)
        assert prompts[0].chunk == 7

    def test_without_chunks_a_prompt_is_computed_whole(self) -> None:
        prompts = self.prompts(60, 50)
        PromptShares(0.1, 1, 1 << 60, whole_only=True).assign(prompts, 100)
        assert [prompt.chunk for prompt in prompts] == [0, 50]


class TestVictims:
    def test_the_cheapest_goes_that_frees_enough(self) -> None:
        a, b, c = started(1, 900), started(2, 400), started(3, 120)
        assert choose_victim([a, b, c], 30, 2, 10) is b
        assert choose_victim([a, b, c], 1, 2, 10) is c
        assert choose_victim([a, b, c], 100, 2, 10) is a  # none frees that much

    def test_less_urgent_ones_go_first_and_those_paused_often_last(self) -> None:
        small, urgent, spared = started(1, 100), started(2, 50, priority=0.9), started(3, 20, num_pauses=2)
        assert choose_victim([small, urgent, spared], 1, 2, 10) is small
        assert choose_victim([urgent, spared], 1, 2, 10) is urgent
        assert choose_victim([], 1, 2, 10) is None

    def test_shared_blocks_bring_nothing(self) -> None:
        alone, sharing = started(1, 150), started(2, 200, num_shared_blocks=15)
        assert choose_victim([alone, sharing], 10, 2, 10) is alone

    def test_a_half_computed_prompt_goes_after_what_generates(self) -> None:
        prompt = LlmRequest(1, 50, 10)
        prompt.context_current_position = 10
        generating = started(2, 500)
        assert choose_victim([prompt, generating], 1, 2, 10) is generating
