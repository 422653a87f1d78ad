"""Reloads while requests are being served, and starts with a wrong configuration."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from world import (
    ANSWER,
    Backend,
    BackendRequest,
    GatedAnswer,
    GatewayWorld,
    admission_config,
    run,
    run_on_sockets,
    whole,
    world,
)

from maitred.admission import AdmissionConfig
from maitred.core.errors import ConfigError
from maitred.gateway import GatewayConfig
from maitred.gateway.admin import reload as reload_module
from maitred.gateway.admin.reload import GatewaySettings
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.scheduler.link_config import SchedulerConfig


class Files:
    """The configuration that a reload finds: the section `admission`, and changes to the gateway section."""

    def __init__(self) -> None:
        self.admission: AdmissionConfig = admission_config()
        self.changed: dict[str, Any] = {}
        self.routing = RoutingConfig()
        self.programs = ProgramsConfig()
        self.scheduler = SchedulerConfig()
        self.error: ConfigError | None = None

    def read(self, start: GatewayConfig) -> GatewaySettings:
        if self.error:
            raise self.error
        gateway = msgspec.structs.replace(start, **self.changed)
        return GatewaySettings(
            gateway=gateway, admission=self.admission, routing=self.routing, programs=self.programs, scheduler=self.scheduler
        )


async def reload(w: GatewayWorld, **headers: str) -> tuple[int, dict[str, Any]]:
    status, _, body = await w.request("/admin/reload", b"", **headers)
    return status, msgspec.json.decode(body)


async def metrics(w: GatewayWorld) -> list[str]:
    return (await w.request("/metrics", b"", "GET"))[2].decode().splitlines()


@pytest.mark.parametrize("mode", ["priority", "legacy", "off"])
def test_who_is_here_keeps_its_place(mode: str) -> None:
    """Two requests are in flight and two wait; then their queue gets size 0, or the mode changes."""
    files = Files()
    files.admission = admission_config(
        mode=mode,
        classes={"default": {"queue_size": 0}},
        legacy={"max_concurrent_requests": 2, "queue_size": 0},
    )

    async def scenario() -> None:
        async with world(Backend(held := GatedAnswer()), slots=2, reload=files.read) as w:
            connections = [await w.start_request() for _ in range(4)]
            await w.wait_until(lambda: (w.state.in_flight, w.state.waiting) == (2, 2))
            assert await reload(w) == (200, {"reloaded": True, "ignored": [], "warnings": list(files.admission.warnings())})
            assert w.state.mode == mode
            if mode == "off":
                await w.wait_until(lambda: w.state.in_flight == 4)
            else:
                assert (w.state.in_flight, w.state.waiting) == (2, 2)
                assert (await w.request())[0] == 429
            held.open.set()
            assert [(await connection.read_response())[0] for connection in connections] == [200] * 4

    run(scenario())


def test_what_is_wrong_changes_nothing() -> None:
    files = Files()
    files.admission = admission_config(default_max_class="bulk")
    files.changed = {"api_key": "k"}
    files.error = ConfigError("queue_size must be at least 0", where="maitred.yaml:7")

    async def scenario() -> None:
        async with world(reload=files.read) as w:
            before = w.gateway.settings()
            status, body = await reload(w)
            assert (status, body["error"]["code"]) == (400, "invalid_config")
            assert body["error"]["message"] == "maitred.yaml:7: queue_size must be at least 0"
            assert w.gateway.settings() == before
            assert (await w.request(x_smg_priority="system"))[0] == 200
            assert w.state.classes["system"].admitted == 1
            files.error = None
            assert (await reload(w))[0] == 200
            counted = [line for line in await metrics(w) if line.startswith("maitred_config_reload_total")]
            assert sorted(counted) == [
                'maitred_config_reload_total{result="failed"} 1.0',
                'maitred_config_reload_total{result="ok"} 1.0',
            ]

    run(scenario())


def test_reservations_that_the_fleet_cannot_hold_are_wrong() -> None:
    files = Files()
    files.admission = admission_config(classes={"system": {"reserved_floor": 9}, "interactive": {"reserved_floor": 9}})

    async def scenario() -> None:
        async with world(slots=10, reload=files.read) as w:
            status, body = await reload(w)
            assert status == 400
            assert "sum of class reservations (18) exceeds capacity (10)" in body["error"]["message"]
            assert w.state.classes["system"].reserved == 0
            files.admission = msgspec.structs.replace(files.admission, on_overcommit="clamp")
            assert (await reload(w))[0] == 200
            assert w.state.classes["system"].reserved == 4

    run(scenario())


def test_keys_and_caps_are_those_of_the_new_configuration() -> None:
    files = Files()
    files.changed = {"api_key": "new", "tenant_api_keys": {"acme": "k-acme"}, "upstream_api_key": "engine"}
    files.admission = admission_config(tenant_policies={"auth:acme": {"max_class": "bulk"}})

    async def scenario() -> None:
        async with world(api_key="old", reload=files.read) as w:
            assert (await reload(w))[0] == 401
            assert (await reload(w, authorization="Bearer old"))[0] == 200
            assert (await w.request(authorization="Bearer old"))[0] == 401
            assert (await w.request(authorization="Bearer k-acme", x_smg_priority="system"))[0] == 200
            assert w.state.classes["bulk"].admitted == 1
            assert w.backends[0].received[0].headers[b"authorization"] == b"Bearer engine"

    run(scenario())


@pytest.mark.parametrize("start", [{"api_key": "k"}, {"tenant_api_keys": {"acme": "k"}}])
def test_a_reload_without_keys_never_opens_a_gateway_that_has_some(start: dict[str, Any]) -> None:
    """A file that was emptied, or cut short, is valid: all its keys have defaults."""
    files = Files()
    files.changed = {"api_key": None, "tenant_api_keys": {}}

    async def scenario() -> None:
        async with world(**start, reload=files.read) as w:
            with pytest.raises(ConfigError, match=r"no API key is left.*`auth: none`"):
                await w.gateway._reloader.reload()
            assert (await w.request())[0] == 401
            assert (await w.request(authorization="Bearer k"))[0] == 200

    run(scenario())


def test_a_reload_opens_a_gateway_if_the_file_says_so_in_words() -> None:
    files = Files()
    files.changed = {"api_key": None, "auth": "none"}

    async def scenario() -> None:
        async with world(api_key="k", reload=files.read) as w:
            status, body = await reload(w, authorization="Bearer k")
            assert status == 200
            assert body["warnings"][0].startswith("gateway.auth is none: every client may use this gateway now")
            assert (await w.request())[0] == 200
            files.changed = {"api_key": "new", "auth": None}
            assert (await reload(w))[0] == 200
            assert (await w.request())[0] == 401

    run(scenario())


def test_a_reload_names_the_keys_that_are_gone() -> None:
    files = Files()
    files.changed = {"api_key": None, "tenant_api_keys": {"b": "k-b"}}

    async def scenario() -> None:
        async with world(api_key="k", tenant_api_keys={"a": "k-a", "b": "k-b"}, reload=files.read) as w:
            _, body = await reload(w, authorization="Bearer k")
            assert body["warnings"][:2] == [
                "gateway.api_key is gone: nothing opens /admin/* now",
                "gateway.tenant_api_keys.a is gone: the tenant has no key now",
            ]
            assert (await w.request(authorization="Bearer k-a"))[0] == 401

    run(scenario())


def test_what_needs_a_restart_is_named_and_stays_as_it_was() -> None:
    files = Files()
    files.changed = {"port": 1, "max_attempts": 7, "max_body_bytes": 10}
    files.routing = RoutingConfig(policy="round-robin")
    files.scheduler = SchedulerConfig(lease_secs=9, listen="127.0.0.1:1")
    ignored = ["gateway.port", "gateway.max_attempts", "routing.policy", "scheduler.listen", "scheduler.lease_secs"]

    async def scenario() -> None:
        async with world(reload=files.read) as w:
            status, body = await reload(w)
            assert (status, body["ignored"]) == (200, ignored)
            assert (w.gateway.settings().gateway.max_attempts, w.gateway.settings().gateway.port) == (3, 8080)
            assert (await w.request())[0] == 413

    run(scenario())


def test_reloads_under_load_lose_nothing() -> None:
    files = Files()

    async def soon(received: BackendRequest) -> None:
        await asyncio.sleep(0.001)  # the time of an answer, so that slots are taken when a reload comes
        await received.send(whole(ANSWER))

    async def scenario() -> None:
        async with world(Backend(soon), slots=4, reload=files.read) as w:
            asked = [asyncio.create_task(w.request(x_smg_priority=("bulk", "interactive")[n % 2])) for n in range(120)]
            for n in range(12):
                files.admission = admission_config(
                    mode=("priority", "legacy", "off")[n % 3], classes={"interactive": {"reserved_floor": n % 4}}
                )
                assert (await reload(w))[0] == 200
            assert [status for status, *_ in await asyncio.gather(*asked)] == [200] * 120
            assert sum(c.arrived for c in w.state.classes.values()) == 120
            w.gateway.core.check()

    run(scenario())


def test_a_storm_of_requests_for_a_reload_is_two_reloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload_module, "MIN_INTERVAL_SECS", 0.2)
    files = Files()

    async def scenario() -> None:
        async with world(reload=files.read) as w:
            for _ in range(100):
                w.gateway.request_reload()
                await asyncio.sleep(0)
            files.admission = admission_config(mode="legacy")
            w.gateway.request_reload()
            await asyncio.sleep(10)
            assert (w.state.mode, w.gateway.counters.reloads["ok"]) == ("legacy", 2)
            w.gateway.request_reload()
            await w.wait_until(lambda: w.gateway.counters.reloads["ok"] == 3)

    run(scenario())


def test_a_gateway_that_a_program_has_set_up_has_nothing_to_read_again() -> None:
    async def scenario() -> None:
        async with world() as w:
            assert (await reload(w))[0] == 400
            assert (await w.request("/admin/reload", b"", "GET"))[0] == 405

    run(scenario())


class Served:
    """`maitred serve` in a process of its own. `said` holds the lines of its stderr."""

    def __init__(self, *flags: str) -> None:
        here = ("--port", "0", "--settle-secs", "0")
        command = [sys.executable, "-c", "from maitred.cli import main; main()", "serve", *here, *flags]
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAITRED_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        self.said: list[str] = []
        self.url = self.wait_until(lambda line: line.startswith("maitred: gateway on ")).split(" ")[3].rstrip(",")

    def wait_until(self, wanted: Callable[[str], bool]) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip())
            if wanted(line):
                return line
        raise AssertionError(self.said)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=10)

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path) as answered:
            found: dict[str, Any] = msgspec.json.decode(answered.read())
            return found

    def post(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(urllib.request.Request(self.url + path, method="POST", data=b"")) as answered:
            found: dict[str, Any] = msgspec.json.decode(answered.read())
            return found


def test_sighup_reads_the_same_files_again_under_the_same_flags(tmp_path: Path) -> None:
    main, admission = tmp_path / "maitred.yaml", tmp_path / "smg.yaml"
    main.write_text("gateway: {backends: ['http://127.0.0.1:9']}\nadmission: {mode: priority}\n")
    admission.write_text("classes: {bulk: {queue_size: 5}}\n")
    with Served("--config", str(main), "--admission-config", str(admission), "--default-max-class", "bulk") as served:

        def bulk() -> tuple[int, str]:
            found = served.get("/admin/config")["admission"]
            return found["classes"]["bulk"]["queue_size"], found["default_max_class"]

        assert bulk() == (5, "bulk")
        admission.write_text("classes: {bulk: {queue_size: 6}}\ndefault_max_class: system\n")
        served.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while bulk() != (6, "bulk") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert bulk() == (6, "bulk")

        admission.write_text("classes: {bulk: {queue_size: -1}}\n")
        served.process.send_signal(signal.SIGHUP)
        said = served.wait_until(lambda line: "not reloaded" in line)
        assert f"{admission}:1: admission.classes.bulk.queue_size must be at least 0" in said
        with pytest.raises(urllib.error.HTTPError) as caught:
            served.post("/admin/reload")
        caught.value.close()
        assert (caught.value.code, bulk()) == (400, (6, "bulk"))


def test_a_start_with_a_bad_admission_serves_and_says_so_until_it_is_mended(tmp_path: Path) -> None:
    admission = tmp_path / "smg.yaml"
    admission.write_text("classes:\n  Bulk: {}\n")
    flags = ("--backend", "http://127.0.0.1:9", "--priority-scheduler-enabled", "--priority-scheduler-config", str(admission))
    problem = f"{admission}:2: unknown key 'admission.classes.Bulk' (did you mean 'bulk'?)"
    with Served(*flags) as served:
        assert served.said[0].endswith(f"Z ERROR {problem}; serving with legacy admission until that is mended")
        assert served.get("/health") == {"status": "degraded", "problems": [problem]}
        assert served.get("/admin/config")["admission"]["mode"] == "legacy"
        assert served.get("/maitred/state")["config_fallback"] == problem

        admission.write_text("classes:\n  bulk: {queue_size: 1}\n")
        assert served.post("/admin/reload") == {"reloaded": True, "ignored": [], "warnings": []}
        assert served.get("/health") == {"status": "ok"}
        assert served.get("/admin/config")["admission"]["mode"] == "priority"


def test_keys_of_programs_change_in_service_except_those_that_need_a_restart() -> None:
    """A program waits for memory; then there is more of it. The mode and the estimator stay as they were."""
    files = Files()

    async def scenario() -> None:
        gated = GatedAnswer()
        backend = Backend(gated)
        async with world(backend, programs={"backend_capacity_tokens": 2000}, reload=files.read) as w:
            body = {"model": "m", "x": "x" * 7500}
            first = await w.start_request({**body, "program_id": "a"})
            await w.wait_until(lambda: len(backend.received) == 1)
            second = await w.start_request({**body, "program_id": "b"})
            await w.wait_until(lambda: w.gateway.programs and w.gateway.programs.core.num_waiting == 1)

            files.programs = ProgramsConfig(
                mode="default", acting_estimator="decay", backend_capacity_tokens=9000, session_headers=("x-agent",)
            )
            status, found = await reload(w)
            assert (status, sorted(found["ignored"])) == (200, ["programs.acting_estimator", "programs.mode"])
            await w.wait_until(lambda: len(backend.received) == 2)

            shown = w.gateway.settings().redacted()["programs"]
            assert (shown["mode"], shown["backend_capacity_tokens"]) == ("tr", 9000)
            third = await w.start_request({**body}, x_agent="c")
            gated.open.set()
            assert [(await client.read_response())[0] for client in (first, second, third)] == [200] * 3
            assert w.gateway.programs is not None
            assert {p.key.name for p in w.gateway.programs.core.programs} == {"a", "b", "c"}

    run(scenario())


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the process in /proc")
def test_a_sighup_before_the_gateway_serves_is_made_up_for(tmp_path: Path) -> None:
    """The configuration comes through a pipe, so the test knows that the process has started and does not serve yet."""
    config = tmp_path / "maitred.yaml"
    os.mkfifo(config)

    def feed() -> None:
        with config.open("wb", buffering=0) as pipe:  # opens when the process reads its configuration
            process = next(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_child(entry))
            os.kill(process, signal.SIGHUP)
            pipe.write(b"gateway: {backends: ['http://127.0.0.1:9']}\n")

    def is_child(entry: Path) -> bool:
        try:
            return str(config).encode() in (entry / "cmdline").read_bytes()
        except OSError:
            return False

    feeder = threading.Thread(target=feed)
    feeder.start()
    with Served("--config", str(config)) as served:
        feeder.join()
        served.wait_until(lambda line: "the configuration was reloaded" in line)


def test_a_file_that_has_become_a_pipe_fails_a_reload_and_holds_up_nothing(tmp_path: Path) -> None:
    config = tmp_path / "maitred.yaml"
    config.write_text("gateway: {backends: ['http://127.0.0.1:9'], drain_secs: 0.1}\n")
    with Served("--config", str(config)) as served:
        config.unlink()
        os.mkfifo(config)
        served.process.send_signal(signal.SIGHUP)
        line = served.wait_until(lambda line: "not reloaded" in line)
        assert line.rstrip().endswith(f"{config}: cannot be read: it is a pipe, where a file is needed")
        config.unlink()
        config.write_text("gateway: {backends: ['http://127.0.0.1:9']}\n")
        assert served.post("/admin/reload")["reloaded"]
    assert served.process.returncode == 0


def test_a_disk_that_hangs_ends_a_reload_and_not_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload_module, "READ_SECS", 0.05)
    mended = threading.Event()

    class Hanging(Files):
        def read(self, start: GatewayConfig) -> GatewaySettings:
            mended.wait(10)
            return super().read(start)

    async def scenario() -> None:
        files = Hanging()
        async with world(reload=files.read) as w:
            status, answer = await reload(w)
            problem = "the files of the configuration could not be read within 0.05 s (does a disk hang?)"
            assert (status, answer["error"]["message"]) == (400, problem)
            assert "still being read" in (await reload(w))[1]["error"]["message"]
            mended.set()
            while (await reload(w))[0] == 400:
                await asyncio.sleep(0.01)

    run_on_sockets(scenario())
