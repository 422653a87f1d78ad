"""The pages that show and release programs: ThunderAgent's fields, and which tenant sees what."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_gateway_programs import body, program, small
from world import NOT_FOUND, Backend, BackendRequest, GatedAnswer, GatewayWorld, chunk, run, world

from maitred.core.errors import ConfigError
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway
from maitred.gateway.observe import program_profiles
from maitred.gateway.observe.program_profiles import CSV_NAME, HEADER
from maitred.programs import ProgramsConfig

CAPACITY = {"backend_capacity_tokens": 10_000}
THEIRS = ("backend", "context_len", "total_tokens", "step_count", "status", "state")
"""ThunderAgent's fields of a program."""


async def get(w: GatewayWorld, path: str, **headers: str) -> Any:
    status, _, answer = await w.request(path, method="GET", **headers)
    assert status == 200, answer
    return msgspec.json.decode(answer)


async def release(w: GatewayWorld, asked: object, **headers: str) -> tuple[int, Any]:
    status, _, answer = await w.request("/programs/release", asked, **headers)
    return status, msgspec.json.decode(answer)


def test_programs_are_listed_with_the_fields_of_thunderagent() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(small), programs=CAPACITY) as w:
            assert await get(w, "/programs") == {}
            asked = body("a", 1000)
            await w.request(body=asked)
            w.backends[0].respond = gated
            under_way = await w.start_request(body("b", 8000, parent_program_id="a"))
            await w.wait_until(lambda: len(w.backends[0].received) == 2)
            waiting = await w.start_request(body("c", 4000))
            await w.wait_until(lambda: w.gateway.programs and w.gateway.programs.core.num_waiting == 1)
            anonymous = await w.start_request(body(None, 100))
            await w.wait_until(lambda: len(w.backends[0].received) == 3)  # It is small enough to go first.
            listed = await get(w, "/programs")
            assert [listed["a"][field] for field in THEIRS] == [w.backends[0].url, len(asked), 1000, 1, "acting", "active"]
            assert [listed["b"][field] for field in THEIRS][2:] == [8000, 1, "reasoning", "active"]
            assert [listed["c"][field] for field in THEIRS] == [None, 20_000, 4000, 1, "reasoning", "paused"]
            assert set(listed) == {"a", "b", "c"}
            ours = {name: listed["b"][name] for name in ("tenant", "model", "parent", "rank", "requests_in_flight")}
            assert ours == {"tenant": "ip:127.0.0.1", "model": "m", "parent": "a", "rank": None, "requests_in_flight": 1}
            assert "profile" not in listed["a"]
            gated.open.set()
            assert (await under_way.read_response())[0] == 200
            await release(w, {"program_id": "b"})  # An idle program keeps its memory.
            for client in (waiting, anonymous):
                assert (await client.read_response())[0] == 200

    run(scenario())


@pytest.mark.parametrize(
    ("asked", "status", "answer"),
    [
        ({"program_id": "nope"}, 200, {"program_id": "nope", "released": False}),
        ({}, 400, {"detail": "Missing program_id"}),
        ({"program_id": ""}, 400, {"detail": "Missing program_id"}),
        ({"program_id": 0}, 400, {"detail": "Missing program_id"}),
        ({"program_id": None}, 400, {"detail": "Missing program_id"}),
        (b"{bad", 400, {"detail": "Invalid JSON"}),
        (b'{"program_id": "\xff"}', 400, {"detail": "Invalid JSON"}),
        (b"[" * 50_000, 400, {"detail": "Invalid JSON"}),
        ([], 400, {"detail": "The body must be a JSON object"}),
        (b'"s"', 400, {"detail": "The body must be a JSON object"}),
        ({"program_id": 7}, 400, {"detail": "program_id must be a string"}),
        ({"program_id": "p", "tenant": 7}, 400, {"detail": "tenant must be a string"}),
    ],
)
def test_answers_to_a_release(asked: object, status: int, answer: object) -> None:
    """ThunderAgent's, but for the bodies that make it answer 500."""

    async def scenario() -> None:
        async with world(programs=CAPACITY) as w:
            assert await release(w, asked) == (status, answer)

    run(scenario())


def test_a_release_frees_the_memory_and_refuses_what_waits() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs=CAPACITY) as w:
            await w.request(body=body("a", 1000))
            assert await release(w, {"program_id": "a"}) == (200, {"program_id": "a", "released": True})
            assert await get(w, "/programs") == {}
            w.backends[0].respond = gated = GatedAnswer()
            holder = await w.start_request(body("holder", 9000))
            await w.wait_until(lambda: len(w.backends[0].received) == 2)
            waiting = await w.start_request(body("waiting", 5000))
            await w.wait_until(lambda: w.gateway.programs and w.gateway.programs.core.num_waiting == 1)
            assert (await release(w, {"program_id": "waiting"}))[1]["released"]
            status, _, answer = await waiting.read_response()
            assert (status, msgspec.json.decode(answer)["error"]["code"]) == (499, "program_released")
            gated.open.set()
            await holder.read_response()
            assert len(w.backends[0].received) == 2

    run(scenario())


