"""Requests with the same routing key run together. The key is in the header, in the body, or the adapter."""

import asyncio

import msgspec
import pytest
from emulated import chat, emulated, play

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
