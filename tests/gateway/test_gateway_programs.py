"""Programs at the gateway: a request waits for its program's place in KV memory, and goes to the backend of that place."""

from __future__ import annotations

import msgspec
from world import Backend, BackendRequest, GatedAnswer, GatewayWorld, run, whole, world

from maitred.programs import Program, ProgramState, ProgramStatus


def answer_of(total: int, prompt: int | None = None) -> bytes:
    """Return an answer with this usage."""
    return msgspec.json.encode({"usage": {"prompt_tokens": total if prompt is None else prompt, "total_tokens": total}})


async def small(received: BackendRequest) -> None:
    """Answer with a usage of 1,000 tokens."""
    await received.send(whole(answer_of(1000)))


def body(program: str | None = None, tokens: int = 100, **members: object) -> bytes:
    """Return a request that is estimated at `tokens`, at 5 characters each."""
    named = {"model": "m", **({} if program is None else {"program_id": program}), **members}
    return msgspec.json.encode({**named, "x": ""}).replace(
        b'"x":""', b'"x":"' + b"x" * (5 * tokens - len(msgspec.json.encode({**named, "x": ""}))) + b'"'
    )


def program(w: GatewayWorld, name: str) -> Program:
    assert w.gateway.programs is not None
    return next(p for p in w.gateway.programs.core.programs if p.key.name == name)


def test_a_program_is_granted_paused_and_resumed() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(), programs={"backend_capacity_tokens": 2000}) as w:
            w.backends[0].respond = gated
            first = await w.start_request(body("a", 1500))
            await w.wait_until(lambda: w.backends[0].received)
            second = await w.start_request(body("b", 1500))
            await w.wait_until(lambda: w.gateway.programs and w.gateway.programs.core.num_waiting)

            assert program(w, "a").state is ProgramState.ACTIVE
            assert (program(w, "b").state, program(w, "b").status) == (ProgramState.PAUSED, ProgramStatus.REASONING)
            assert (w.state.in_flight, w.state.waiting) == (1, 0)  # What waits for memory holds no slot, and asks for none.

            gated.open.set()
            assert (await first.read_response())[0] == 200
            assert program(w, "a").status is ProgramStatus.ACTING
            release = w.gateway.programs and w.gateway.programs.release("ip:127.0.0.1", "a")
            assert release
            assert (await second.read_response())[0] == 200

    run(scenario())
