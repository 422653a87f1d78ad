"""Responses of the emulated engine: how tokens are counted, how long answers are, and clients that are slow to take them."""

import asyncio

from emulated import events
from hypothesis import given
from hypothesis import strategies as st

from maitred.emulator import tokens
from maitred.emulator.responses import ChatFormat, ResponsePlan, StreamedResponse
from maitred.emulator.tokens import FinishReason, FinishSampler, PlannedFinish


class SlowClient:
    """Takes each piece at once, and the next one when the test lets it."""

    def __init__(self):
        self.taken, self.busy = [], None

    def send_piece(self, piece, more):
        self.taken.append(piece)
        self.busy = asyncio.get_running_loop().create_future()
        return self.busy


def reply(tokens):
    ending = PlannedFinish(tokens, FinishReason.STOP)
    return ResponsePlan(endpoint_format=ChatFormat(), id="x", created=0, model="m", prompt_tokens=1, finishes=(ending,))


def test_tokens_that_come_while_the_client_is_slow_are_sent_together_when_it_takes_them():
    async def scenario():
        client = SlowClient()
        answer = StreamedResponse(reply(6), client)
        for emitted in range(1, 7):
            answer.on_progress(0, emitted)
        before = list(client.taken)
        while not answer.done.done():
            client.busy.set_result(None)
            await asyncio.sleep(0)
        return before, client.taken

    before, taken = asyncio.run(scenario())
    assert len(before) == 1  # the first token went out at once
    assert len(taken) == 2  # the others waited, and came together
    said, done = events(b"".join(taken))
    words = [event["choices"][0]["delta"].get("content") for event in said]
    assert (words, done) == (["", "the", " old", " cat", " and", " the", " new", None], True)


def test_four_bytes_of_utf8_are_a_token_and_a_rest_is_one_more():
    assert [tokens.count(text) for text in ("", "a", "four", "fives", "ééé")] == [0, 1, 1, 2, 2]


@given(st.integers(0, 500))
def test_filler_of_n_tokens_is_n_words_and_counts_as_n_when_it_is_sent_back(n):
    text = tokens.filler(n)
    assert len(text.split()) == n
    assert tokens.count(text) == n
    assert "".join(tokens.piece(position) for position in range(n)) == text


@given(st.text())
def test_any_text_a_client_can_send_is_counted(text):
    assert tokens.count(text) == -(-len(text.encode("utf-8", "surrogatepass")) // 4)


@given(st.text(max_size=200), st.text(max_size=60), st.text(max_size=60), st.sampled_from([1, 2, 5]))
def test_prompts_share_the_blocks_in_which_they_begin_alike(common, one, other, size):
    first, second = (tokens.to_token_bytes(common + rest) for rest in (one, other))
    ours, theirs = (tokens.PromptTextBytes(text).block_keys(size) for text in (first, second))
    step = size * tokens.BYTES_PER_TOKEN

    assert len(ours) == tokens.count(common + one) // size
    for n, (mine, yours) in enumerate(zip(ours, theirs, strict=False), start=1):
        assert (mine == yours) == (first[: n * step] == second[: n * step])


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
