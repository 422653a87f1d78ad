"""The endpoint picker, asked by a test in the place of Envoy."""

import asyncio
import csv
import gzip

import msgspec
import pytest

pytest.importorskip("grpc", reason="a client of grpcio plays Envoy")
pytest.importorskip("hpack", reason="needs maitred[envoy]")

from envoy_world import BUFFERED, FULL_DUPLEX, head, running_picker, until
from google.protobuf.struct_pb2 import Struct
from scripted_source import SCRIPT
from world import CHAT, Backend, admission_config, programs_config, run_on_sockets

from maitred.gateway.envoy.ext_proc_schema import proto
from maitred.gateway.envoy.grpc_services import EXT_PROC_SERVICE

BODY = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
ENDPOINT = "x-gateway-destination-endpoint"
SERVING, NOT_SERVING = 1, 2
STREAMED = 1
MODES = proto.ProtocolConfiguration(request_body_mode=STREAMED)
PREEMPTING = admission_config(classes={"system": {"can_preempt": True}}, on_preempt="retry")


def headers_of(common):
    return {option.header.key: option.header.raw_value.decode() for option in common.header_mutation.set_headers}


@pytest.mark.parametrize("body_mode", [BUFFERED, FULL_DUPLEX])
def test_the_pick_is_a_header_and_metadata(body_mode):
    async def scenario():
        async with running_picker(backend := Backend()) as world:
            stream = world.stream(body_mode)
            await stream.request(BODY, x_smg_priority="interactive")
            said = await stream.read()
            common = (said.request_body if body_mode == BUFFERED else said.request_headers).response
            endpoint = backend.url.removeprefix("http://")
            assert headers_of(common)[ENDPOINT] == endpoint
            assert said.dynamic_metadata["envoy.lb"][ENDPOINT] == endpoint
            assert common.clear_route_cache
            assert list(common.header_mutation.remove_headers) == ["x-smg-priority"]
            if body_mode == FULL_DUPLEX:
                streamed = (await stream.read()).request_body.response.body_mutation.streamed_response
                assert (streamed.body, streamed.end_of_stream) == (BODY, True)
            assert world.slots_in_use == 1
            await stream.response_headers()
            assert (await stream.read()).HasField("response_headers")
            assert world.slots_in_use == 1
            await stream.end()
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


@pytest.mark.parametrize("body_mode", [BUFFERED, FULL_DUPLEX])
def test_a_compressed_body_goes_on_as_it_reads_and_its_head_says_so(body_mode):
    async def scenario():
        async with running_picker(Backend()) as world:
            stream = world.stream(body_mode)
            packed = gzip.compress(BODY)
            await stream.request(packed, content_encoding="gzip", content_length=str(len(packed)))
            said = await stream.read()
            if body_mode == BUFFERED:
                common = said.request_body.response
                assert common.body_mutation.body == BODY
                assert headers_of(common)["content-length"] == str(len(BODY))
            else:
                common = said.request_headers.response
                assert (await stream.read()).request_body.response.body_mutation.streamed_response.body == BODY
            assert "content-encoding" in common.header_mutation.remove_headers
            stream.reset()
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


def test_a_request_waits_for_the_slot_of_another_one():
    async def scenario():
        async with running_picker(Backend()) as world:
            first, second = world.stream(), world.stream()
            await first.request(BODY)
            await first.read()
            await second.request(BODY)
            await until(lambda: world.num_waiting == 1)
            await first.response_headers()
            await first.read()
            await first.end()
            assert headers_of((await second.read()).request_body.response)[ENDPOINT]
            second.reset()
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


def test_a_victim_gets_503_before_its_response_headers():
    async def scenario():
        async with running_picker(Backend(), admission=PREEMPTING) as world:
            bulk, urgent = world.stream(), world.stream()
            await bulk.request(BODY, x_smg_priority="bulk")
            await bulk.read()
            await urgent.request(BODY, x_smg_priority="system")
            refused = (await bulk.read()).immediate_response
            assert refused.status.code == 503
            named = {option.header.key: option.header.raw_value for option in refused.headers.set_headers}
            assert named["x-smg-preempted"] == b"true"
            assert named["retry-after"] == b"1"
            assert headers_of((await urgent.read()).request_body.response)[ENDPOINT]
            await urgent.end()
            await bulk.end()
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


