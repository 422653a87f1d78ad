"""The emulated engine over HTTP: heads, order, disconnects, errors, metrics; and seen by the real `openai` package."""

import asyncio
import base64
import contextlib
import math
import struct

import msgspec
import pytest
from emulated import FROZEN, chat, emulated, events, play, whole
from prometheus_client.parser import text_string_to_metric_families

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def test_the_head_of_a_stream_leaves_before_there_is_any_token():
    async def scenario():
        async with emulated(latency=FROZEN) as engine:
            response = await engine.ask(CHAT, chat(5, stream=True))
            state = await engine.state_with(running=1)
            response.close()
            return response.status, dict(response.headers)[b"content-type"], state["running"], state["steps"]

    assert play(scenario()) == (200, b"text/event-stream; charset=utf-8", 1, 0)


def test_how_many_requests_it_can_run_is_where_gateways_look_for_it():
    async def scenario():
        async with emulated(max_num_seqs=7) as engine:
            return await engine.answer("/server_info", method="GET")

    status, info = play(scenario())
    assert (status, info["max_running_requests"]) == (200, 7)


def test_a_client_that_leaves_frees_its_place_whether_it_runs_or_waits():
    async def scenario():
        async with emulated(latency=FROZEN, max_num_seqs=1) as engine:
            runs = await engine.ask(CHAT, chat(5, stream=True))
            waits = await engine.ask(CHAT, chat(5, stream=True))
            before = await engine.state_with(running=1, waiting=1)
            waits.close()
            after_waiting = await engine.state_with(waiting=0)
            runs.close()
            return before, after_waiting, await engine.state_with(running=0)

    before, after_waiting, after_both = play(scenario())
    assert (before["running"], before["waiting"], before["aborted"]) == (1, 1, 0)
    assert (after_waiting["running"], after_waiting["waiting"], after_waiting["aborted"]) == (1, 0, 1)
    assert (after_both["running"], after_both["aborted"], after_both["kv_usage"]) == (0, 2, 0.0)


def test_a_client_that_does_not_stream_and_leaves_is_noticed_too():
    async def scenario():
        async with emulated(latency=FROZEN) as engine:
            asking = asyncio.create_task(engine.answer(TEXT, {"prompt": ["a", "b"], "max_tokens": 5}))
            before = await engine.state_with(running=2)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            return before["running"], await engine.state_with(running=0)

    before, after = play(scenario())
    assert before == 2
    assert (after["running"], after["aborted"], after["accepted"]) == (0, 2, 2)


@pytest.mark.parametrize(("scheduler", "order"), [("fcfs", ["long", "short"]), ("sjf", ["short", "long"])])
def test_one_place_is_given_in_the_order_of_the_scheduler(scheduler, order):
    """A request that gets the place leaves it when its first token comes. Its answer would take minutes, so the order does not
    depend on how late the process is."""

    async def scenario():
        started = []
        async with emulated(max_num_seqs=1, scheduler=scheduler) as engine:

            async def ask(name, text):
                response = await engine.ask(CHAT, chat(100_000, text=text, stream=True))
                await response.read_piece()
                started.append(name)
                response.close()

            holds_the_place = await engine.ask(CHAT, chat(100_000, stream=True))
            asking = []
            for waiting, (name, text) in enumerate([("long", "x" * 400), ("short", "x")], start=1):
                asking.append(asyncio.create_task(ask(name, text)))
                await engine.state_with(running=1, waiting=waiting)
            holds_the_place.close()
            await asyncio.gather(*asking)
        return started

    assert play(scenario()) == order


def test_two_streams_share_every_step():
    async def scenario():
        heard = []
        async with emulated() as engine:
            responses = [await engine.ask(CHAT, chat(40, stream=True)) for _ in range(2)]

            async def listen(name, response):
                async for piece in response:
                    heard.extend([name] * piece.count(b'"content":" '))

            await asyncio.gather(*(listen(name, response) for name, response in enumerate(responses)))
        return heard

    heard = play(scenario())
    assert heard.count(0) == heard.count(1) == 39
    assert set(heard[:30]) == {0, 1}
    assert set(heard[-30:]) == {0, 1}


