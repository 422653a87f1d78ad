"""The log and the access log: what they say, in which format, and that nothing they say is a secret."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from world import ANSWER, STREAM_HEAD, Backend, BackendRequest, GatedAnswer, GatewayWorld, chunk, run, run_on_sockets, world

from maitred.files import append_file
from maitred.gateway.observe.logs import LogHandler, LogOutput
from maitred.wire.clock import Clock
from maitred.wire.machine import Machine

STREAM = {"model": "m", "stream": True}
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":21,"completion_tokens":2}}\n\n'


class Lines(LogOutput):
    """An output that keeps its lines."""

    def __init__(self, log_format: Any = "json") -> None:
        super().__init__(log_format)
        self.lines: list[bytes] = []

    def start(self) -> None: ...

    def write(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        self.lines.append(line[:-1])

    def of_path(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [msgspec.json.decode(line) for line in self.lines]
        return [line for line in found if line.get("path") == path]


async def stream(received: BackendRequest) -> None:
    await received.send(STREAM_HEAD + chunk(b'data: {"choices":[{}]}\n\n') + chunk(LAST + b"data: [DONE]\n\n") + chunk(b""))


def test_each_request_has_a_line() -> None:
    output = Lines()

    async def scenario() -> None:
        async with world(backend, access_log=True, log_output=output) as w:
            await w.request("/v1/chat/completions?key=secret", STREAM, x_request_id="r-1", x_smg_priority="bulk")
            await w.request(body={"model": "nobody"})
            await w.request("/v1/completions", method="GET")
            await w.request("/metrics", method="GET")

    backend = Backend(stream)
    run(scenario())
    served, unknown = output.of_path("/v1/chat/completions")
    assert all(line.pop("time").endswith("Z") and line.pop("client").startswith("127.0.0.1:") for line in (served, unknown))
    times = [served.pop(name) for name in ("sent_secs", "ttft_secs", "secs")]
    assert times == sorted(times)
    assert served.pop("bytes") == len(LAST) + 38
    assert served == {
        "level": "info",
        "logger": "maitred.access",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "class": "bulk",
        "model": "m",
        "tenant": "ip:127.0.0.1",
        "backend": backend.url,
        "attempts": 1,
        "prompt_tokens": 21,
        "output_tokens": 2,
        "outcome": "completed",
        "id": "r-1",
    }
    assert (unknown["status"], unknown["error"]) == (404, "model_not_found")
    assert [line["status"] for path in ("/v1/completions", "/metrics") for line in output.of_path(path)] == [405, 200]
    assert b"secret" not in b"".join(output.lines)


def test_what_did_not_end_well_has_a_line_as_well() -> None:
    output = Lines()

    async def breaks(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
        raise ConnectionError

    async def scenario() -> None:
        backend = Backend(gated)
        async with world(backend, slots=1, access_log=True, log_output=output, admission={"classes": {}}) as w:
            first, second = await w.start_request(), await w.start_request()
            await w.wait_until(lambda: w.state.in_flight and w.state.waiting and backend.received)
            second.disconnect()
            await w.wait_until(lambda: not w.state.waiting)
            gated.open.set()
            await first.read_response()
            backend.respond = breaks
            assert b"upstream_truncated" in (await w.request(body=STREAM))[2]

    gated = GatedAnswer()
    run(scenario())
    gone, answered, broken = output.of_path("/v1/chat/completions")
    assert (gone["status"], gone["error"], "backend" in gone) == (499, "client_gone", False)
    assert (answered["status"], answered["outcome"], "error" in answered) == (200, "completed", False)
    assert (broken["status"], broken["outcome"], broken["error"]) == (200, "broken_off", "broken_off")


def test_a_line_of_text_is_one_line_of_visible_ascii() -> None:
    output = Lines("text")

    async def scenario() -> None:
        async with world(Backend(models=("m\x1b[31m é",)), access_log=True, log_output=output) as w:
            assert (await w.request(body={"model": "m\x1b[31m é"}, x_request_id='a"b'))[0] == 200

    run(scenario())
    (line,) = (line for line in output.lines if b"/v1/chat" in line)
    text = line.decode("ascii")
    assert text.isprintable()
    assert " access client=127.0.0.1:" in text
    assert r' model="m\u001b[31m \u00e9" ' in text
    assert text.endswith(r' id="a\"b"')


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_line_has_what_cannot_be_printed(log_format: Any) -> None:
    """In names that a client or a backend chooses: a model, an id, a path, a program, a header of the tenant."""
    harmful = "m\u2028\u202e\x85\x9b2J\x7f\u200b"
    output = Lines(log_format)
    logger = logging.getLogger("maitred")
    handler, level = LogHandler(output, Clock()), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)

    async def scenario() -> None:
        settings = {"access_log": True, "log_output": output, "trust_tenant_header": True}
        async with world(Backend(models=(harmful,)), **settings) as w:
            raw = "m\u202e\x85"
            assert (await w.request(body={"model": harmful}, x_request_id=raw, x_smg_tenant_id=raw))[0] == 200
            assert (await w.request(body={"model": harmful + "?"}))[0] == 404
            await w.request("/%E2%80%AE%C2%85", method="GET")

    try:
        run(scenario())
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert len(output.lines) >= 5
    assert [line for line in output.lines if not line.decode().isprintable()] == []
    if log_format == "json":
        assert output.of_path("/v1/chat/completions")[0]["model"] == harmful


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_of_one_of_several_processes_says_once_whose_it_is(log_format: Any) -> None:
    output = Lines(log_format)
    logger = logging.Logger("maitred.test")
    logger.addHandler(LogHandler(output, Clock(), "worker 2"))
    for message in ("shutting down", "worker 2 is linked"):
        logger.warning(message)
    first, second = (str(line, "utf-8") for line in output.lines)
    assert "worker 2: shutting down" in first
    assert "worker 2 is linked" in second
    assert second.count("worker 2") == 1


def test_a_traceback_has_nothing_else_either() -> None:
    output = Lines("text")
    logger = logging.Logger("maitred.test")
    logger.addHandler(LogHandler(output, Clock()))
    try:
        raise ValueError("\x1b[2J\u202e")
    except ValueError:
        logger.exception("it failed")
    (lines,) = output.lines
    assert all(line.isprintable() for line in lines.decode().split("\n"))


def test_a_line_has_the_time_of_the_wall_clock() -> None:
    """Also after that clock was set."""
    output, day = Lines(), 1_800_000_000
    shown = day
    machine = Machine(Clock(time_ns=lambda: shown * 10**9))

    async def scenario() -> None:
        nonlocal shown
        async with world(access_log=True, log_output=output, machine=machine) as w:
            for shown in (day, day + 86_400, day - 86_400):  # noqa: B007  (the clock reads it)
                assert (await w.request())[0] == 200

    run_on_sockets(scenario())
    times = [line["time"] for line in output.of_path("/v1/chat/completions")]
    assert times == ["2027-01-15T08:00:00.000Z", "2027-01-16T08:00:00.000Z", "2027-01-14T08:00:00.000Z"]


@pytest.fixture
def shown() -> Iterator[Lines]:
    """The lines of the log, with everything that maitred says."""
    output, logger = Lines("text"), logging.getLogger("maitred")
    handler, level = LogHandler(output, Clock()), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield output
    logger.removeHandler(handler)
    logger.setLevel(level)


def said(output: Lines) -> list[str]:
    """The messages, without their times."""
    return [line.decode().split(" ", 1)[1] for line in output.lines]


def test_a_life_in_the_log(shown: Lines) -> None:
    async def drain(w: GatewayWorld, what: str) -> None:
        body = msgspec.json.encode({"backend": w.backends[0].url})
        assert (await w.request(f"/admin/{what}", body))[0] == 200

    async def scenario() -> None:
        async with world(backend) as w:
            held = await w.start_request()
            await w.wait_until(lambda: backend.received)
            await drain(w, "drain")
            gated.open.set()
            assert (await held.read_response())[2] == ANSWER
            await drain(w, "undrain")
            await backend.stop()
            await w.wait_until(lambda: not w.state.ready)
            await backend.start()
            await w.wait_until(lambda: w.state.ready)

    gated = GatedAnswer()
    backend = Backend(gated)
    run(scenario())
    lines, url = said(shown), backend.url
    down = next(line for line in lines if "is down" in line)
    assert down.startswith(f"WARNING backend {url} is down: ")
    assert "refused" in down
    expected = [
        f"INFO backend {url} is up, serving m",
        "INFO ready: a backend is up",
        f"WARNING backend {url} is being drained; requests that it has: 1",
        f"WARNING backend {url} is drained: it has no request any more",
        f"WARNING backend {url} is in use again",
        down,
        "ERROR not ready: no backend is up",
        f"WARNING backend {url} is up, serving m",
        "INFO shutting down: requests in flight: 0; they may take 1 s",
        "INFO shut down",
    ]
    assert [line for line in lines if line in expected] == [*expected[:8], expected[1], *expected[8:]]


def test_no_secret_is_ever_said(shown: Lines) -> None:
    """Keys of clients and of the gateway, in headers, in the query, and where they are wrong."""
    secrets = ("k-shared-1", "k-tenant-2", "k-engine-3", "k-wrong-4", "k-query-5")

    async def fails(received: BackendRequest) -> None:
        raise ConnectionError

    async def scenario() -> None:
        keys = {"api_key": secrets[0], "tenant_api_keys": {"acme": secrets[1]}, "upstream_api_key": secrets[2]}
        backend = Backend()
        async with world(backend, access_log=True, log_output=shown, **keys) as w:
            for key in (secrets[0], secrets[1], secrets[3]):
                await w.request(f"/v1/chat/completions?key={secrets[4]}", authorization=f"Bearer {key}")
                await w.request("/maitred/state", method="GET", authorization=f"Bearer {key}")
                await w.request("/admin/reload", authorization=f"Bearer {key}")
            backend.respond = fails
            await w.request(authorization=f"Bearer {secrets[0]}")

    run(scenario())
    assert len(shown.lines) > 10
    text = b"".join(shown.lines).decode()
    assert [secret for secret in secrets if secret in text] == []


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_message_is_one_line_and_its_traceback_comes_with_it(log_format: Any) -> None:
    output = Lines(log_format)
    logger = logging.Logger("maitred.test")
    logger.addHandler(LogHandler(output, Clock()))
    logger.warning("two\nlines, %s", "\x1b[1m")
    try:
        raise ValueError("seven")
    except ValueError:
        logger.exception("it failed")
    first, second = output.lines
    if log_format == "text":
        assert first.endswith(rb"Z WARNING two\nlines, \x1b[1m")
        assert second.split(b"\n")[0].endswith(b"Z ERROR it failed")
        assert second.endswith(b"ValueError: seven")
        return
    told = msgspec.json.decode(first)
    assert (told["level"], told["logger"], told["message"]) == ("warning", "maitred.test", "two\nlines, \x1b[1m")
    assert msgspec.json.decode(second)["exception"].endswith("ValueError: seven")


def test_an_output_that_nothing_reads_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is full; lines wait in memory up to the limit, and are dropped from there on."""
    monkeypatch.setattr(append_file, "MAX_PENDING_BYTES", 3_000)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writing, True)

    async def scenario() -> int:
        output = LogOutput("json", writing)
        async with world(access_log=True, log_output=output) as w:
            for _ in range(40):
                assert (await w.request())[0] == 200
            dropped = w.state.dropped_lines["log"]
            _drain(reading)
            return dropped

    assert run_on_sockets(scenario()) > 0
    os.close(reading)
    os.close(writing)


def _drain(descriptor: int) -> None:
    """Read all that is in a pipe, and let its writer go on."""
    os.set_blocking(descriptor, False)
    asyncio.get_running_loop().add_reader(descriptor, lambda: os.read(descriptor, 1 << 20))