def test_an_objective_says_the_class_and_is_not_sent_to_the_backend():
    async def scenario():
        rules = admission_config(classes={"system": {"can_preempt": True}}, objectives={"night": "bulk", "chat": "system"})
        async with running_picker(Backend(), admission=rules) as world:
            night, chat = world.stream(), world.stream()
            await night.request(BODY, x_gateway_inference_objective="night")
            await night.read()
            await chat.request(BODY, x_gateway_inference_objective="chat")
            assert (await night.read()).immediate_response.status.code == 503
            picked = (await chat.read()).request_body.response
            assert "x-gateway-inference-objective" in picked.header_mutation.remove_headers
            await chat.end()
            await night.end()

    run_on_sockets(scenario())


def test_a_response_that_has_begun_is_no_victim():
    async def scenario():
        async with running_picker(Backend(), admission=PREEMPTING) as world:
            bulk, urgent = world.stream(), world.stream()
            await bulk.request(BODY, x_smg_priority="bulk")
            await bulk.read()
            await bulk.response_headers()
            await bulk.read()
            await urgent.request(BODY, x_smg_priority="system")
            await until(lambda: world.num_waiting == 1)
            await bulk.end()
            assert headers_of((await urgent.read()).request_body.response)[ENDPOINT]
            await urgent.end()

    run_on_sockets(scenario())


@pytest.mark.parametrize("phase", ["head", "body", "queue", "picked", "answered"])
def test_a_stream_that_is_reset_leaves_nothing(phase):
    async def scenario():
        async with running_picker(Backend()) as world:
            stream, other = world.stream(), world.stream()
            if phase == "queue":
                await other.request(BODY)
                await other.read()
            if phase == "head":
                stream.call.cancel()
            elif phase == "body":
                stream.body_mode = FULL_DUPLEX
                await stream.request(BODY[:5])
            else:
                await stream.request(BODY)
            if phase == "queue":
                await until(lambda: world.num_waiting == 1)
            if phase in ("picked", "answered"):
                await stream.read()
            if phase == "answered":
                await stream.response_headers()
                await stream.read()
            stream.reset()
            other.reset()
            await until(lambda: not (world.slots_in_use or world.num_waiting or world.picker.picker.num_streams))

    run_on_sockets(scenario())


def test_only_endpoints_of_the_subset_are_picked():
    async def scenario():
        async with running_picker(Backend(), Backend(), slots=4) as world:
            for backend in world.backends:
                endpoint = backend.url.removeprefix("http://")
                stream = world.stream()
                await stream.request(BODY, subset(f"10.9.9.9:1, {endpoint}"))
                assert headers_of((await stream.read()).request_body.response)[ENDPOINT] == endpoint
                stream.reset()
            stream = world.stream()
            await stream.request(BODY, subset("10.9.9.9:1"))
            assert (await stream.read()).immediate_response.status.code == 503

    run_on_sockets(scenario())


def subset(endpoints):
    hint = Struct()
    hint.update({f"{ENDPOINT}-subset": endpoints})
    return proto.Metadata(filter_metadata={"envoy.lb.subset_hint": hint})


def test_refusals_are_those_of_a_gateway():
    async def scenario():
        rules = admission_config(classes={"default": {"queue_size": 0}})
        async with running_picker(Backend(), admission=rules) as world:
            holder = world.stream()
            await holder.request(BODY)
            await holder.read()
            codes = {}
            for body, path in ((BODY, CHAT), (b"{", CHAT), (b'{"model":"none"}', CHAT), (BODY, "/nothing")):
                stream = world.stream()
                await stream.request(body, path=path)
                refused = (await stream.read()).immediate_response
                codes[body, path] = refused.status.code
                assert b"error" in refused.body
            assert list(codes.values()) == [429, 400, 404, 404]
            holder.reset()

    run_on_sockets(scenario())