@pytest.mark.parametrize(
    ("path", "payload", "status", "code", "param", "expected"),
    [
        (CHAT, b'{"messages": [', 400, None, None, "the body is not JSON"),
        (CHAT, b"\xff\xfe", 400, None, None, "the body is not JSON"),
        (CHAT, b'{"x": ' + b"[" * 3_000 + b"]" * 3_000 + b"}", 400, None, None, "the body is nested too deeply"),
        (CHAT, b'{"messages": [{"content": "\\ud800"}]}', 400, None, None, "half of a surrogate pair"),
        (CHAT, b'{"messages": [{"content": "\\ud83d', 400, None, None, "half of a surrogate pair"),
        (CHAT, {"model": "emulated"}, 400, None, None, "missing required field `messages`"),
        (CHAT, chat(max_tokens=0), 400, None, "max_tokens", ">= 1"),
        (CHAT, chat(n=2), 400, None, "n", "n must be 1"),
        (CHAT, chat(logprobs=True), 400, None, "logprobs", "not emulated"),
        (CHAT, chat(min_tokens=9, max_tokens=8), 400, None, "min_tokens", "more than max_tokens 8"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, None, "messages", "only text"),
        (CHAT, chat(max_tokens=100), 400, "context_length_exceeded", None, "model length of 64"),
        (TEXT, {"prompt": "x" * 4000}, 400, "context_length_exceeded", None, "1000 prompt and 16 output tokens"),
        (TEXT, {"prompt": []}, 400, None, "prompt", "prompt must be a text"),
        (TEXT, {"prompt": ["x", 3]}, 400, None, "prompt", "prompt must be a text"),
        (TEXT, {"prompt": ""}, 400, "context_length_exceeded", None, "no tokens"),
        (TEXT, {"prompt": "x", "echo": True}, 400, None, "echo", "not emulated"),
        (TEXT, {"prompt": "x", "model": "other"}, 404, "model_not_found", "model", "'other' does not exist"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, 400, None, "encoding_format", "hex"),
        ("/v1/nothing", {}, 404, "not_found", None, "there is no /v1/nothing here"),
        ("/v1/models", {}, 405, "method_not_allowed", None, "takes GET, not POST"),
        (TEXT, b" " * 9000, 413, "request_too_large", None, "8000 bytes"),
    ],
)
def test_a_request_that_cannot_be_served_gets_an_error_that_says_why(path, payload, status, code, param, expected):
    async def scenario():
        async with emulated(engine={"max_body_bytes": 8000}, max_model_len=64) as engine:
            got = await engine.answer(path, payload)
            return got, await engine.state_with(accepted=0)

    (got_status, answer), state = play(scenario())
    error = answer["error"]
    assert (got_status, error["code"], error["param"]) == (status, code, param)
    assert expected in error["message"]
    assert state["accepted"] == 0


@pytest.mark.parametrize(
    ("limits", "prompts", "status"),
    [
        ({"max_num_queued_reqs": 1}, ["a"], 200),
        ({"max_num_queued_reqs": 1}, ["a", "b"], 503),
        ({"max_num_queued_tokens": 1}, ["a"], 200),
        ({"max_num_queued_tokens": 1}, ["a", "b"], 503),
    ],
)
def test_more_requests_than_the_queue_may_hold_get_a_503(limits, prompts, status):
    async def scenario():
        async with emulated(**limits) as engine:
            return await engine.answer(TEXT, {"prompt": prompts, "max_tokens": 2})

    got, answer = play(scenario())
    assert got == status
    if status == 503:
        assert "the queue is full: " in answer["error"]["message"]
        assert next(iter(limits)) in answer["error"]["message"]


