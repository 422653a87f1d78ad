"""A slow client loses no token, and the engine does not wait for it."""

import asyncio

from emulated import events

from maitred.emulator.responses import ChatFormat, ResponsePlan, StreamedResponse
from maitred.emulator.tokens import FinishReason, PlannedFinish


class SlowClient:
    """Takes one message, and the next ones when the test lets it."""

    def __init__(self):
        self.taken, self.free = [], asyncio.Event()
        self.free.set()

    async def send(self, message):
        await self.free.wait()
        self.free.clear()
        self.taken.append(message["body"])


def reply(tokens):
    ending = PlannedFinish(tokens, FinishReason.STOP)
    return ResponsePlan(endpoint_format=ChatFormat(), id="x", created=0, model="m", prompt_tokens=1, finishes=(ending,))


def test_tokens_that_come_while_the_client_is_slow_are_sent_together_when_it_takes_them():
    async def scenario():
        client = SlowClient()
        answer = StreamedResponse(reply(6), client.send)
        for emitted in range(1, 7):
            answer.on_progress(0, emitted)
        before = list(client.taken)
        while not answer.done.done():
            client.free.set()
            await asyncio.sleep(0)
        return before, client.taken

    before, taken = asyncio.run(scenario())
    assert len(before) == 1  # the first token went out at once
    assert len(taken) == 3  # the second waited, and the rest behind it
    said, done = events(b"".join(taken))
    words = [event["choices"][0]["delta"].get("content") for event in said]
    assert (words, done) == (["", "the", " old", " cat", " and", " the", " new", None], True)


def test_a_client_that_breaks_while_it_is_slow_ends_the_answer():
    async def scenario():
        async def send(message):
            await asyncio.sleep(0)
            raise ConnectionResetError

        answer = StreamedResponse(reply(6), send)
        answer.on_progress(0, 1)
        answer.on_progress(0, 2)
        await asyncio.wait_for(answer.done, 5)

    asyncio.run(scenario())
