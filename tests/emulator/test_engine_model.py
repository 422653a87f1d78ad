"""An emulated engine with a model and hardware of the catalogue."""

import msgspec
from emulated import emulated, play

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
