"""The emulated engine by SGLang's rules."""

import asyncio

from emulated import chat, emulated, play
from prometheus_client.parser import text_string_to_metric_families

from maitred.instance import LinearLatency
from maitred.instance.flavours import flavour_keys
from maitred.instance.sglang_config import SGLangConfig

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
