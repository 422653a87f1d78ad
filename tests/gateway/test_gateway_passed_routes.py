"""Routes that the gateway does not know, forms, and SMG's routes, over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
import pytest
from world import ANSWER, Backend, BackendRequest, GatedAnswer, run, whole, world

from maitred.gateway.config import GatewayConfig
from maitred.gateway.intake.passed_routes import find_form_field
from maitred.routing import RoutingConfig

FORM = (
    b'--xx\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\nRIFF\r\n\r\n--x\r\n'
    b'--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--xx--\r\n'
)
FORM_TYPE = "multipart/form-data; boundary=xx"
KEYS = {"api_key": "sha256:" + hashlib.sha256(b"root").hexdigest(), "tenant_api_keys": {"acme": "k"}}


def as_one(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def code_of(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    return answer[0], msgspec.json.decode(answer[2])["error"]["code"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "slots"),
    [
        ("/v1/video", {"model": "m"}, {}, 1),
        ("/score", {"model": "m", "text_1": "a"}, {}, 1),
        ("/v1/score", {"text_1": "a"}, {}, 1),
        ("/classify", {"model": "m"}, {}, 1),
        ("/pooling", {"model": "m"}, {}, 1),
        ("/v2/rerank", {"model": "m"}, {}, 1),
        ("/v1/audio/speech", {"model": "m", "input": "hi"}, {}, 1),
        ("/v1/audio/transcriptions", FORM, {"content_type": FORM_TYPE}, 1),
        ("/v1/audio/translations", FORM, {"content_type": FORM_TYPE}, 1),
        ("/v1/messages/count_tokens", {"model": "m"}, {}, 0),
        ("/sleep", {"level": 1}, {}, 0),
    ],
)
def test_what_a_request_takes_and_that_it_arrives_unchanged(path: str, body: Any, headers: dict[str, str], slots: int) -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated)) as w:
            waiting = asyncio.create_task(w.request(path + "?a=1", body, **headers))
            await w.wait_until(lambda: w.backends[0].received)
            assert w.state.in_flight == slots
            gated.open.set()
            assert (await waiting)[::2] == (200, ANSWER)
            received = w.backends[0].received[0]
            assert received.head.startswith(f"POST {path}?a=1 HTTP/1.1".encode())
            assert received.body == (body if isinstance(body, bytes) else msgspec.json.encode(body))

    run(scenario())


def test_a_post_that_names_a_model_waits_in_its_class() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), slots=1) as w:
            held = await w.start_request()
            await w.wait_until(lambda: w.state.in_flight)
            waiting = asyncio.create_task(w.request("/v1/video", {"model": "m"}, x_smg_priority="bulk"))
            await w.wait_until(lambda: w.state.waiting)
            assert w.state.classes["bulk"].arrived == 1
            gated.open.set()
            assert (await waiting)[0] == 200
            await held.read_response()

    run(scenario())


def test_a_model_that_is_not_there_is_404() -> None:
    async def scenario() -> None:
        async with world() as w:
            assert code_of(await w.request("/v1/video", {"model": "other"})) == (404, "model_not_found")

    run(scenario())


class Store:
    """An engine that knows some stored responses."""

    def __init__(self, *ids: str) -> None:
        self.paths = {f"/v1/responses/{name}" for name in ids}

    async def __call__(self, received: BackendRequest) -> None:
        path = received.head.split(b" ")[1].decode()
        known = path.removesuffix("/cancel") in self.paths
        await received.send(whole(path.encode()) if known else whole(b'{"error":"unknown"}', b"404 Not Found"))


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_stored_response_is_found_where_it_is(method: str) -> None:
    async def scenario() -> None:
        backends = Backend(Store("a")), Backend(Store("b")), Backend(Store("c"))
        async with world(*backends, routing=RoutingConfig(policy="round-robin")) as w:
            for name in "abcabc":
                answer = await w.request(f"/v1/responses/{name}", b"", method)
                assert answer[::2] == (200, f"/v1/responses/{name}".encode())
            status, _, body = await w.request("/v1/responses/none", b"", method)
            assert (status, body) == (404, b'{"error":"unknown"}')
            assert (await w.request("/v1/responses/b/cancel", b""))[0] == 200
            assert not w.gateway.counters.upstream_failures

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/sleep"), ("GET", "/flush_cache"), ("GET", "/v1/responses/../flush_cache"), ("GET", "/v1/responses/%2e%2e/x")],
)
def test_what_may_change_an_engine_is_for_the_operator_alone(method: str, path: str) -> None:
    async def scenario() -> None:
        async with world(**KEYS) as w:
            assert (await w.request(path, b"", method))[0] == 401
            assert code_of(await w.request(path, b"", method, **as_one("k"))) == (404, "unknown_url")
            assert not w.backends[0].received
            assert (await w.request(path, b"", method, **as_one("root")))[0] == 200

    run(scenario())


CHANGING_PATHS = [
    "/sleep?level=2",
    "/flush_cache",
    "/v1/load_lora_adapter",
    "/update_weights_from_disk",
    "/collective_rpc",
    "/pause",
]
OPERATORS_OF_VLLM = [
    *("abort_requests", "collective_rpc", "fault_tolerance/apply", "fault_tolerance/status", "finish_weight_update"),
    *("get_world_size", "inference/v1/abort_requests", "init_weight_transfer_engine", "is_paused", "is_scaling_elastic_ep"),
    *("is_sleeping", "kv_event_sources", "load", "pause", "ping", "release_kv_cache_memory", "reset_encoder_cache"),
    *("reset_mm_cache", "reset_prefix_cache", "resume", "scale_elastic_ep", "shutdown_weight_transfer_engine", "sleep"),
    *("start_draft_weight_update", "start_profile", "start_weight_update", "stop_profile", "tokenizer_info"),
    *("update_weight_version", "update_weights", "v1/load_lora_adapter", "v1/unload_lora_adapter", "wake_up"),
    *("weight_checker", "weight_info"),
]
"""What vLLM 0.33 serves beside what is open to clients."""
NAMING_BODIES = {"json": ({"model": "m"}, {}), "a form": (FORM, {"content_type": FORM_TYPE})}


@pytest.mark.parametrize("form", NAMING_BODIES)
@pytest.mark.parametrize("path", CHANGING_PATHS)
def test_naming_a_model_opens_no_path_of_the_operator(path: str, form: str) -> None:
    body, headers = NAMING_BODIES[form]

    async def scenario() -> None:
        async with world(**KEYS) as w:
            assert code_of(await w.request(path, body, **headers, **as_one("k"))) == (404, "unknown_url")
            assert not w.backends[0].received
            assert (await w.request(path, body, **headers, **as_one("root")))[0] == 200

    run(scenario())


def test_what_vllm_serves_beyond_is_for_the_operator_alone() -> None:
    async def scenario() -> None:
        async with world(**KEYS) as w:
            for path in OPERATORS_OF_VLLM:
                for method, body in (("POST", {"model": "m"}), ("GET", b"")):
                    answer = await w.request(f"/{path}", body, method, **as_one("k"))
                    assert (code_of(answer), path) == ((404, "unknown_url"), path)
            assert not w.backends[0].received

    run(scenario())


def test_what_vllm_takes_apart_takes_no_slot_but_in_the_middle() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), **KEYS) as w:
            middle = asyncio.create_task(w.request("/inference/v1/generate", {"token_ids": [1, 2]}, **as_one("k")))
            await w.wait_until(lambda: w.backends[0].received)
            assert w.state.in_flight == 1
            halves = "messages/render", "responses/render", "chat/completions/derender", "completions/derender"
            tasks = [asyncio.create_task(w.request(f"/v1/{half}", {"model": "m"}, **as_one("k"))) for half in halves]
            await w.wait_until(lambda: len(w.backends[0].received) == 5)
            assert w.state.in_flight == 1
            gated.open.set()
            assert [status for status, _, _ in await asyncio.gather(middle, *tasks)] == [200] * 5

    run(scenario())


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"referer": "http://evil.example/page"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/sleep"), ("GET", "/flush_cache")])
def test_without_keys_no_page_of_another_origin_reaches_the_operators_paths(
    method: str, path: str, headers: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with world() as w:
            assert code_of(await w.request(path, {"model": "m"}, method, **headers)) == (404, "unknown_url")
            assert not w.backends[0].received

    run(scenario())


def test_a_path_that_the_operator_has_named_is_open_to_clients() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), passed_paths=("/v1/video",), **KEYS) as w:
            waiting = asyncio.create_task(w.request("/v1/video", {"model": "m"}, **as_one("k")))
            await w.wait_until(lambda: w.backends[0].received)
            assert w.state.in_flight == 1
            gated.open.set()
            assert (await waiting)[0] == 200
            assert (await w.request("/v1/video/", {"model": "m"}, **as_one("k")))[0] == 404

    run(scenario())


@pytest.mark.parametrize("path", ["sleep", "", "/v1/video?a=1"])
def test_what_is_no_path_is_refused_in_the_configuration(path: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        GatewayConfig(passed_paths=(path,))


@pytest.mark.parametrize(
    "target", ["/v1/responses/%0a", "/v1/responses/a%20b%0d%0aX:%20y?c=%0a", "/v1/responses/%e2%82%ac", "/v1/responses/%ff"]
)
def test_an_encoded_path_reaches_the_backend_as_it_came(target: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            assert (await w.request(target, b"", "GET"))[0] == 200
            assert w.backends[0].received[0].head.split(b"\r\n")[0] == f"GET {target} HTTP/1.1".encode()

    run(scenario())


def test_what_an_engine_says_of_itself_needs_a_key() -> None:
    async def scenario() -> None:
        async with world(**KEYS) as w:
            w.backends[0].info = {"max_running_requests": 7}
            assert (await w.request("/get_server_info", b"", "GET"))[0] == 401
            status, _, body = await w.request("/get_server_info", b"", "GET", **as_one("k"))
            assert (status, msgspec.json.decode(body)) == (200, {"max_running_requests": 7})
            assert (await w.request("/version", b"", "GET", **as_one("k")))[::2] == (200, ANSWER)

    run(scenario())


def test_without_a_backend_a_passed_request_is_503() -> None:
    async def scenario() -> None:
        async with world() as w:
            await w.request("/admin/drain", {"backend": w.backends[0].url})
            assert code_of(await w.request("/version", b"", "GET")) == (503, "no_healthy_backend")

    run(scenario())


def test_smgs_own_routes() -> None:
    async def scenario() -> None:
        async with world(Backend(), Backend(), **KEYS) as w:
            assert msgspec.json.decode((await w.request("/liveness", b"", "GET"))[2]) == {"status": "alive"}
            status, _, body = await w.request("/readiness", b"", "GET")
            assert (status, msgspec.json.decode(body)["healthy_workers"]) == (200, 2)
            first, second = (backend.url for backend in w.backends)
            await w.backends[0].stop()
            await w.wait_until(lambda: not w.state.backends[0].healthy)
            assert (await w.request("/get_loads", b"", "GET"))[0] == 401
            assert (await w.request("/get_loads", b"", "GET", **as_one("k")))[0] == 403
            loads = msgspec.json.decode((await w.request("/get_loads", b"", "GET", **as_one("root")))[2])
            assert loads == {"workers": [{"worker": first, "load": -1}, {"worker": second, "load": 0}]}
            await w.backends[1].stop()
            await w.wait_until(lambda: not w.state.backends[1].healthy)
            status, _, body = await w.request("/readiness", b"", "GET")
            assert (status, msgspec.json.decode(body)) == (
                503,
                {"status": "not_ready", "healthy_workers": 0, "total_workers": 2},
            )

    run(scenario())


def test_other_methods_are_not_passed_on() -> None:
    async def scenario() -> None:
        async with world() as w:
            assert code_of(await w.request("/version", b"", "OPTIONS")) == (404, "unknown_url")
            assert code_of(await w.request("/v1/chat/completions", b"", "GET")) == (405, "method_not_allowed")
            assert not w.backends[0].received

    run(scenario())


@pytest.mark.parametrize(
    ("body", "content_type", "value"),
    [
        (FORM, FORM_TYPE.encode(), "m"),
        (FORM, b'multipart/form-data; charset=utf-8; boundary="xx"', "m"),
        (FORM, b"multipart/form-data", None),
        (b"", FORM_TYPE.encode(), None),
        (FORM.replace(b"m\r\n--xx--", b"\r\n--xx--"), FORM_TYPE.encode(), None),
        (FORM.replace(b'name="model"', b'name="models"'), FORM_TYPE.encode(), None),
        (b"--xx\r\n" * 9, FORM_TYPE.encode(), None),
        (FORM.replace(b'name="model"', b"name=model"), FORM_TYPE.encode(), "m"),
        (FORM.replace(b'name="model"', b'Name= "model"; x=filename'), FORM_TYPE.encode(), "m"),
        (FORM.replace(b'name="model"', b"name=\"model\"; filename*=utf-8''a"), FORM_TYPE.encode(), None),
        (FORM.replace(b"--xx", b"--a;b"), b'multipart/form-data; boundary="a;b";charset=utf-8', "m"),
        (FORM.replace(b'name="model"', b'x="name=model"'), FORM_TYPE.encode(), None),
    ],
)
def test_the_model_of_a_form(body: bytes, content_type: bytes, value: str | None) -> None:
    assert find_form_field(body, content_type, "model") == value


class CountedBody(bytes):
    """A body that counts the bytes over which it is searched."""

    searched = 0

    def find(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        found = bytes.find(self, sub, start, len(self) if end is None else end)
        self.searched += (found if found >= 0 else len(self) if end is None else min(end, len(self))) - start
        return found


@pytest.mark.parametrize("unit", [b"--a", b"\r\n--a", b"\r\n--a\r\n\r\n", b"\r\n", b"a"], ids=repr)
def test_a_form_is_searched_in_linear_time_whatever_its_boundary(unit: bytes) -> None:
    body = CountedBody(unit * 100_000)
    assert find_form_field(body, b"multipart/form-data; boundary=a", "model") is None
    assert body.searched <= 3 * len(body)
