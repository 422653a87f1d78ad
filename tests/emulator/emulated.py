"""Helpers of the emulator tests: an engine on a socket, and a client that sees bytes."""

import asyncio
import contextlib

import msgspec
import uvloop

from maitred.emulator import EngineConfig
from maitred.emulator.engine import EngineApp
from maitred.instance import InstanceConfig, LinearLatency
from maitred.wire.client import UpstreamClient
from maitred.wire.origin import Origin
from maitred.wire.server import running_server

play = uvloop.run
"""Run a scenario on the event loop that the servers use."""

FROZEN = LinearLatency((3_600_000_000.0, 0.0, 0.0))
"""A step takes an hour, so no token ever comes."""

QUICK = LinearLatency((1_000.0, 0.0, 0.0))
"""A step takes a millisecond."""


class Emulated:
    """An engine on a socket."""

    def __init__(self, url, client):
        self.url, self.client, self.origin = url, client, Origin.parse(url)

    async def ask(self, path, payload, *, method="POST", headers=()):
        """Return the response when its head has come."""
        body = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        sent = [(b"content-type", b"application/json"), *headers]
        return await self.client.request(self.origin, method, path, sent, body)

    async def answer(self, path, payload=b"", *, method="POST"):
        """Return the status and the JSON of a whole response."""
        response = await self.ask(path, payload, method=method)
        return response.status, msgspec.json.decode(await whole(response))

    async def get(self, path):
        response = await self.client.request(self.origin, "GET", path)
        return (await whole(response)).decode()

    async def state_with(self, **wanted):
        """Return the state of the engine as soon as it has the `wanted` values, or after two seconds as it is then."""
        for _ in range(400):
            state = msgspec.json.decode(await self.get("/emulator/state"))
            if wanted.items() <= state.items():
                break
            await asyncio.sleep(0.005)
        return state


async def whole(response):
    return b"".join([piece async for piece in response])


def events(body):
    """Return the JSON of each event, and whether [DONE] is the last."""
    *payloads, last = [event.removeprefix("data: ") for event in body.decode().strip().split("\n\n")]
    return [msgspec.json.decode(event) for event in payloads], last == "[DONE]"


@contextlib.asynccontextmanager
async def emulated(*, latency=QUICK, engine=None, **instance):
    app = EngineApp(EngineConfig(**(engine or {})), InstanceConfig(latency=latency, **instance))
    async with running_server(app, drain_secs=0.1) as url:
        client = UpstreamClient()
        try:
            yield Emulated(url, client)
        finally:
            await client.close()


def chat(tokens=None, *, text="hello", **fields):
    limit = {} if tokens is None else {"max_tokens": tokens, "ignore_eos": True}
    return {"messages": [{"role": "user", "content": text}], **limit, **fields}
