"""A slow client loses no token, and the engine does not wait for it."""

import asyncio

from emulated import events

from maitred.emulator.responses import ChatFormat, ResponsePlan, StreamedResponse
from maitred.emulator.tokens import FinishReason, PlannedFinish


class SlowClient:
    """Takes each piece at once, and the next one when the test lets it."""

    def __init__(self):
        self.taken, self.busy = [], None

    def send_piece(self, piece, more):
        self.taken.append(piece)
        self.busy = asyncio.get_running_loop().create_future()
        return self.busy


def reply(tokens):
    ending = PlannedFinish(tokens, FinishReason.STOP)
    return ResponsePlan(endpoint_format=ChatFormat(), id="x", created=0, model="m", prompt_tokens=1, finishes=(ending,))


def test_tokens_that_come_while_the_client_is_slow_are_sent_together_when_it_takes_them():
    async def scenario():
        client = SlowClient()
        answer = StreamedResponse(reply(6), client)
        for emitted in range(1, 7):
            answer.on_progress(0, emitted)
        before = list(client.taken)
        while not answer.done.done():
            client.busy.set_result(None)
            await asyncio.sleep(0)
        return before, client.taken

    before, taken = asyncio.run(scenario())
    assert len(before) == 1  # the first token went out at once
    assert len(taken) == 2  # the others waited, and came together
    said, done = events(b"".join(taken))
    words = [event["choices"][0]["delta"].get("content") for event in said]
    assert (words, done) == (["", "the", " old", " cat", " and", " the", " new", None], True)
