"""The emulated engine by SGLang's rules."""

import asyncio

from emulated import chat, emulated, play
from prometheus_client.parser import text_string_to_metric_families

from maitred.instance.flavours import flavour_keys
from maitred.instance.sglang_config import SGLangConfig

SGLANG = {"flavour": "sglang", **flavour_keys("sglang"), "sglang": SGLangConfig(schedule_conservativeness=0)}
TIGHT = {"total_kv_blocks": 120, "block_size_in_tokens": 1}


def test_retracted_requests_get_their_whole_answers():
    async def scenario():
        async with emulated(**SGLANG, **TIGHT) as engine:

            async def ask(number):
                await asyncio.sleep(number * 0.005)
                return await engine.answer("/v1/chat/completions", chat(30, text=f"request {number}"))

            answers = await asyncio.gather(*(ask(number) for number in range(6)))
            page = await engine.get("/metrics")
        metrics = {s.name: s.value for family in text_string_to_metric_families(page) for s in family.samples}
        return [(status, body["usage"]["completion_tokens"]) for status, body in answers], metrics

    answers, metrics = play(scenario())

    assert answers == [(200, 30)] * 6
    assert metrics["vllm:num_preemptions_total"] > 0
