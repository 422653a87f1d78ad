"""Texts of a wanted length that share the prefixes that the workload says."""

import msgspec
import pytest

from maitred.core.request import Request
from maitred.emulator.clients.prompts import PromptWriter, TokenScale
from maitred.workload import Job
from maitred.workload.prefix_keys import ConversationKeys, GroupPrefixKeys


def job(number, tokens, prefix=None, conversation=None, **fields):
    return Job(Request(id=number, arrival=0, prompt_tokens=tokens, prefix=prefix, **fields), 10, conversation)


def writer(*, chat=False, added=0.0, per_word=1.0, nonce=1, **settings):
    return PromptWriter("m", chat=chat, scale=TokenScale(added, per_word), nonce=nonce, **settings)


def body(prompts, job):
    return msgspec.json.decode(prompts.body(job))


def words(prompts, job):
    return body(prompts, job)["prompt"].split()


def test_a_body_asks_for_what_the_workload_says():
    found = body(writer(fields=b',"temperature":0'), job(0, 20))
    assert len(found.pop("prompt").split()) == 20
    assert found == {
        "model": "m",
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": 10,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    unary = body(writer(ignore_eos=False), job(0, 20, stream=False, priority=3.0))
    assert "stream" not in unary
    assert "ignore_eos" not in unary
    assert unary["priority"] == -3  # in vLLM smaller is more urgent


def test_a_chat_has_one_message_and_room_for_its_template():
    found = body(writer(chat=True, added=7.0), job(0, 100))
    (message,) = found["messages"]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 93


@pytest.mark.parametrize(("per_word", "tokens", "expected"), [(1.0, 37, 37), (1.25, 100, 80), (0.5, 30, 60), (1.0, 0, 1)])
def test_the_endpoint_own_count_decides_how_many_words_there_are(per_word, tokens, expected):
    assert len(words(writer(per_word=per_word), job(0, tokens))) == expected


def test_two_probes_tell_what_a_word_is_and_what_comes_on_top():
    scale = TokenScale.of_probes((64, 91), (512, 651))
    assert (scale.added, scale.per_word) == (pytest.approx(11.0), pytest.approx(1.25))
    probe = msgspec.json.decode(writer().probe(100))
    assert (len(probe["prompt"].split()), probe["max_tokens"]) == (100, 1)


def test_prompts_share_as_many_words_as_the_workload_says_and_no_more():
    prompts = writer()
    first = words(prompts, job(1, 100, GroupPrefixKeys(5, 64, 1, 100)))
    second = words(prompts, job(2, 100, GroupPrefixKeys(5, 64, 2, 100)))
    assert first[:64] == second[:64]
    assert first[64:80] != second[64:80]
    other = words(prompts, job(3, 100, GroupPrefixKeys(6, 64, 3, 100)))
    assert first[:16] != other[:16]
    alone = [words(prompts, job(number, 100))[:16] for number in (4, 5)]
    assert alone[0] != alone[1]


def test_two_runs_have_different_texts():
    first, second = (words(writer(nonce=nonce), job(0, 40)) for nonce in (1, 2))
    assert first != second
    assert first == words(writer(nonce=1), job(0, 40))


@pytest.mark.parametrize("chat", [False, True])
def test_the_next_turn_contains_the_answer_as_the_endpoint_has_written_it(chat):
    prompts = writer(chat=chat, added=4.0 if chat else 0.0)
    first = job(0, 100, ConversationKeys(1, 100), ConversationKeys(1, 110), program="p")
    before = body(prompts, first)
    assert prompts.keeps_answer(0)
    prompts.on_end(first, rb"a \"quote\"", 110)
    after = body(prompts, job(1, 160, ConversationKeys(1, 160), program="p"))
    if chat:
        asked, answered, added = after["messages"]
        assert [asked] == before["messages"]
        assert answered == {"role": "assistant", "content": 'a "quote"'}
        assert len(added["content"].split()) == 46  # 50 tokens, of which four are the template's
    else:
        assert after["prompt"].startswith(before["prompt"] + 'a "quote"')
        assert len(after["prompt"].removeprefix(before["prompt"] + 'a "quote"').split()) == 50


def test_a_turn_that_continues_nothing_begins_anew():
    prompts = writer()
    first = job(0, 100, ConversationKeys(1, 100), ConversationKeys(1, 110), program="p")
    prompts.body(first)
    prompts.on_end(first, b"answer", 110)
    assert "answer" not in body(prompts, job(1, 160, ConversationKeys(2, 160), program="p"))["prompt"]
    failed = job(2, 160, ConversationKeys(1, 160), ConversationKeys(1, 170), program="q")
    prompts.body(failed)
    prompts.on_end(failed, None, 160)
    assert len(words(prompts, job(3, 200, ConversationKeys(1, 200), program="q"))) == 200
