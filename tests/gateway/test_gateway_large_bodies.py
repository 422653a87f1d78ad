"""Bodies above 1 MiB: read in steps, with the same result as those of usual size."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from world import CHAT, run, world

from maitred.gateway.bodies import prompt_text
from maitred.gateway.bodies.agent_headers import SessionReader
from maitred.gateway.bodies.json_slices import SLICE_BYTES
from maitred.gateway.bodies.large_body import LARGE_BYTES, LargeBody, Steps, Turns
from maitred.gateway.bodies.program_fields import ProgramReader, withdraw_usage
from maitred.gateway.bodies.prompt_text import PromptText
from maitred.gateway.bodies.request_fields import RoutingHintReader, decode_body_fields, parse_body_fields
from maitred.gateway.bodies.request_work import count_sequences, output_limit
from maitred.gateway.intake.large_body_reader import LargeBodyReader, _read_json
from maitred.gateway.routes import ROUTES
from maitred.routing import Signals
from maitred.wire.exchange import ApiError, ClientDisconnected, Exchange

TEXT = "hello world, " * 100_000
MESSAGES = [{"role": "user", "content": "hello"}] * 50_000


class Client:
    """What is asked of an exchange."""

    is_disconnected = False

    def get_header(self, name: bytes) -> None:
        return None


def exchange() -> Exchange:
    return cast(Exchange, Client())


def finished(steps: Steps[LargeBody]) -> LargeBody:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(LargeBody, end.value)


def encoded(**members: Any) -> bytes:
    body = json.dumps(members).encode()
    assert len(body) > LARGE_BYTES
    return body


@pytest.mark.parametrize(
    ("path", "members"),
    [
        (CHAT, {"messages": MESSAGES, "stream": True, "n": 3, "max_tokens": 9}),
        (CHAT, {"max_tokens": "9", "service_tier": "flex", "messages": [{"role": "user", "content": TEXT}]}),
        (CHAT, {"stream": [{}] * 600_000, "max_tokens": [[]] * 9, "messages": []}),
        ("/v1/completions", {"prompt": ["hello"] * 200_000, "n": 2}),
        ("/v1/completions", {"prompt": ["hello " * 1000] * 300, "n": 2}),
        ("/v1/completions", {"prompt": list(range(300_000))}),
        ("/v1/completions", {"prompt": [list(range(1000))] * 400}),
        ("/v1/embeddings", {"input": [TEXT, TEXT]}),
        ("/generate", {"text": TEXT, "sampling_params": {"n": 2, "max_new_tokens": 5}}),
        (CHAT, {"messages": MESSAGES, "program_id": "p", "extra_body": {"parent_program_id": "q"}, "session_id": 7}),
    ],
)
def test_a_large_body_says_what_it_says_read_at_once(path: str, members: dict[str, Any]) -> None:
    body, route = encoded(model="m", **members), ROUTES[path]
    large = finished(_read_json(body))
    at_once, in_steps = parse_body_fields(body, route), parse_body_fields(body, route, large)
    assert (in_steps.model, in_steps.stream, in_steps.service_tier) == (at_once.model, at_once.stream, at_once.service_tier)
    assert output_limit(in_steps) == output_limit(at_once)
    assert count_sequences(in_steps, route, large) == count_sequences(at_once, route)
    assert large.characters == len(body.decode())

    hints = RoutingHintReader(Signals.SESSION | Signals.PROMPT, SessionReader())
    one, other = hints.read_hints([], body, "m"), hints.read_hints([], body, "m", large)
    assert (one.program, one.parent_program) == (other.program, other.parent_program)
    assert one.prefix is not None
    assert other.prefix is not None
    assert one.prefix.block_keys(16) == other.prefix.block_keys(16)

    programs = ProgramReader(SessionReader())
    found, found_large = (programs.read([], body, route, stream=True, large=known) for known in (None, large))
    assert (found.program, found.parent, found.hides_usage) == (
        found_large.program,
        found_large.parent,
        found_large.hides_usage,
    )
    changed = run(LargeBodyReader().change(exchange(), body, large))
    assert json.loads(changed) == json.loads(found.body)


def test_the_usage_of_a_large_body_is_withdrawn_at_its_end() -> None:
    asking = encoded(model="m", messages=MESSAGES)[:-1] + b',"stream_options":{"include_usage":true%b},"priority":-1}'
    assert withdraw_usage(asking % b"") == encoded(model="m", messages=MESSAGES)[:-1] + b',"priority":-1}'
    assert json.loads(withdraw_usage(asking % b',"a":1'))["stream_options"] == {"a": 1}


def test_a_large_body_is_forwarded_with_its_changes_and_its_memory_given_back() -> None:
    async def scenario() -> None:
        async with world(forward_priority="vllm", programs={"backend_capacity_tokens": 10_000_000}) as w:
            body = {"model": "m", "program_id": "p", "priority": 9, "stream": True, "messages": MESSAGES}
            connection = await w.start_request(body, x_smg_priority="bulk")
            assert (await connection.read_response())[0] == 200
            received = json.loads(w.backends[0].received[0].body)
            assert received.pop("stream_options") == {"include_usage": True}
            assert received.pop("priority") > 0
            assert received == {"model": "m", "stream": True, "messages": MESSAGES}
            await w.wait_until_idle()
            assert w.state.parked_body_bytes == 0

    run(scenario())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{"model":"m","messages":[' + b"{}," * 500_000 + b"]}",
            "is not valid JSON: JSON is malformed: trailing comma",
        ),
        (b'{"model":"m","x":' + b"[" * 2_000_000, "nested too deeply"),
        (b'{"model":"m","max_tokens":' + b"9" * 2_000_000 + b"}", "a number or a word has more than"),
        (b'{"model":"m","x":"' + b"x" * 2_000_000, "Input data was truncated"),
        (b'{"x":"' + b"x" * 2_000_000 + b'"}', "you must name a model"),
        (b'{"model":["' + b"x" * 2_000_000 + b'"]}', "you must name a model"),
    ],
)
def test_a_large_body_that_is_wrong_is_refused(body: bytes, message: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            status, _, answer = await w.request(CHAT, body)
            assert status == 400
            assert message in json.loads(answer)["error"]["message"]
            assert w.state.parked_body_bytes == 0

    run(scenario())


def test_large_limits_of_the_answer_are_not_hidden() -> None:
    body = encoded(model="m", sampling_params={"pad": TEXT, "max_new_tokens": 9})
    with pytest.raises(ApiError, match=r"at most 1048576 bytes - at `\$.sampling_params`"):
        parse_body_fields(body, ROUTES["/generate"], finished(_read_json(body)))


@pytest.mark.parametrize("name", ["model", "stream", "service_tier", "max_tokens", "n", "best_of"])
def test_a_large_value_that_is_of_no_use_is_not_copied(name: str) -> None:
    body = encoded(**{"model": "m", "messages": [], name: [[]] * 400_000})
    large = finished(_read_json(body))
    tracemalloc.start()
    try:
        fields = decode_body_fields(body, large=large)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert getattr(fields, name) == ("" if name == "model" else None)
    assert peak < 100_000


def test_large_forms_and_large_compressed_bodies_are_read() -> None:
    async def scenario() -> None:
        async with world() as w:
            parts = b'--a\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"x" * 2_000_000
            form = parts + b'\r\n--a\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--a--\r\n'
            audio = "/v1/audio/transcriptions"
            assert (await w.request(audio, form, content_type="multipart/form-data; boundary=a"))[0] == 200
            other = form.replace(b"\r\n\r\nm\r\n", b"\r\n\r\nanother\r\n")
            assert (await w.request(audio, other, content_type="multipart/form-data; boundary=a"))[0] == 404
            body = encoded(model="m", messages=MESSAGES)
            assert (await w.request(CHAT, gzip.compress(body), content_encoding="gzip"))[0] == 200
            assert w.backends[0].received[-1].body == body

    run(scenario())


def test_the_loop_runs_between_any_two_slices() -> None:
    body = encoded(model="m", messages=[{}] * 500_000)

    async def scenario() -> int:
        turns = [0]
        loop = asyncio.get_running_loop()

        def tick() -> None:
            turns[0] += 1
            loop.call_soon(tick)

        tick()
        await LargeBodyReader().read(exchange(), body, ROUTES[CHAT])
        return turns[0]

    assert run(scenario()) >= len(body) // SLICE_BYTES


PROMPTS: dict[str, tuple[dict[str, Any], int]] = {
    "text": ({"messages": [{"role": "user", "content": "hello " * 200_000}]}, 24),
    "roles": ({"messages": [{"role": ""}] * 100_000}, 36),
    "strings that no engine computes": ({"messages": [""] * 300_000}, 24),
    "short texts": ({"messages": [{"text": "a"}] * 100_000, "system": [{"text": "b"}] * 100_000, "tools": [{}] * 100_000}, 64),
}
"""Bodies, and in how many steps they are looked through at least."""


@pytest.mark.parametrize("keeps_parts", [False, True])
@pytest.mark.parametrize("what", PROMPTS)
def test_what_routers_ask_of_a_large_prompt_is_computed_in_steps(
    what: str, keeps_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, body = RoutingHintReader(Signals.PROMPT), encoded(model="m", **PROMPTS[what][0])

    def prompt() -> PromptText:
        prefix = reader.read_hints([], body, "m", finished(_read_json(body))).prefix
        assert isinstance(prefix, PromptText)
        return prefix

    expected = {size: list(prompt().block_keys(size)) for size in (16, 32)}
    prepared = prompt()
    num_steps = sum(1 for _ in prepared.prepare(keeps_parts=keeps_parts))
    assert num_steps >= PROMPTS[what][1]
    made = prompt_text.hash_text_blocks
    monkeypatch.setattr(prompt_text, "hash_text_blocks", None)  # Nothing is left to compute.
    assert {size: list(prepared.block_keys(size)) for size in expected} == expected
    monkeypatch.setattr(prompt_text, "hash_text_blocks", made)
    assert list(prepared.block_keys(64)) == list(prompt().block_keys(64))  # another size, which was not known


@given(
    st.lists(
        st.sampled_from(
            [
                '"role"',
                '"',
                ": ",
                ":",
                ",",
                "{",
                "}",
                '"content":"',
                'a,b"',
                '\\\\"',
                "\\\\",
                ' "text" : "x-anthropic-billing-header: 1;',
                " ",
            ]
        )
    )
)
@example(['"content":"', 'a,b"', ",", '"role"', ":", '"content":"', ","])
def test_the_strings_of_a_prompt_do_not_depend_on_where_a_step_ends(pieces: list[str]) -> None:
    part = msgspec.Raw("".join(("[", *pieces)).encode())
    expected = finished(prompt_text._text_of(part))
    for size in (1, 3, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prompt_text, "_BYTES_IN_STEP", size)
            assert finished(prompt_text._text_of(part)) == expected


def test_of_many_large_bodies_one_step_is_done_in_a_turn_and_they_take_turns() -> None:
    done: list[tuple[int, str]] = []

    async def scenario() -> None:
        turn, turns = [0], Turns()
        loop = asyncio.get_running_loop()

        def tick() -> None:
            turn[0] += 1
            loop.call_soon(tick)

        def steps(name: str) -> Iterator[None]:
            for _ in range(5):
                done.append((turn[0], name))
                yield

        tick()
        await asyncio.gather(*(turns.run(cast(Steps[None], steps(name)), exchange()) for name in "abc"))

    run(scenario())
    assert len({turn for turn, _ in done}) == len(done) == 15
    assert [name for _, name in done] == list("abc") * 5


def test_nothing_more_is_read_for_a_client_that_has_left() -> None:
    client, done = Client(), [0]

    def steps() -> Iterator[None]:
        while True:
            done[0] += 1
            client.is_disconnected = done[0] == 3
            yield

    with pytest.raises(ClientDisconnected):
        run(Turns().run(cast(Steps[None], steps()), cast(Exchange, client)))
    assert done == [3]
