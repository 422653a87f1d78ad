"""`--tokenizer`: prompts of exactly the workload's lengths, from words that are one token each."""

import json
import sys
from itertools import product

import pytest
from endpoint_thread import engine, serving

from maitred.core.request import Request
from maitred.emulator.clients.prompts import PromptWriter, TokenScale, choose_words
from maitred.workload import Job

LOAD = "--rate 200 --num-requests 5 --input-tokens 50 --output-tokens 5"
LETTERS = ["".join(letters) for letters in product("xyz", repeat=3)]


def test_words_of_one_length_are_taken_with_one_token_each():
    vocabulary = {f"Ġ{word}" for word in [*LETTERS, "longer", "é"]} | {"xx", "1"}
    words = choose_words(vocabulary, lambda text: len(text.split()))
    assert words == tuple(f" {word}" for word in sorted(LETTERS)[:16])


def test_a_word_that_is_joined_with_its_like_is_not_taken():
    def count(text):
        return len(text.replace(" xxx xxx", " xxx").split())

    words = choose_words(LETTERS, count)
    assert words is not None
    assert " xxx" not in words
    assert len(words) == 16


def test_words_that_are_joined_with_others_are_not_taken():
    def count(text):
        return len(text.replace(" xxx xxy", " xxx").split())

    assert choose_words(LETTERS[:16], count) is None
    assert choose_words([*LETTERS[:16], *(f"{word}a" for word in LETTERS)], count) == tuple(f" {w}a" for w in LETTERS[:16])


def test_prompts_are_made_of_these_words():
    words = tuple(f" {word}s" for word in LETTERS[:16])
    prompts = PromptWriter("m", chat=False, scale=TokenScale(), words=words)
    text = json.loads(prompts.body(Job(Request(id=1, arrival=0, prompt_tokens=100), 1)))["prompt"]
    assert len(text.split()) == 100
    assert {f" {word}" for word in text.split()} <= set(words)


def test_without_the_library_one_line_says_what_to_install(maitred, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    result = maitred("bench", "http://127.0.0.1:9", *LOAD.split(), "--tokenizer", tmp_path)
    assert result.code == 2
    assert "--tokenizer: needs the library tokenizers, which is not installed (pip install 'maitred[tokenizer]')" in result.err
    assert result.err.count("\n") == 1


@pytest.fixture
def write_tokenizer(tmp_path):
    """Return what writes a tokenizer of these words, and returns its folder."""
    tokenizers = pytest.importorskip("tokenizers")

    def write(words):
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(["[UNK]", *words])}, "[UNK]"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        made.save(str(tmp_path / "tokenizer.json"))
        return tmp_path

    return write


def test_the_words_of_a_tokenizer_have_the_lengths_of_the_workload(maitred, write_tokenizer):
    folder = write_tokenizer(LETTERS)
    with serving(engine()) as url:
        result = maitred("bench", url, *LOAD.split(), "--tokenizer", folder, "--results-path", "r.csv", "--quiet")
    assert result.code == 0, result.err
    lines = [line.split(",") for line in (folder / "r.csv").read_text().splitlines()]
    assert {line[lines[0].index("input_tokens")] for line in lines[1:]} == {"50"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([f"{word}a" for word in LETTERS], "the endpoint counts 1.25 tokens for a word that is one token in the tokenizer"),
        (LETTERS[:15], "has no 16 words of one length with one token each"),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(maitred, write_tokenizer, words, problem):
    folder = write_tokenizer(words)
    with serving(engine()) as url:
        result = maitred("bench", url, *LOAD.split(), "--tokenizer", folder)
    assert result.code == 2
    assert problem in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(("content", "problem"), [(None, "there is no "), ("{}", "is no tokenizer")])
def test_a_file_that_is_no_tokenizer_is_named(maitred, tmp_path, content, problem):
    pytest.importorskip("tokenizers")
    if content is not None:
        (tmp_path / "t.json").write_text(content)
    result = maitred("bench", "http://127.0.0.1:9", *LOAD.split(), "--tokenizer", "t.json")
    assert result.code == 2
    assert problem in result.err
    assert result.err.count("\n") == 1
