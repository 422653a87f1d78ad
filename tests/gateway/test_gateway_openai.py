"""OpenAI clients work unchanged: the real `openai` package against `maitred serve` in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from world import STREAM_HEAD, Backend, BackendRequest, apart, chunk, run_on_sockets, whole

from maitred.cli import main
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway
from maitred.wire.server import running_server

if TYPE_CHECKING:
    import openai
    from openai import OpenAI

WORDS = ["Hello", ",", " world", "!"]


def completion(content: str, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **more}


def part(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")


async def engine(received: BackendRequest) -> None:
    asked = msgspec.json.decode(received.body)
    if b"/embeddings" in received.head:
        item = {"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}
        answer = {"object": "list", "data": [item], "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    elif b"/v1/completions" in received.head:
        choice = {"index": 0, "text": "Hello", "finish_reason": "stop", "logprobs": None}
        answer = {"id": "t", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    elif asked.get("stream"):
        await received.send(STREAM_HEAD)
        for word in WORDS:
            await received.send(part(word))
            await apart()
        if asked.get("user") == "unlucky":
            raise ConnectionError
        await received.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return
    elif asked.get("temperature") == 9:
        refused = {"error": {"message": "too hot", "type": "BadRequestError", "param": "temperature", "code": 400}}
        await received.send(whole(msgspec.json.encode(refused), b"400 Bad Request"))
        return
    else:
        answer = completion("".join(WORDS), usage={"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5})
    await received.send(whole(msgspec.json.encode(answer)))


@contextlib.contextmanager
def backend() -> Iterator[Backend]:
    """Run a backend in an event loop of its own, so that the blocking client can be tested."""
    made, up, down = Backend(engine), threading.Event(), asyncio.Event()
    loop: asyncio.AbstractEventLoop | None = None

    async def live() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        await made.start()
        up.set()
        await down.wait()
        await made.stop()

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    up.wait(30)
    try:
        yield made
    finally:
        assert loop is not None
        loop.call_soon_threadsafe(down.set)
        thread.join(5)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    flags = ("--priority-scheduler-enabled", "--priority-scheduler-default-max-class", "interactive")
    # The backend tells nothing from which slots could be learned, and a guess would be warned of.
    with backend() as engine, gateway("--backend", engine.url, "--slots-per-backend", "64", *flags) as served:
        wait_until_ready(served)
        yield served


@contextlib.contextmanager
def gateway(*flags: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run `maitred serve` on a free port; at the end check that it stops with exit code 0 and no further output, but
    that it was given no processor for seconds."""
    command = [
        sys.executable,
        "-c",
        "from maitred.cli import main; main()",
        "serve",
        "--port",
        "0",
        "--log-level",
        "warning",
        *flags,
    ]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    try:
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")  # what backends say at first comes before it
        line = next(line for line in lines if line.startswith("maitred: gateway on http://127.0.0.1:"))
        yield line.split(" ")[3].rstrip(",")
        running.send_signal(signal.SIGTERM)
        said = running.communicate(timeout=10)[1].splitlines()
        assert [line for line in said if "the process stood still" not in line] == []
        assert running.returncode == 0
    finally:
        running.kill()
        running.communicate()


def wait_until_ready(url: str) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready"):
            return
        threading.Event().wait(0.02)
    raise AssertionError("the gateway did not get ready")


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    from openai import OpenAI  # takes seconds, which not every process that collects the tests should spend

    with OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as made:
        yield made


def chat(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": "m", "messages": [{"role": "user", "content": "hi"}], **more})


def test_chat(client: OpenAI) -> None:
    answer = chat(client, extra_headers={"x-smg-priority": "interactive"})
    assert answer.choices[0].message.content == "Hello, world!"
    assert answer.usage.total_tokens == 5
    assert answer._request_id.startswith("maitred-")


def test_chat_streamed(client: OpenAI) -> None:
    assert [event.choices[0].delta.content for event in chat(client, stream=True)] == WORDS


def test_completions(client: OpenAI) -> None:
    assert client.completions.create(model="m", prompt="hi").choices[0].text == "Hello"


def test_embeddings(client: OpenAI) -> None:
    made = client.embeddings.create(model="m", input="hi", encoding_format="float")
    assert made.data[0].embedding == [0.5, -0.5]


def test_models(client: OpenAI) -> None:
    import openai

    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").id == "m"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("x")


def test_an_unknown_model(client: OpenAI) -> None:
    import openai

    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, model="x")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_what_the_backend_refuses(client: OpenAI) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="too hot"):
        chat(client, temperature=9)


def test_a_stream_that_breaks_off_is_an_error_for_the_client(client: OpenAI) -> None:
    import openai

    words: list[str] = []
    with pytest.raises(openai.APIError, match="in the middle of its response"):
        words.extend(event.choices[0].delta.content for event in chat(client, stream=True, user="unlucky"))
    assert words == WORDS