KEYS: dict[str, Any] = {"api_key": "shared", "tenant_api_keys": {"acme": "acme-key", "bolt": "bolt-key"}}


def test_a_tenant_sees_and_releases_its_own_programs_alone() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs={**CAPACITY, "profile": True}, **KEYS) as w:
            acme, bolt, shared = ({"authorization": f"Bearer {key}"} for key in ("acme-key", "bolt-key", "shared"))
            for path, method in (
                ("/programs", "GET"),
                ("/profiles", "GET"),
                ("/programs/metrics", "GET"),
                ("/programs/release", "POST"),
            ):
                assert (await w.request(path, b"{}", method))[0] == 401
            await w.request(body=body("mine"), **acme)
            await w.request(body=body("both"), **acme)
            await w.request(body=body("both"), **bolt)
            for page in ("/programs", "/profiles"):
                assert set(await get(w, page, **acme)) == {"mine", "both"}
                assert set(await get(w, page, **bolt)) == {"both"}
                assert set(await get(w, page, **shared)) == {"mine", "auth:acme/m/both", "auth:bolt/m/both"}
            assert (await w.request("/profiles/mine", method="GET", **bolt))[0] == 404
            assert (await w.request("/profiles/mine", method="GET", **acme))[0] == 200

            assert (await release(w, {"program_id": "mine"}, **bolt))[1]["released"] is False
            assert (await release(w, {"program_id": "mine", "tenant": "auth:acme"}, **bolt))[1]["released"] is False
            assert (await release(w, {"program_id": "both"}, **bolt))[1]["released"] is True
            assert set(await get(w, "/programs", **shared)) == {"mine", "both"}
            assert (await release(w, {"program_id": "mine"}, **shared))[1]["released"] is True
            await w.request(body=body("both"), **bolt)
            status, answer = await release(w, {"program_id": "both"}, **shared)
            assert (status, "auth:acme, auth:bolt" in answer["detail"]) == (400, True)
            assert (await release(w, {"program_id": "both", "tenant": "auth:bolt"}, **shared))[1]["released"] is True
            assert set(await get(w, "/programs", **acme)) == {"both"}

    run(scenario())


def test_a_tenant_named_by_a_trusted_header_is_a_tenant_like_any_other() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs=CAPACITY, trust_tenant_header=True) as w:
            await w.request(body=body("a"), x_smg_tenant_id="t1")
            await w.request(body=body("b"), x_smg_tenant_id="t2")
            assert set(await get(w, "/programs", x_smg_tenant_id="t1")) == {"a"}
            assert set(await get(w, "/programs")) == {"a", "b"}  # from this machine, without keys
            assert (await release(w, {"program_id": "b"}, x_smg_tenant_id="t1"))[1]["released"] is False

    run(scenario())


def test_programs_with_one_id_are_told_apart() -> None:
    async def scenario() -> None:
        async with world(Backend(small, models=("m", "n")), programs=CAPACITY) as w:
            await w.request(body=body("p"))
            await w.request(body=body("p").replace(b'"model":"m"', b'"model":"n"'))
            assert set(await get(w, "/programs")) == {"m/p", "n/p"}
            assert (await release(w, {"program_id": "p"}))[1]["released"]
            assert await get(w, "/programs") == {}

    run(scenario())


async def not_found(received: BackendRequest) -> None:
    await received.send(NOT_FOUND)


def test_health_has_the_fields_of_thunderagent_and_keeps_its_own() -> None:
    async def scenario() -> None:
        async with world() as w:
            assert await get(w, "/health") == {"status": "ok"}
            w.backends[0].respond = not_found
            assert (await w.request("/programs", method="GET"))[0] == 404  # the engine knows no such page either
        async with world(Backend(small), programs=CAPACITY) as w:
            await w.request(body=body("a"))
            counts = {"total": 1, "reasoning": 0, "acting": 1, "paused": 0, "marked_for_pause": 0, "future_paused_tokens": 0}
            sums = {"programs_count": 1, "reasoning_count": 0, "acting_count": 1, "paused_count": 0}
            mode = {"router_mode": "tr", "scheduling_enabled": True, "backends": [w.backends[0].url], "profile_enabled": False}
            assert await get(w, "/health") == {"status": "ok", **mode, **sums, "per_backend": {w.backends[0].url: counts}}
        async with world(Backend(small), programs={"mode": "default"}, api_key="shared") as w:
            mode = {"router_mode": "default", "scheduling_enabled": False, "backends": [w.backends[0].url]}
            sums = dict.fromkeys(("programs_count", "reasoning_count", "acting_count", "paused_count"), 0)
            shown = {"status": "ok", **mode, **sums, "profile_enabled": False}
            assert await get(w, "/health", authorization="Bearer shared") == shown
            assert await get(w, "/health") == {"status": "ok"}  # a probe without the key learns no backend

    run(scenario())