def test_health_says_who_may_be_asked():
    async def scenario():
        async with running_picker(backend := Backend()) as world:
            assert [await world.health(name) for name in ("", "readiness", "liveness", EXT_PROC_SERVICE)] == [SERVING] * 4
            await backend.stop()
            await until(lambda: not world.picker.is_ready())
            assert await world.health(EXT_PROC_SERVICE) == NOT_SERVING
            assert await world.health("liveness") == SERVING

    run_on_sockets(scenario())


def test_a_backend_that_comes_later_is_picked_too():
    async def scenario():
        script, later = SCRIPT.anew(), Backend(models=("later",))
        await later.start()
        script.say([])
        discovery = {"discover": ("scripted_source:Scripted",), "health_interval_secs": 1.0}
        async with running_picker(Backend(), **discovery) as world:
            script.say([later.url])
            await until(lambda: any(backend.models.keys() == {"later"} for backend in world.picker.picker.fleet.backends))
            stream = world.stream()
            await stream.request(b'{"model": "later"}')
            assert headers_of((await stream.read()).request_body.response)[ENDPOINT] == later.url.removeprefix("http://")
            await stream.response_headers()
            await stream.read()
            await stream.end()
        await later.stop()

    run_on_sockets(scenario())


def test_a_backend_that_fails_is_held_to_account():
    async def scenario():
        async with running_picker(Backend(), Backend(), slots=4) as world:
            stream = world.stream()
            await stream.request(BODY)
            picked, _, other = headers_of((await stream.read()).request_body.response)[ENDPOINT].partition(",")
            assert {picked, other} == {backend.url.removeprefix("http://") for backend in world.backends}
            await stream.response_headers(503, of_backend=False)
            await stream.read()
            await stream.end()
            await asyncio.sleep(0)
            failed = next(each for each in world.picker.scheduler.fleet.backends if each.url.endswith(picked))
            await until(lambda: failed.circuit.consecutive_failures == 1)

    run_on_sockets(scenario())


def test_streamed_responses_come_back_behind_their_headers():
    """Envoy sends the body of a response without waiting for the answer to its headers, in FULL_DUPLEX_STREAMED."""

    async def scenario():
        async with running_picker(Backend()) as world:
            stream = world.stream(FULL_DUPLEX)
            stream.response_mode = FULL_DUPLEX
            await stream.request(BODY)
            await stream.read()
            await stream.read()
            await stream.response_headers()
            pieces = [b"data: 1", b"x" * 150_000, b""]
            for piece in pieces:
                await stream.send(response_body=proto.HttpBody(body=piece, end_of_stream=not piece))
            assert (await stream.read()).HasField("response_headers")
            body, ends = b"", False
            while not ends:
                streamed = (await stream.read()).response_body.response.body_mutation.streamed_response
                body, ends = body + streamed.body, streamed.end_of_stream
            assert body == b"".join(pieces)
            await stream.end()
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


def test_other_modes_of_bodies_are_refused_with_words():
    async def scenario():
        async with running_picker(Backend()) as world:
            stream = world.stream(STREAMED)
            await stream.send(request_headers=head({":method": "POST", ":path": CHAT}), protocol_config=MODES)
            refused = (await stream.read()).immediate_response
            assert (refused.status.code, b"ext_proc_mode" in refused.body) == (500, True)

    run_on_sockets(scenario())


def test_a_stream_whose_events_nobody_sees_does_not_count_as_silent():
    async def scenario():
        async with running_picker(Backend()) as world:
            stream = world.stream()
            await stream.request(b'{"model":"m","stream":true}')
            assert not (await stream.read()).request_body.response.HasField("body_mutation")
            (sent,) = world.picker.scheduler.fleet.backends[0].requests
            assert not sent.request.stream
            stream.reset()
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