def test_the_asynchronous_client(url: str) -> None:
    from openai import AsyncOpenAI

    async def scenario() -> tuple[list[str], str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "hi"}]
            many = [client.chat.completions.create(model="m", messages=messages) for _ in range(20)]
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            words = [event.choices[0].delta.content async for event in stream]
            answers = {answer.choices[0].message.content for answer in await asyncio.gather(*many)}
            assert len(answers) == 1
            return words, answers.pop()

    assert asyncio.run(scenario()) == (WORDS, "Hello, world!")


def test_nothing_has_leaked(url: str) -> None:
    """Runs after all tests above: after cut and refused requests as well, no slot is in use."""
    state = msgspec.json.decode(urllib.request.urlopen(f"{url}/maitred/state").read())
    assert state["in_flight"] == state["waiting"] == 0
    assert state["classes"]["interactive"]["completed"] == 1
    assert state["classes"]["default"]["failed"] == 1
    assert state["classes"]["default"]["completed"] == 25


def test_not_ready_is_a_server_error_and_the_gateway_waits_for_its_backends() -> None:
    import openai

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def scenario() -> openai.InternalServerError:
        unready = Gateway(GatewayConfig(backends=(f"http://127.0.0.1:{port}",)))
        async with (
            running_server(unready) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
        ):
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            return caught.value

    error = run_on_sockets(scenario())
    assert error.code == "no_healthy_backend"
    assert error.response.headers["retry-after"] == "2"


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="reads the limits of another process")
def test_it_takes_all_the_descriptors_that_it_may_have() -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    command = [sys.executable, "-c", "from maitred.cli import main; main()", "serve", "--port", "0", "--backend", "http://a:1"]
    fewer = ["prlimit", f"--nofile=256:{hard}", *command]
    with subprocess.Popen(fewer, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        running.stderr.readline()
        limits = Path(f"/proc/{running.pid}/limits").read_text()
        running.terminate()
    assert [line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files")] == [[str(hard)] * 2]


def test_flags_files_and_environment(tmp_path: Any) -> None:
    """An environment variable beats the file, and a flag does as well."""
    file = tmp_path / "maitred.yaml"
    file.write_text("gateway: {backends: ['http://127.0.0.1:9'], slots_per_backend: 5, max_attempts: 5}\n")
    flags = ("--config", str(file), "--max-attempts", "9")
    with gateway(*flags, env={"MAITRED_GATEWAY__SLOTS_PER_BACKEND": "7"}) as url:
        in_force = msgspec.json.decode(urllib.request.urlopen(f"{url}/admin/config").read())["gateway"]
    assert (in_force["slots_per_backend"], in_force["max_attempts"]) == (7, 9)
    assert in_force["backends"] == ["http://127.0.0.1:9"]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "--backend: no backend is named"),
        (["--backend", "localhost:9"], "--backend: gateway.backends: 'localhost:9' is no http or https URL"),
        (["--backend", "http://a:1", "--router", "least-loded"], "did you mean 'least-loaded'?"),
        (["--backend", "http://a:1", "--port", "70000"], "port"),
        (["--backend", "http://a:1", "--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--backend", "http://a:1", "--decision-log", "/nowhere/log"], "cannot write /nowhere/log"),
        (["--backend", "http://a:1", "--decision-log", ""], "gateway.decision_log: '' names no file"),
        (
            ["--backend", "http://a:1", "--admission", "prio", "--strict-config"],
            "--admission: admission.mode: 'prio' cannot be",
        ),
        (["--backend", "http://a:1", "--admission", "off", "--priority-scheduler-enabled"], "contradicts --admission off"),
        (["--backend", "http://a:1", "--tenant-api-key", "acme"], "--tenant-api-key: this is no ID:KEY"),
        (
            ["--backend", "http://a:1", "--tenant-api-key", "a:k", "--tenant-api-key", "a:k"],
            "tenant_api_keys.a is the same key",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(flags: list[str], complaint: str, capsys: Any, monkeypatch: Any) -> None:
    assert complaint in refused(flags, capsys, monkeypatch)


def test_a_port_in_use_is_said_in_one_line(capsys: Any, monkeypatch: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(["--backend", "http://a:1", "--port", str(port)], capsys, monkeypatch)
    assert f"port {port} is in use" in said


def refused(flags: list[str], capsys: Any, monkeypatch: Any) -> str:
    """Return what `maitred serve` writes to stderr when it does not start."""
    monkeypatch.setattr(sys, "argv", ["maitred", "serve", *flags])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said: str = capsys.readouterr().err
    assert said.startswith("maitred: error: ")
    assert said.count("\n") == 1
    return said