VLLM_PAGE = b"""\
vllm:cache_config_info{block_size="16",num_gpu_blocks="500",engine="0"} 1.0
vllm:num_requests_running{engine="0"} 1
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prefix_cache_queries_total{engine="0"} 1000
vllm:prefix_cache_hits_total{engine="0"} 800
vllm:prompt_tokens_total{engine="0"} 1500
vllm:generation_tokens_total{engine="0"} 300
vllm:num_preemptions_total{engine="0"} 0
vllm:request_success_total{engine="0",finished_reason="stop"} 2
"""


def test_the_metrics_page_of_thunderagent() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        engine = Backend(small)
        engine.metrics = VLLM_PAGE
        async with world(engine, programs={"metrics_interval_secs": 0.01}) as w:
            await w.request(body=body("acting", 1000))
            engine.respond = gated
            reasoning = await w.start_request(body("reasoning", 2000))
            paused = await w.start_request(body("large", 6000))
            await w.wait_until(lambda: w.gateway.programs and w.gateway.programs.core.num_waiting == 1)
            page = await get(w, "/programs/metrics")
            assert (page["metrics_enabled"], page["metrics_interval"]) == (True, 0.01)
            shown = page["backends"][engine.url]
            expected = {
                "url": engine.url, "active_program_tokens": 3000, "reasoning_program_tokens": 2000,
                "acting_program_tokens": 1000, "active_program_count": 2, "reasoning_program_count": 1,
                "acting_program_count": 1, "active_program_tokens_ratio": 0.375, "total_program_tokens": 3000,
                "paused_program_count": 0, "future_paused_tokens": 0, "shared_tokens": 0, "buffer_per_program": 100,
                "capacity_overflow": 0, "healthy": True, "monitoring": True,
            }  # fmt: skip
            assert {key: shown[key] for key in expected} == expected
            assert shown["remaining_tokens"] == 4800
            assert shown["cache_config"] == {"block_size": 16, "num_gpu_blocks": 500, "total_tokens_capacity": 8000}
            assert shown["metrics"] == {
                "num_requests_running": 1, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.25,
                "prefix_cache_hit_rate": 0.8, "prefix_cache_queries": 1000, "prefix_cache_hits": 800,
                "prompt_tokens_total": 1500, "generation_tokens_total": 300, "num_preemptions": 0, "requests_completed": 2,
            }  # fmt: skip
            gated.open.set()
            await reasoning.read_response()
            await release(w, {"program_id": "reasoning"})
            assert (await paused.read_response())[0] == 200

    run(scenario())


async def scrape(w: GatewayWorld) -> dict[str, float]:
    _, _, answer = await w.request("/metrics", method="GET")
    return {name: float(value) for name, value in re.findall(r"^(maitred_programs_\S+) (\S+)$", answer.decode(), re.MULTILINE)}


def test_prometheus_metrics() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        engine = Backend(gated)
        async with world(engine, programs=CAPACITY) as w:
            at = f'{{backend="{engine.url}",rank="0"}}'
            first = await w.start_request(body("a", 9000))
            await w.wait_until(lambda: engine.received)
            second = await w.start_request(body("b", 5000))
            await w.wait_until(lambda: w.gateway.programs and w.gateway.programs.core.num_waiting)
            seen = await scrape(w)
            assert seen['maitred_programs_known{state="active",status="reasoning"}'] == 1
            assert seen['maitred_programs_known{state="paused",status="reasoning"}'] == 1
            assert seen["maitred_programs_waiting_requests"] == 1
            assert seen["maitred_programs_used_tokens" + at] == 9100
            assert seen["maitred_programs_capacity_tokens" + at] == 10_000
            assert seen["maitred_programs_remaining_tokens" + at] == 900
            assert seen["maitred_programs_count" + at] == 1
            assert seen['maitred_programs_decisions_total{action="grant",reason="placed"}'] == 1
            assert seen['maitred_programs_wait_seconds_count{class="default"}'] == 0
            gated.open.set()
            await first.read_response()
            await release(w, {"program_id": "a"})
            assert (await second.read_response())[0] == 200
            seen = await scrape(w)
            assert seen['maitred_programs_wait_seconds_count{class="default"}'] == 1
            assert seen['maitred_programs_decisions_total{action="resume",reason="room"}'] == 1
            await engine.stop()
            await w.wait_until(lambda: not w.state.backends[0].healthy)
            assert (await scrape(w))["maitred_programs_lost_kv_tokens_total"] == 5000
        async with world() as w:
            assert await scrape(w) == {}

    run(scenario())


