"""One rule counts the tokens of prompts and of answers."""

from hypothesis import given
from hypothesis import strategies as st

from maitred.emulator import tokens


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
