"""The emulated engine: its command, a model of the catalogue, SGLang's rules, routing keys, and a prefix cache."""

import asyncio
import socket
import subprocess
import sys
import urllib.request

import msgspec
import pytest
from emulated import chat, emulated, play
from prometheus_client.parser import text_string_to_metric_families

from maitred.cli.engine import _about_overheads
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.flavours import flavour_keys
from maitred.instance.latency import AIConfiguratorLatency
from maitred.instance.sglang_config import SGLangConfig


@pytest.fixture
def stderr_until_ready(maitred, monkeypatch):
    """A function that runs the command up to the instant at which it would serve, and returns the lines on stderr."""
    monkeypatch.setattr("maitred.wire.server.open_ports", lambda listeners: listeners)
    monkeypatch.setattr("maitred.wire.server.serve", lambda *_app, on_ready, **_given: on_ready("http://127.0.0.1:9"))
    monkeypatch.setattr("maitred.wire.server.run_server", lambda _serving: None)
    return lambda *flags: maitred("engine", *flags).err.splitlines()


def test_it_says_where_it_listens_and_ends_well_when_told_to():
    command = [sys.executable, "-m", "maitred", "engine", "--port", "0", "--model", "tiny", "--speed", "100"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    url = line.split()[3].rstrip(",")
    assert line == f"maitred: engine on {url}, model: tiny\n"
    with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
        assert answer.status == 200
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


def test_the_name_of_vllm_for_the_model_is_taken(stderr_until_ready):
    assert stderr_until_ready("--served-model-name", "tiny")[0] == "maitred: engine on http://127.0.0.1:9, model: tiny"


def test_a_port_in_use_is_one_line(maitred):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = maitred("engine", "--port", port)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"maitred: error: --port: port {port} is in use")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--scheduler", "sfj"), "did you mean 'sjf'?"),
        (("--latency", "linear:1,2"), "linear:5000,17.5,60"),
        (("--latency", "quadratic:1"), "linear"),
        (("--model", "llama-3.1-9b", "--hardware", "H100"), "did you mean 'llama-3.1-8b'?"),
        (("--output-tokens", "gamma:1,2"), "lognormal:MEAN,SD"),
        (("--speed", "0"), "speed must be a number above 0"),
    ],
)
def test_a_wrong_flag_is_one_line_that_says_what_is_right(arguments, expected, maitred):
    result = maitred("engine", "--port", "0", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("maitred: error: ")
    assert expected in result.err
    assert result.err.count("\n") == 1


def test_warnings_come_before_it_serves(stderr_until_ready):
    warning, ready = stderr_until_ready("--scheduler", "lpm")
    assert warning.startswith("maitred: warning: lpm orders by the prefix cache, which is off")
    assert ready.startswith("maitred: engine on http://")


def test_overheads_are_said_to_have_no_effect(stderr_until_ready):
    first, second = stderr_until_ready("--alpha-coeffs", "500,1,100", "--beta-coeffs", "5000,17.5,60")
    assert first.startswith("maitred: warning: alpha (--alpha-coeffs) has no effect here")
    assert second.startswith("maitred: engine on ")


@pytest.mark.parametrize(("alpha", "warns"), [((500, 1, 100), True), ((0, 0, 0), False), (None, False)])
def test_so_are_those_of_measured_kernels(alpha, warns):
    instance = InstanceConfig(model=MODEL, latency=AIConfiguratorLatency(alpha=alpha))
    assert bool([*_about_overheads(instance)]) is warns


MODEL = "meta-llama/llama-3.1-8b-instruct"


def test_it_has_the_kv_and_the_context_of_that_model_there():
    async def scenario():
        async with emulated(engine={"model": MODEL}, latency=None, model=MODEL, hardware="L40S") as engine:
            return await engine.get("/metrics"), msgspec.json.decode(await engine.get("/v1/models"))

    metrics, models = play(scenario())

    assert 'num_gpu_blocks="11567"' in metrics  # (43.2 - 14.96 - 5.5 - 0.15) GiB of 16 tokens of 128 KiB
    assert models["data"][0]["max_model_len"] == 131072


def test_a_name_alone_is_only_a_name():
    async def scenario():
        async with emulated(engine={"model": MODEL}) as engine:
            return await engine.get("/metrics")

    assert 'num_gpu_blocks="27000"' in play(scenario())


SGLANG = {"flavour": "sglang", **flavour_keys("sglang"), "sglang": SGLangConfig(schedule_conservativeness=0)}
TIGHT = {"total_kv_blocks": 120, "block_size_in_tokens": 1, "latency": LinearLatency((10_000.0, 0.0, 0.0))}
"""Memory for 120 tokens. A step takes 10 ms."""


def test_a_retracted_request_gets_its_whole_answer():
    """Nothing is reserved for answers, so the second request is admitted beside the first one. With their answers both have
    more than 120 tokens: the one with fewer tokens gives way, and comes back."""

    async def scenario():
        async with emulated(**SGLANG, **TIGHT) as engine:
            first = asyncio.create_task(engine.answer("/v1/chat/completions", chat(60, text="one")))
            await engine.state_with(running=1)
            answers = [await engine.answer("/v1/chat/completions", chat(60, text="two")), await first]
            page = await engine.get("/metrics")
        metrics = {s.name: s.value for family in text_string_to_metric_families(page) for s in family.samples}
        return [(status, body["usage"]["completion_tokens"]) for status, body in answers], metrics

    answers, metrics = play(scenario())

    assert answers == [(200, 60)] * 2
    assert metrics["vllm:num_preemptions_total"] == 1


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("place", ["x-smg-routing-key", "routing_key", "lora_path"])
def test_the_one_whose_key_is_running_goes_first(place):
    """Two sequences run, one with the key k. When the other ends, a request with k goes before an earlier one with another
    key."""

    async def scenario():
        started = []
        async with emulated(max_num_seqs=2, scheduler="routing-key") as engine:

            async def ask(key):
                headers, fields = [(b"content-type", b"application/json")], chat(100_000, stream=True)
                if place.startswith("x-"):
                    headers.append((place.encode(), key.encode()))
                elif key:
                    fields[place] = key
                return await engine.client.request(engine.origin, "POST", CHAT, headers, msgspec.json.encode(fields))

            async def leave_at_first_token(key):
                response = await ask(key)
                await response.read_piece()
                started.append(key)
                response.close()

            held, freed = await ask("k"), await ask("")
            asking = []
            for waiting, key in enumerate(["z", "k"], start=1):
                asking.append(asyncio.create_task(leave_at_first_token(key)))
                await engine.state_with(running=2, waiting=waiting)
            freed.close()
            await asyncio.gather(*asking)
            held.close()
        return started

    assert play(scenario()) == ["k", "z"]


SYSTEM = {"role": "system", "content": "You are a patient host. " * 40}  # 960 bytes: 240 tokens


def chat_of(*messages):
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
    queries, hits = cache_counts(chat_of(SYSTEM, message("Hello there!")), chat_of(SYSTEM, message("Goodbye then")))

    assert (queries, hits) == (508, 240)


def test_a_conversation_finds_what_was_said_before():
    """The first prompt has 254 tokens, and its answer 3, of which the last one is never computed: 256 tokens are in memory."""
    first = chat_of(SYSTEM, message("Hello there!"))
    second = chat_of(SYSTEM, message("Hello there!"), message("the old cat", "assistant"), message("And now?"))

    assert cache_counts(first, second)[1] == 256


def test_an_answer_that_comes_back_changed_is_not_found():
    first = chat_of(SYSTEM, message("Hello there!"))
    second = chat_of(SYSTEM, message("Hello there!"), message("the new cat", "assistant"), message("And now?"))

    assert cache_counts(first, second)[1] == 240


def test_a_text_that_goes_on_finds_its_answer():
    """A prompt of 100 tokens, and 14 of its 15 answered ones, fill 7 blocks."""
    text = "x" * 400
    asked = [text, text + "the old cat and the new dog sat out one hot day but the dog saw"]
    completions = ({"model": "emulated", "prompt": prompt, "max_tokens": 15} for prompt in asked)

    assert cache_counts(*completions, path="/v1/completions")[1] == 112


def test_the_role_is_part_of_the_prompt():
    text = "x" * 400

    assert cache_counts(chat_of(message(text, "user")), chat_of(message(text, "system")))[1] == 0


def test_token_ids_are_prompts_too():
    ids = list(range(100))

    assert cache_counts(*[{"model": "emulated", "prompt": ids, "max_tokens": 2}] * 2, path="/v1/completions")[1] == 96


def test_without_a_cache_nothing_is_looked_up():
    assert cache_counts(*[chat_of(SYSTEM)] * 2, caching=False) == (0, 0)


@pytest.mark.parametrize(("caching", "flavour", "has_cache"), [(True, None, True), (False, None, False), (False, "blis", True)])
def test_the_metrics_say_whether_there_is_a_cache(caching, flavour, has_cache):
    async def scenario():
        async with emulated(enable_prefix_caching=caching, flavour=flavour) as engine:
            return str(await engine.get("/metrics"))

    assert f'enable_prefix_caching="{has_cache}"' in play(scenario())