async def streamed(received: BackendRequest) -> None:
    """Answer as a stream, 50 of 100 tokens of the prompt cached."""
    usage = {"prompt_tokens": 100, "total_tokens": 104, "prompt_tokens_details": {"cached_tokens": 50}}
    await received.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for number in range(4):
        await received.send(chunk(b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % number))
    await received.send(chunk(b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n") + b"0\r\n\r\n")


def test_profiles_and_their_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        programs = {**CAPACITY, "profile": True, "profile_dir": str(tmp_path / "profiles")}
        async with world(Backend(streamed), programs=programs) as w:
            name = 'a, "quoted"\nid'
            await w.request(body=body(name, stream=True))
            assert (await get(w, "/programs"))[name]["profile"]["step_count"] == 1
            w.backends[0].respond = small
            await w.request(body=body(name))
            profiles = await get(w, "/profiles")
            assert profiles[name]["step_count"] == 2
            assert profiles[name]["avg_kv_hit_rate"] == 0.5  # The second answer reports no cached tokens.
            assert set(profiles[name]) == {
                "step_count", "avg_prefill_s", "avg_decode_s", "avg_pause_s", "avg_tool_call_s", "avg_kv_hit_rate",
            }  # fmt: skip
            await w.request(body=body("plain"))
            assert (await get(w, "/profiles/plain"))["avg_prefill_s"] == 0
            assert (await w.request("/profiles/none", method="GET"))[0] == 404
            await release(w, {"program_id": "plain"})
            assert (await w.request("/profiles/plain", method="GET"))[0] == 404
        with (tmp_path / "profiles" / CSV_NAME).open(newline="") as file:
            header, *rows = csv.reader(file)
        assert ",".join(header) + "\n" == HEADER
        assert [row[:2] for row in rows] == [['a, "quoted"\\x0aid', "1"], ['a, "quoted"\\x0aid', "2"], ["plain", "1"]]
        assert [row[6] for row in rows] == ["0.5000", "", ""]
        assert all(float(cell) >= 0 for row in rows for cell in (*row[2:6], row[7]))

    run(scenario())


def test_a_full_file_of_profiles_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_profiles, "MAX_CSV_BYTES", len(HEADER) + 1)
    (tmp_path / CSV_NAME).write_text(HEADER + "old,1,0,0,0,0,,0\n")

    async def scenario() -> None:
        async with world(Backend(small), programs={**CAPACITY, "profile": True, "profile_dir": str(tmp_path)}) as w:
            await w.request(body=body("new"))

    run(scenario())
    assert (tmp_path / f"{CSV_NAME}.1").read_text().startswith(HEADER + "old,")
    assert (tmp_path / CSV_NAME).read_text().startswith(HEADER + '"new",1,')


def test_a_file_with_other_columns_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / CSV_NAME).write_text("something else\n")

    async def scenario() -> None:
        async with world(Backend(small), programs={**CAPACITY, "profile": True, "profile_dir": str(tmp_path)}) as w:
            await w.request(body=body("p"))

    run(scenario())
    assert (tmp_path / f"{CSV_NAME}.1").read_text() == "something else\n"
    assert (tmp_path / CSV_NAME).read_text().startswith(HEADER)


def test_a_folder_that_cannot_be_made_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    programs = ProgramsConfig(mode="tr", profile=True, profile_dir=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"programs\.profile_dir: cannot write"):
        Gateway(GatewayConfig(backends=("http://127.0.0.1:1",)), programs=programs)


def test_without_profiling_its_pages_say_so() -> None:
    async def scenario() -> None:
        async with world(Backend(small), programs=CAPACITY) as w:
            for path in ("/profiles", "/profiles/x"):
                status, _, answer = await w.request(path, method="GET")
                assert (status, list(msgspec.json.decode(answer))) == (400, ["error"])

    run(scenario())


def test_a_step_that_is_released_while_it_runs_leaves_no_profile() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), programs={**CAPACITY, "profile": True}) as w:
            client = await w.start_request(body("p"))
            await w.wait_until(lambda: w.backends[0].received)
            assert program(w, "p").contexts
            await release(w, {"program_id": "p"})
            gated.open.set()
            assert (await client.read_response())[0] == 200
            assert await get(w, "/profiles") == {}

    run(scenario())
