"""Requests that share a routing key run together, wherever they say it: in the header, in the body, or by their adapter."""

import asyncio

import msgspec
import pytest
from emulated import emulated, play, whole

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("place", ["x-smg-routing-key", "routing_key", "lora_path"])
def test_the_one_whose_key_is_running_goes_first(place):
    """Two places, one held with the key k; the other falls free while one with another key waits before one with k."""

    async def scenario():
        ended = []
        async with emulated(max_num_seqs=2, scheduler="routing-key") as engine:

            async def asked(key, tokens):
                headers = [(b"content-type", b"application/json")]
                fields = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": tokens}
                if place.startswith("x-"):
                    headers.append((place.encode(), key.encode()))
                elif key:
                    fields[place] = key
                return await engine.client.request(engine.origin, "POST", CHAT, headers, msgspec.json.encode(fields))

            async def heard(key):
                await whole(await asked(key, 2))
                ended.append(key)

            held, freed = await asked("k", 100_000), await asked("", 100_000)
            asking = []
            for waiting, key in enumerate(["z", "k"], start=1):
                asking.append(asyncio.create_task(heard(key)))
                await engine.state_with(running=2, waiting=waiting)
            freed.close()
            await asyncio.gather(*asking)
            held.close()
        return ended

    assert play(scenario()) == ["k", "z"]
