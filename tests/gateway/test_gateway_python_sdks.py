"""The Python SDKs of OpenAI and Anthropic through a gateway: what they read, which errors they raise, what they send again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import anyio
import pytest
from sdk_engine import TEXT, SdkEngine
from world import Backend, GatewayWorld, run_on_sockets, world

pytestmark = pytest.mark.skipif(find_spec("anthropic") is None, reason="needs the package anthropic, of the extra dev")
Ask = Callable[..., Awaitable[Any]]


class Clients:
    """The clients of one gateway: a call of each API, which returns the text of the answer."""

    def __init__(self, url: str, key: str = "k", **settings: Any) -> None:
        import anthropic  # these take seconds, which not every process that collects the tests should spend
        import openai

        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, **settings)
        self.anthropic = anthropic.AsyncAnthropic(base_url=url, api_key=key, **settings)

    async def chat(self, prompt: str, *, stream: bool = False, model: str = "m", **more: Any) -> str:
        asked: Any = {"model": model, "messages": [{"role": "user", "content": prompt}], **more}
        if not stream:
            return str((await self.openai.chat.completions.create(**asked)).choices[0].message.content)
        events = await self.openai.chat.completions.create(**asked, stream=True)
        return "".join([event.choices[0].delta.content or "" async for event in events if event.choices])

    async def responses(self, prompt: str, *, stream: bool = False, model: str = "m", **more: Any) -> str:
        asked: Any = {"model": model, "input": prompt, **more}
        if not stream:
            return str((await self.openai.responses.create(**asked)).output_text)
        text = ""
        async for event in await self.openai.responses.create(**asked, stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.failed":
                import openai

                raise openai.APIError(event.response.error.message, None, body=None)  # type: ignore[arg-type]
        return text

    async def messages(self, prompt: str, *, stream: bool = False, model: str = "m", **more: Any) -> str:
        asked: Any = {"model": model, "max_tokens": 50, "messages": [{"role": "user", "content": prompt}], **more}
        if not stream:
            answer = await self.anthropic.messages.create(**asked)
            return "".join(block.text for block in answer.content if block.type == "text")
        text = ""
        async for event in await self.anthropic.messages.create(**asked, stream=True):
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                text += event.delta.text
        return text

    async def helper_of_messages(self, prompt: str) -> str:
        """Return the text as `messages.stream()` collects it."""
        async with self.anthropic.messages.stream(
            model="m", max_tokens=50, messages=[{"role": "user", "content": prompt}]
        ) as events:
            return await events.get_final_text()

    @property
    def calls(self) -> dict[str, Ask]:
        return {"chat": self.chat, "responses": self.responses, "messages": self.messages}


@contextlib.asynccontextmanager
async def served(*, retries: int = 0, **settings: Any) -> AsyncIterator[tuple[GatewayWorld, SdkEngine, Clients]]:
    engine = SdkEngine()
    async with world(Backend(engine), api_key="k", **settings) as w:
        clients = Clients(w.url, max_retries=retries)
        yield w, engine, clients
        engine.gate.set()
        await clients.openai.close()
        await clients.anthropic.close()


@contextlib.asynccontextmanager
async def full(w: GatewayWorld, engine: SdkEngine, clients: Clients) -> AsyncIterator[None]:
    """Hold the only slot."""
    before = len(w.backends[0].received)
    holder = asyncio.create_task(clients.chat("slow"))
    await w.wait_until(lambda: len(w.backends[0].received) > before)
    yield
    engine.gate.set()
    assert await holder == TEXT


async def refused(call: Awaitable[Any]) -> Any:
    """Return the error with which a call ends."""
    import anthropic
    import openai

    with pytest.raises((openai.APIError, anthropic.APIError)) as raised:
        await call
    return raised.value


def test_whole_answers_and_streams() -> None:
    async def scenario() -> None:
        async with served() as (_, _, clients):
            for call in clients.calls.values():
                assert await call("hello") == TEXT
                assert await call("hello", stream=True) == TEXT
            assert await clients.helper_of_messages("hello") == TEXT
            assert [model.id async for model in clients.openai.models.list()] == ["m"]

    run_on_sockets(scenario())


def test_errors_have_the_classes_of_their_sdk() -> None:
    import anthropic
    import openai

    async def scenario() -> None:
        async with served(slots=1, admission={"classes": {"default": {"queue_size": 0}}}) as (w, engine, clients):
            strangers = Clients(w.url, key="wrong", max_retries=0)
            for name, call in clients.calls.items():
                sdk: Any = anthropic if name == "messages" else openai
                assert type(await refused(strangers.calls[name]("hello"))) is sdk.AuthenticationError
                assert type(await refused(call("hello", model="other"))) is sdk.NotFoundError
                assert type(await refused(call("hello", model=""))) is sdk.BadRequestError
                for stream in (False, True):
                    engine.gate.clear()
                    async with full(w, engine, clients):
                        error = await refused(call("hello", stream=stream))
                    assert type(error) is sdk.RateLimitError
                    assert 1 <= int(error.response.headers["retry-after"]) <= 59
            await strangers.openai.close()
            await strangers.anthropic.close()

    run_on_sockets(scenario())


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that the SDKs make before they send again, in seconds, which take no time here."""
    made: list[float] = []
    sleep = anyio.sleep

    async def note(delay: float) -> None:
        made.append(delay)
        await sleep(0)

    monkeypatch.setattr(anyio, "sleep", note)
    return made


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_a_refusal_is_sent_again_after_the_time_that_it_names(
    name: str, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with served(retries=2, slots=1, admission={"classes": {"default": {"queue_size": 0}}}) as (w, engine, clients):
            holder = asyncio.create_task(clients.chat("slow"))
            await w.wait_until(lambda: w.backends[0].received)
            sleep = anyio.sleep

            async def release_first(delay: float) -> None:
                await sleep(delay)
                engine.gate.set()
                await holder

            monkeypatch.setattr(anyio, "sleep", release_first)
            assert await clients.calls[name]("hello", stream=True) == TEXT
            assert len(waits) == 1
            assert waits[0].is_integer()
            assert 1 <= waits[0] <= 59

    run_on_sockets(scenario())


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_a_long_pause_of_an_engine_is_told_as_one_that_every_sdk_obeys(name: str, waits: list[float]) -> None:
    async def scenario() -> None:
        async with served(retries=1) as (_, _, clients):
            error = await refused(clients.calls[name]("busy"))
            assert error.status_code in (429, 503)
            assert waits == [59.0]

    run_on_sockets(scenario())


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_what_has_waited_its_time_in_the_queue_is_not_sent_again(name: str, waits: list[float]) -> None:
    async def scenario() -> None:
        late = {"classes": {"default": {"queue_timeout_secs": 0.02}}}
        async with served(retries=2, slots=1, admission=late) as (w, engine, clients), full(w, engine, clients):
            error = await refused(clients.calls[name]("hello"))
            assert (error.status_code, error.response.headers["x-should-retry"]) == (408, "false")
            assert not waits

    run_on_sockets(scenario())


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_a_request_of_a_released_program_is_not_sent_again(name: str, waits: list[float]) -> None:
    async def scenario() -> None:
        def of_program(program: str) -> dict[str, Any]:
            """A request of 7,000 tokens, at five bytes each."""
            return {"extra_headers": {"x-program-id": program}, "extra_body": {"x": "x" * 35_000}}

        async with served(retries=2, programs={"backend_capacity_tokens": 10_000}) as (w, engine, clients):
            programs: Any = w.gateway.programs
            holder = asyncio.create_task(clients.chat("slow", **of_program("holder")))
            await w.wait_until(lambda: w.backends[0].received)
            waiting = asyncio.create_task(clients.calls[name]("hello", **of_program("waiting")))
            await w.wait_until(lambda: programs.core.num_waiting == 1)
            await w.request("/programs/release", {"program_id": "waiting"}, authorization="Bearer k")
            assert (await refused(waiting)).status_code == 499
            assert not waits
            engine.gate.set()
            assert await holder == TEXT

    run_on_sockets(scenario())


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_a_stream_that_breaks_off_raises(name: str) -> None:
    import anthropic
    import openai

    async def scenario() -> None:
        async with served() as (_, _, clients):
            error = await refused(clients.calls[name]("cut", stream=True))
            assert isinstance(error, anthropic.APIError if name == "messages" else openai.APIError)
            assert "in the middle of its response" in str(error)
            if name == "messages":
                assert "in the middle of its response" in str(await refused(clients.helper_of_messages("cut")))

    run_on_sockets(scenario())


@pytest.mark.parametrize("name", ["chat", "responses", "messages"])
def test_a_stream_that_is_kept_alive_in_the_queue_is_whole_and_its_error_raises(name: str) -> None:
    async def scenario() -> None:
        async with served(slots=1, sse_keepalive_secs=0.02) as (w, engine, clients):
            for prompt in ("hello", "broken"):
                engine.gate.clear()
                async with full(w, engine, clients):
                    call = asyncio.create_task(clients.calls[name](prompt, stream=True))
                    await w.wait_until(lambda: w.state.waiting == 1)
                    await asyncio.sleep(0.1)  # several keep-alives, of which the SDK shows nothing
                    assert not call.done()
                    engine.gate.set()
                    if prompt == "hello":
                        assert await call == TEXT
                    else:
                        assert "out of memory" in str(await refused(call))

    run_on_sockets(scenario())