def test_a_program_is_named_to_the_scheduler_and_not_to_the_backend():
    async def scenario():
        programs = programs_config({"backend_capacity_tokens": 1_000})
        async with running_picker(Backend(), programs=programs) as world:
            stream = world.stream()
            await stream.request(b'{"model":"m","program_id":"p","stream":true}')
            common = (await stream.read()).request_body.response
            assert common.body_mutation.body == b'{"model":"m","stream":true}'
            assert headers_of(common)["content-length"] == "27"
            assert [each.key.name for each in world.picker.programs.core.programs] == ["p"]
            await stream.response_headers()
            await stream.read()
            await stream.end()
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_an_answer_to_a_program_came_to_is_read_in_its_body(is_cut):
    async def scenario():
        async with running_picker(Backend(), programs=programs_config({"backend_capacity_tokens": 1_000})) as world:
            stream = world.stream()
            await stream.request(b'{"model":"m","program_id":"p","stream":true}')
            await stream.read()
            await stream.response_headers(content_type="text/event-stream")
            assert (await stream.read()).mode_override.response_body_mode == STREAMED
            usage = b'"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}'
            last = b'data: {"choices":[{"finish_reason":"stop"}],%s}\n\n' % usage
            events = [b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', last, b"data: [DONE]\n\n"]
            for event in events[: 1 if is_cut else None]:
                await stream.send(response_body=proto.HttpBody(body=event, end_of_stream=event is events[-1]))
                said = (await stream.read()).response_body
                assert not said.response.HasField("body_mutation")
            await stream.end()
            await until(lambda: not world.slots_in_use)
            (program,) = world.picker.programs.core.programs
            assert (program.tokens == 10) is not is_cut
            responses = world.picker.request_metrics.responses
            assert responses == ({(200, "broken_off"): 1} if is_cut else {(200, ""): 1})

    run_on_sockets(scenario())


def test_bodies_of_answers_are_not_asked_for_where_nobody_counts_tokens():
    async def scenario():
        async with running_picker(Backend()) as world:
            stream = world.stream()
            await stream.request(BODY)
            await stream.read()
            await stream.response_headers(content_type="text/event-stream")
            assert not (await stream.read()).HasField("mode_override")
            await stream.end()

    run_on_sockets(scenario())


def recorded(path):
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_an_answer_that_envoy_sends_here_is_recorded_whole(tmp_path):
    """Nobody can hide a usage from a client that has not asked for it, so it is not asked for."""

    async def scenario():
        async with running_picker(backend := Backend(), record=str(tmp_path / "r.csv")) as world:
            stream = world.stream()
            await stream.request(b'{"model":"m","stream":true,"max_tokens":9}', x_session_id="s1", x_smg_priority="bulk")
            assert not (await stream.read()).request_body.response.HasField("body_mutation")
            await stream.response_headers(content_type="text/event-stream")
            assert (await stream.read()).mode_override.response_body_mode == STREAMED
            for text in ("a", "b", "c"):
                event = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode()
                await stream.send(response_body=proto.HttpBody(body=event))
                await stream.read()
            await stream.send(response_body=proto.HttpBody(body=b"data: [DONE]\n\n", end_of_stream=True))
            await stream.read()
            await stream.end()
            await until(lambda: not world.slots_in_use)
            return backend.url

    url = run_on_sockets(scenario())
    (row,) = recorded(tmp_path / "r.csv")
    names = ("class", "program", "output_tokens", "max_output_tokens", "stream", "tokens_from", "outcome", "backend")
    assert [row[name] for name in names] == ["bulk", "s1", "3", "9", "true", "estimate", "completed", url]
    assert 0 < float(row["ttft_secs"]) <= float(row["e2e_secs"])


def test_of_an_answer_that_passes_by_the_row_says_neither_length_nor_first_token(tmp_path):
    async def scenario():
        async with running_picker(Backend(), record=str(tmp_path / "r.csv")) as world:
            stream = world.stream(FULL_DUPLEX)
            await stream.request(BODY)
            await stream.read()
            await stream.read()
            await stream.response_headers(content_type="text/event-stream")
            await stream.read()
            await stream.end()
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())
    (row,) = recorded(tmp_path / "r.csv")
    assert (row["outcome"], row["output_tokens"], row["ttft_secs"], row["tokens_from"]) == ("completed", "", "", "estimate")
    assert float(row["e2e_secs"]) > 0