def test_metrics_carry_vllms_names_and_the_true_numbers():
    async def scenario():
        async with emulated(engine={"model": "tiny", "output_tokens": "3"}, total_kv_blocks=100) as engine:
            await engine.answer(TEXT, {"prompt": [1] * 20, "max_tokens": 8})
            await engine.answer(TEXT, {"prompt": [1] * 30, "max_tokens": 2})
            return await engine.get("/metrics")

    samples = {}
    for family in text_string_to_metric_families(play(scenario())):
        for sample in family.samples:
            extra = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
            assert (sample.labels["engine"], sample.labels["model_name"]) == ("0", "tiny")
            samples[sample.name.removeprefix("vllm:"), *sorted(extra.values())] = sample.value
    assert samples["num_requests_running",] == samples["num_requests_waiting",] == samples["kv_cache_usage_perc",] == 0
    assert (samples["prompt_tokens_total",], samples["generation_tokens_total",]) == (50, 5)
    assert (samples["request_success_total", "stop"], samples["request_success_total", "length"]) == (1, 1)
    assert (samples["request_prompt_tokens_sum",], samples["request_generation_tokens_sum",]) == (50, 5)
    assert (samples["time_to_first_token_seconds_count",], samples["e2e_request_latency_seconds_count",]) == (2, 2)
    assert (samples["inter_token_latency_seconds_count",], samples["request_queue_time_seconds_count",]) == (3, 2)
    assert samples["inter_token_latency_seconds_sum",] == pytest.approx(0.003)
    assert (samples["request_prefill_time_seconds_count",], samples["request_inference_time_seconds_count",]) == (2, 2)
    # a step takes a millisecond: 3 + 2 steps, of which the first of each is the prompt's
    assert samples["request_prefill_time_seconds_sum",] == pytest.approx(0.002)
    assert samples["request_decode_time_seconds_sum",] == pytest.approx(0.003)
    assert samples["request_inference_time_seconds_sum",] == pytest.approx(0.005)
    assert samples["request_time_per_output_token_seconds_sum",] == pytest.approx(0.002)
    assert (samples["request_params_max_tokens_sum",], samples["request_params_n_sum",]) == (10, 2)
    assert (samples["request_num_preemptions_count",], samples["request_num_preemptions_sum",]) == (2, 0)
    assert samples["prefix_cache_queries_total",] == samples["prefix_cache_hits_total",] == 0
    assert samples["cache_config_info", "100", "16", "1600", "False"] == 1


def test_gauges_show_running_and_waiting_requests():
    async def scenario():
        async with emulated(latency=FROZEN, max_num_seqs=1, total_kv_blocks=10) as engine:
            responses = [await engine.ask(TEXT, {"prompt": [1] * 32, "stream": True}) for _ in range(3)]
            await engine.state_with(waiting=2)
            page = await engine.get("/metrics")
            for response in responses:
                response.close()
            return page

    families = {family.name: family.samples[0].value for family in text_string_to_metric_families(play(scenario()))}
    assert (families["vllm:num_requests_running"], families["vllm:num_requests_waiting"]) == (1, 2)
    assert families["vllm:num_requests_waiting_by_reason"] == 2
    assert families["vllm:kv_cache_usage_perc"] == pytest.approx(0.2)


@pytest.mark.parametrize("path", ["/v1/models/org/tiny", "/v1/models/org%2Ftiny"])
def test_one_model_is_described_as_in_the_list(path):
    async def scenario():
        async with emulated(engine={"model": "org/tiny"}) as engine:
            _, everything = await engine.answer("/v1/models", method="GET")
            one = await engine.answer(path, method="GET")
            return everything["data"], one, await engine.answer("/v1/models/other", method="GET")

    (card,), one, other = play(scenario())
    assert one == (200, card)
    assert card["id"] == "org/tiny"
    assert (other[0], other[1]["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/emulated"])
def test_head_is_get_without_the_body(path):
    async def scenario():
        async with emulated() as engine:
            head = await engine.ask(path, b"", method="HEAD")
            get = await engine.ask(path, b"", method="GET")
            return head.status, head.headers, await whole(head), get.headers, len(await whole(get))

    status, head, body, get, _ = play(scenario())
    assert (status, body) == (200, b"")
    assert [name for name, _ in head] == [name for name, _ in get]


def test_a_stream_ends_with_done_and_carries_no_usage_unless_it_was_asked_for():
    async def scenario():
        async with emulated() as engine:
            return events(await whole(await engine.ask(CHAT, chat(2, stream=True))))

    expected, done = play(scenario())
    assert done
    assert len(expected) == 4  # the role, two words, the reason
    assert not any("usage" in event for event in expected)


def with_openai(scenario, **options):
    import openai  # takes seconds, which not every process that collects the tests should spend

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
    import openai

    async def scenario(client):
        listed = [model.id async for model in client.models.list()]
        with pytest.raises(openai.NotFoundError) as refused:
            await client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "Hello"}])
        return listed, refused.value

    listed, refused = with_openai(scenario, engine={"model": "tiny"})
    assert listed == ["tiny"]
    assert refused.code == "model_not_found"
    assert "'gpt-9' does not exist; this engine serves 'tiny'" in refused.message


@pytest.mark.parametrize("streams", [False, True])
def test_a_response_has_the_id_that_its_client_has_given(streams):
    async def scenario():
        async with emulated() as engine:
            response = await engine.ask(CHAT, chat(3, stream=streams), headers=[(b"x-request-id", b"job-17")])
            return await whole(response)

    body = play(scenario())
    answers = events(body)[0] if streams else [msgspec.json.decode(body)]
    assert {answer["id"] for answer in answers} == {"chatcmpl-job-17"}
