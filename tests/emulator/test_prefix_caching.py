"""The emulated engine with a prefix cache: a prefix that is sent twice is computed once."""

import pytest
from emulated import emulated, play
from prometheus_client.parser import text_string_to_metric_families

SYSTEM = {"role": "system", "content": "You are a patient host. " * 40}  # 960 bytes: 240 tokens


def chat(*messages):
    return {"model": "emulated", "messages": list(messages), "max_tokens": 3}


def message(text, role="user"):
    return {"role": role, "content": text}


def cache_counts(*payloads, path="/v1/chat/completions", caching=True):
    """Send the payloads one after the other, and return the prompt tokens looked up and found in the cache."""

    async def scenario():
        async with emulated(enable_prefix_caching=caching) as engine:
            for payload in payloads:
                status, _ = await engine.answer(path, payload)
                assert status == 200
            page = await engine.get("/metrics")
            found = {s.name: s.value for family in text_string_to_metric_families(page) for s in family.samples}
            return found["vllm:prefix_cache_queries_total"], found["vllm:prefix_cache_hits_total"]

    return play(scenario())


def test_a_system_prompt_that_chats_share_is_found():
    """Each prompt has 4 + 240 + 4 + 3 + 3 = 254 tokens. They share the first message and the next head: 247, 15 blocks."""
    queries, hits = cache_counts(chat(SYSTEM, message("Hello there!")), chat(SYSTEM, message("Goodbye then")))

    assert (queries, hits) == (508, 240)


def test_a_conversation_finds_what_was_said_before():
    """The first prompt has 254 tokens, and its answer 3, of which the last one is never computed: 256 tokens are in memory."""
    first = chat(SYSTEM, message("Hello there!"))
    second = chat(SYSTEM, message("Hello there!"), message("the old cat", "assistant"), message("And now?"))

    assert cache_counts(first, second)[1] == 256


def test_an_answer_that_comes_back_changed_is_not_found():
    first = chat(SYSTEM, message("Hello there!"))
    second = chat(SYSTEM, message("Hello there!"), message("the new cat", "assistant"), message("And now?"))

    assert cache_counts(first, second)[1] == 240


def test_a_text_that_goes_on_finds_its_answer():
    """A prompt of 100 tokens, and 14 of its 15 answered ones, fill 7 blocks."""
    text = "x" * 400
    asked = [text, text + "the old cat and the new dog sat out one hot day but the dog saw"]
    completions = ({"model": "emulated", "prompt": prompt, "max_tokens": 15} for prompt in asked)

    assert cache_counts(*completions, path="/v1/completions")[1] == 112


def test_the_role_is_part_of_the_prompt():
    text = "x" * 400

    assert cache_counts(chat(message(text, "user")), chat(message(text, "system")))[1] == 0


def test_token_ids_are_prompts_too():
    ids = list(range(100))

    assert cache_counts(*[{"model": "emulated", "prompt": ids, "max_tokens": 2}] * 2, path="/v1/completions")[1] == 96


def test_without_a_cache_nothing_is_looked_up():
    assert cache_counts(*[chat(SYSTEM)] * 2, caching=False) == (0, 0)


@pytest.mark.parametrize("caching", [True, False])
def test_the_metrics_say_whether_there_is_a_cache(caching):
    async def scenario():
        async with emulated(enable_prefix_caching=caching) as engine:
            return str(await engine.get("/metrics"))

    assert f'enable_prefix_caching="{caching}"' in play(scenario())
