"""Traces of one request: its id, tenant and model in the answer, the access log, the recording, the decisions, and metrics."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest
from world import ANSWER, Backend, BackendRequest, GatedAnswer, GatewayWorld, run, whole, world

from maitred.core.decisions import DecisionLog
from maitred.gateway.observe.logs import LogOutput
from maitred.replay import replay

CHAT = "/v1/chat/completions"
KEY = {"authorization": "Bearer k-acme"}
KEYS = {"tenant_api_keys": {"acme": "k-acme"}, "api_key": "k-shared"}


class Lines(LogOutput):
    """An output that keeps the lines of the access log."""

    def __init__(self) -> None:
        super().__init__("json")
        self.lines: list[dict[str, Any]] = []

    def start(self) -> None: ...

    def write(self, line: bytes) -> None:
        self.lines.append(msgspec.json.decode(line))


def told(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in ("status", "error", "tenant", "model", "id"))


REFUSALS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "no key": ({"body": {"model": "m"}}, (401, "missing_api_key", None, None)),
    "a wrong key": ({"body": {"model": "m"}, "authorization": "Bearer no"}, (401, "invalid_api_key", None, None)),
    "no JSON": ({"body": b"{", **KEY}, (400, None, "auth:acme", None)),
    "an unknown model": ({"body": {"model": "lama"}, **KEY}, (404, "model_not_found", "auth:acme", "lama")),
    "a path of the operator": ({"path": "/sleep", "body": {"model": "m"}, **KEY}, (404, "unknown_url", "auth:acme", None)),
    "an unknown coding": (
        {"body": b"x", "content_encoding": "lzma", **KEY},
        (415, "unsupported_content_encoding", "auth:acme", None),
    ),
    "too large": ({"body": b"x" * 2000, **KEY}, (413, "request_too_large", "auth:acme", None)),
    "too large when it is decoded": (
        {"body": gzip.compress(b"x" * 2000), "content_encoding": "gzip", **KEY},
        (413, "request_too_large", "auth:acme", None),
    ),
    "another method": ({"method": "GET", **KEY}, (405, "method_not_allowed", "auth:acme", None)),
    "a page without a key": ({"path": "/maitred/state", "method": "GET"}, (401, "missing_api_key", None, None)),
    "a page of the operator": (
        {"path": "/admin/config", "method": "GET", **KEY},
        (403, "admin_forbidden", "auth:acme", None),
    ),
}


@pytest.mark.parametrize("given", [None, "of-the-client"])
@pytest.mark.parametrize(("request_", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_says_what_is_known_of_it(request_: dict[str, Any], expected: tuple[Any, ...], given: str | None) -> None:
    output = Lines()

    async def scenario() -> None:
        async with world(access_log=True, log_output=output, max_body_bytes=1000, **KEYS) as w:
            headers = {} if given is None else {"x_request_id": given}
            arguments = {"path": CHAT, **request_, **headers}
            status, answer, _ = await w.request(arguments.pop("path"), **arguments)
            (line,) = output.lines
            assert status == expected[0]
            assert told(line)[:1] + told(line)[2:4] == expected[:1] + expected[2:]
            assert expected[1] is None or line["error"] == expected[1]
            assert answer["x-request-id"] == line["id"]
            assert line["id"] == given if given else line["id"].startswith("maitred-")

    run(scenario())


def test_refusals_of_admission_say_it_too() -> None:
    output = Lines()

    async def scenario() -> None:
        admission = {"classes": {"default": {"queue_size": 1, "queue_timeout_secs": 0.05}}}
        async with world(Backend(gated), slots=1, admission=admission, access_log=True, log_output=output, **KEYS) as w:
            held = await w.start_request(**KEY, x_request_id="held")
            await w.wait_until(lambda: w.state.in_flight)
            waits = await w.start_request(**KEY, x_request_id="waits")
            await w.wait_until(lambda: w.state.waiting)
            assert (await w.request(**KEY, x_request_id="full"))[0] == 429
            assert (await waits.read_response())[1]["x-request-id"] == "waits"
            gated.open.set()
            assert (await held.read_response())[0] == 200

    gated = GatedAnswer()
    run(scenario())
    assert list(map(told, output.lines)) == [
        (429, "scheduler_queue_full", "auth:acme", "m", "full"),
        (408, "scheduler_queue_timeout", "auth:acme", "m", "waits"),
        (200, None, "auth:acme", "m", "held"),
    ]


def test_a_body_that_its_connection_refuses_is_told_with_the_status_of_the_answer() -> None:
    """The length of a chunk is no number; the client reads a 400."""
    output = Lines()

    async def scenario() -> None:
        async with world(access_log=True, log_output=output, **KEYS) as w:
            connection = await w.connect()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer k-acme\r\nx-request-id: r\r\n"
            connection.writer.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n")
            await w.wait_until(lambda: w.state.parked_body_bytes)
            connection.writer.write(b"nonsense\r\n")
            status, headers, _ = await connection.read_response()
            assert (status, headers["x-request-id"]) == (400, "r")
            await w.wait_until(lambda: output.lines)

    run(scenario())
    assert list(map(told, output.lines)) == [(400, "bad_request", "auth:acme", None, "r")]


@pytest.mark.parametrize("path", [CHAT, "/admin/drain", "/programs/release"])
def test_a_client_that_leaves_while_its_body_comes(path: str, caplog: pytest.LogCaptureFixture) -> None:
    output = Lines()

    async def scenario() -> None:
        async with world(access_log=True, log_output=output, programs={"backend_capacity_tokens": 1_000}) as w:
            connection = await w.connect()
            head = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
            connection.writer.write(head % path.encode())
            assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.disconnect()
            await w.wait_until(lambda: output.lines)

    run(scenario())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    (line,) = output.lines
    assert (line["status"], line["tenant"], line["id"][:8]) == (499, "ip:127.0.0.1", "maitred-")


def test_attempts_tell_what_was_preempted_from_what_was_failed_over() -> None:
    output = Lines()

    async def scenario() -> None:
        admission = {"classes": {"interactive": {"can_preempt": True}}, "on_preempt": "retry"}
        backend = Backend(gated)
        async with world(backend, slots=1, admission=admission, access_log=True, log_output=output) as w:
            victim = await w.start_request(x_smg_priority="bulk", x_request_id="victim")
            await w.wait_until(lambda: backend.received)
            urgent = await w.start_request(x_smg_priority="interactive", x_request_id="urgent")
            await w.wait_until(lambda: len(backend.received) == 2)
            gated.open.set()
            assert (await urgent.read_response())[0] == 200
            assert (await victim.read_response())[0] == 200
        async with world(Backend(fails), Backend(fails), Backend(), access_log=True, log_output=output) as w:
            for name in "abc":
                assert (await w.request(x_request_id=name))[0] == 200

    async def fails(received: BackendRequest) -> None:
        raise ConnectionError

    gated = GatedAnswer()
    run(scenario())
    names = ("attempts", "failed_attempts", "preemptions")
    found = {line["id"]: tuple(line.get(name) for name in names) for line in output.lines}
    assert (found["urgent"], found["victim"]) == ((1, None, None), (2, None, 1))
    failed_over = [found[name] for name in "abc" if found[name] != (1, None, None)]
    assert failed_over
    assert all(failed and attempts == failed + 1 and preempted is None for attempts, failed, preempted in failed_over)


@pytest.mark.parametrize("given", [None, "job-17"])
@pytest.mark.parametrize("programs", [None, {}])
def test_one_id_joins_answer_access_log_recording_and_decisions(
    tmp_path: Path, given: str | None, programs: dict[str, Any] | None
) -> None:
    output, record, decisions = Lines(), tmp_path / "r.csv", tmp_path / "d.jsonl"

    async def scenario() -> str:
        written = {"record": str(record), "decision_log": str(decisions)}
        async with world(Backend(own_id), programs=programs, access_log=True, log_output=output, **written) as w:
            await w.request()  # of which the number differs
            headers = {} if given is None else {"x_request_id": given}
            status, answer, _ = await w.request(**headers)
            assert status == 200
            return answer["x-request-id"]

    async def own_id(received: BackendRequest) -> None:
        await received.send(
            b"HTTP/1.1 200 OK\r\nx-request-id: of-the-engine\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
        )

    answered = run(scenario())
    assert answered == given if given else answered.startswith("maitred-")
    assert output.lines[-1]["id"] == answered
    with record.open(newline="") as file:
        assert [row["request_id"] for row in csv.DictReader(file)][-1] == answered
    lines = [msgspec.json.decode(line) for line in decisions.read_bytes().splitlines()]
    (submitted,) = (line for line in lines if line.get("client_id") == answered)
    assert submitted["input"] == "submit"
    about = [line["decision"]["action"] for line in lines if line.get("decision", {}).get("subject") == submitted["id"]]
    assert about == ["admit"]
    ends = [line for line in lines if line.get("input") == "release" and line["id"] == submitted["id"]]
    assert len(ends) == 1
    if programs is not None:
        begun = [line["request"] for line in lines if line.get("input") == "begin"]
        assert begun[-1]["client_id"] == answered
        assert begun[-1]["id"] == submitted["id"]
    again: list[bytes] = []
    replay(decisions.read_bytes().splitlines(), DecisionLog(again.append))
    assert any(msgspec.json.decode(line).get("client_id") == answered for line in again)


async def _scrape(w: GatewayWorld, *names: str) -> list[str]:
    page = (await w.request("/metrics", method="GET"))[2].decode()
    return [line for line in page.splitlines() if line.startswith(names)]


def test_refusals_and_tokens_have_the_tenant() -> None:
    """The first `tenant_metric_top_n` tenants by name, and the others together."""

    async def scenario() -> None:
        settings: dict[str, Any] = {"trust_tenant_header": True, "tenant_metric_top_n": 2}
        async with world(Backend(usage), **settings) as w:
            for tenant in "abcd":
                assert (await w.request(x_smg_tenant_id=tenant))[0] == 200
                assert (await w.request(body={"model": "no"}, x_smg_tenant_id=tenant))[0] == 404
            refused = await _scrape(w, "maitred_tenant_refused_total")
            tokens = await _scrape(w, "maitred_tenant_prompt_tokens_total", "maitred_tenant_generation_tokens_total")
            for label, count in (("header:a", 1), ("header:b", 1), ("other", 2)):
                assert f'maitred_tenant_refused_total{{code="model_not_found",tenant="{label}"}} {count:.1f}' in refused
                labels = f'model="m",source="reported",tenant="{label}"'
                assert f"maitred_tenant_prompt_tokens_total{{{labels}}} {21.0 * count}" in tokens
                assert f"maitred_tenant_generation_tokens_total{{{labels}}} {3.0 * count}" in tokens
            (whole,) = await _scrape(w, 'maitred_prompt_tokens_total{class="default",model="m",source="reported"}')
            assert whole.endswith(" 84.0")
            assert not any("header:c" in line for line in (*refused, *tokens))

    async def usage(received: BackendRequest) -> None:
        await received.send(whole(b'{"usage":{"prompt_tokens":21,"completion_tokens":3}}'))

    run(scenario())
