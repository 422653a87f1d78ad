"""The emulated engine seen by the real `openai` package."""

import base64
import math
import struct

import openai
import pytest
from emulated import emulated, play


def with_openai(scenario, **options):
    async def run():
        async with (
            emulated(**options) as engine,
            openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="any", max_retries=0) as client,
        ):
            return await scenario(client)

    return play(run())


def test_a_chat_says_as_many_words_as_it_counts_tokens():
    async def scenario(client):
        return await client.chat.completions.create(
            model="emulated",
            messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell me a tale."}],
            max_tokens=12,
            extra_body={"ignore_eos": True},
        )

    answer = with_openai(scenario)
    assert answer.choices[0].message.content == "the old cat and the new dog sat out one hot day"
    assert answer.choices[0].finish_reason == "length"
    # two messages of 2 and 4 tokens, 4 more for each, and 3 to open the answer
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (17, 12, 29)


def test_a_streamed_chat_is_a_role_then_a_word_per_chunk_then_the_reason_then_the_usage():
    async def scenario(client):
        stream = await client.chat.completions.create(
            model="emulated",
            messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
            max_completion_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        return [chunk async for chunk in stream]

    *chunks, usage = with_openai(scenario)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in chunks[1:]] == ["the", " old", " cat", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, None, "length"]
    assert usage.choices == []
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (9, 3)


@pytest.mark.parametrize(
    ("prompt", "prompt_tokens", "choices"),
    [("one text", 2, 1), (["one", "and two"], 3, 2), ([5, 6, 7], 3, 1), ([[1, 2], [3, 4, 5]], 5, 2)],
)
def test_every_form_of_a_prompt_is_counted_and_answered(prompt, prompt_tokens, choices):
    async def scenario(client):
        asked = {"model": "emulated", "prompt": prompt, "max_tokens": 4, "extra_body": {"ignore_eos": True}}
        whole = await client.completions.create(**asked)
        stream = await client.completions.create(**asked, stream=True)
        return whole, [chunk async for chunk in stream]

    whole, chunks = with_openai(scenario)
    assert [choice.text for choice in whole.choices] == ["the old cat and"] * choices
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (prompt_tokens, 4 * choices)
    for index in range(choices):
        said = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(choice.text for choice in said) == "the old cat and"
        assert said[-1].finish_reason == "length"


def test_an_answer_without_a_limit_ends_where_the_distribution_says():
    async def scenario(client):
        asked = {"model": "emulated", "messages": [{"role": "user", "content": "Hello"}]}
        free = await client.chat.completions.create(**asked)
        cut = await client.chat.completions.create(**asked, max_tokens=6)
        longer = await client.chat.completions.create(**asked, extra_body={"min_tokens": 10})
        return free, cut, longer

    answers = with_openai(scenario, engine={"output_tokens": "7"})
    assert [answer.usage.completion_tokens for answer in answers] == [7, 6, 10]
    assert [answer.choices[0].finish_reason for answer in answers] == ["stop", "length", "stop"]


def test_embeddings_are_unit_vectors_that_depend_on_the_text_alone():
    async def scenario(client):
        many = await client.embeddings.create(model="emulated", input=["a cat", "a dog", "a cat"])
        plain = await client.embeddings.create(model="emulated", input="a cat", encoding_format="float")
        short = await client.embeddings.create(model="emulated", input=[1, 2, 3], dimensions=8)
        return many, plain, short

    many, plain, short = with_openai(scenario)
    cat, dog, again = [item.embedding for item in many.data]
    assert cat == again
    assert cat != dog
    assert cat == pytest.approx(plain.data[0].embedding)
    assert math.hypot(*cat) == pytest.approx(1, abs=1e-5)
    assert (many.usage.prompt_tokens, short.usage.prompt_tokens) == (6, 3)
    assert len(short.data[0].embedding) == 8


def test_base64_embeddings_are_little_endian_floats():
    async def scenario():
        async with emulated() as engine:
            asked = {"input": "a cat", "dimensions": 4}
            _, plain = await engine.answer("/v1/embeddings", asked)
            _, packed = await engine.answer("/v1/embeddings", asked | {"encoding_format": "base64"})
            return plain["data"][0]["embedding"], packed["data"][0]["embedding"]

    plain, packed = play(scenario())
    assert list(struct.unpack("<4f", base64.b64decode(packed))) == pytest.approx(plain)


def test_the_served_model_is_listed_and_any_other_is_not_found():
    async def scenario(client):
        listed = [model.id async for model in client.models.list()]
        with pytest.raises(openai.NotFoundError) as refused:
            await client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "Hello"}])
        return listed, refused.value

    listed, refused = with_openai(scenario, engine={"model": "tiny"})
    assert listed == ["tiny"]
    assert refused.code == "model_not_found"
    assert "'gpt-9' does not exist; this engine serves 'tiny'" in refused.message
