"""The SDKs of node through a gateway: what they read, which errors they throw, what they send again, and after which pause.

The packages come by npm into a folder that is kept, `build/node-sdks`, or the one that MAITRED_NODE_SDKS names. Without npm or
its registry the test is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from sdk_engine import TEXT, SdkEngine
from world import Backend, GatewayWorld, world

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("MAITRED_NODE_SDKS") or ROOT / "build" / "node-sdks")
PACKAGES = ("openai@6.49.0", "@anthropic-ai/sdk@1.14.0", "ai@6.0.326", "@ai-sdk/openai@3.0.141")
SCRIPT = "node_sdks.mjs"
CUT = "the upstream closed the connection in the middle of its response"
SDKS = ("openai chat", "openai responses", "anthropic messages", "ai chat")


@pytest.fixture(scope="module")
def packages() -> Path:
    """The folder with the packages."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node's SDKs need node and npm, which are not here")
    done = FOLDER / " ".join(PACKAGES).replace("/", "_")
    if not done.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(FOLDER), *PACKAGES]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=90, cwd=FOLDER)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"node's SDKs cannot be installed by npm: {error}")
        done.touch()
    shutil.copy(Path(__file__).parent / SCRIPT, FOLDER / SCRIPT)
    return FOLDER


@contextlib.asynccontextmanager
async def held(**settings: Any) -> AsyncIterator[GatewayWorld]:
    """Run a gateway whose first request is under way until the end."""
    engine = SdkEngine()
    async with world(Backend(engine), api_key="k", **settings) as w:
        asked = {"model": "m", "messages": [{"role": "user", "content": "slow"}], "x": "x" * 35_000}
        holder = await w.start_request(asked, authorization="Bearer k", x_program_id="holder")
        await w.wait_until(lambda: w.backends[0].received)
        try:
            yield w
        finally:
            engine.gate.set()
            await holder.read_response()


async def release_when_all_wait(w: GatewayWorld, count: int) -> None:
    programs: Any = w.gateway.programs
    await w.wait_until(lambda: programs.core.num_waiting == count)
    _, _, listed = await w.request("/programs", b"", "GET", authorization="Bearer k")
    for program in msgspec.json.decode(listed):
        if program.startswith("waiting"):
            await w.request("/programs/release", {"program_id": program}, authorization="Bearer k")


async def run_script(folder: Path, *worlds: GatewayWorld) -> dict[str, str]:
    names = ("plain", "full", "late", "programs")
    told = {name: {"url": w.url, "key": "k"} for name, w in zip(names, worlds, strict=True)}
    text = msgspec.json.encode(told).decode()
    pipe = asyncio.subprocess.PIPE
    node = await asyncio.create_subprocess_exec("node", SCRIPT, text, cwd=folder, stdout=pipe, stderr=pipe)
    out, errors = await node.communicate()
    assert node.returncode == 0, errors.decode()
    found: dict[str, str] = msgspec.json.decode(out)
    return found


def test_what_nodes_sdks_make_of_a_gateway(packages: Path) -> None:
    async def scenario() -> dict[str, str]:
        none, soon = ({"classes": {"default": key}} for key in ({"queue_size": 0}, {"queue_timeout_secs": 0.02}))
        async with (
            world(Backend(SdkEngine()), api_key="k") as plain,
            held(slots=1, admission=none) as full,
            held(slots=1, admission=soon) as late,
            held(programs={"backend_capacity_tokens": 10_000}) as programs,
        ):
            releases = asyncio.create_task(release_when_all_wait(programs, 3))
            found = await run_script(packages, plain, full, late, programs)
            await releases
        return found

    found = uvloop.run(asyncio.wait_for(scenario(), 100))  # node alone may take 10 s to start
    for case in ("whole", "stream"):
        assert {found.pop(f"{case}: {sdk}") for sdk in SDKS} == {TEXT}
    error = msgspec.json.encode({"type": "error", "error": {"type": "api_error", "message": CUT}}).decode()
    assert found == {
        "wrong key: openai chat": "AuthenticationError 401",
        "wrong key: openai responses": "AuthenticationError 401",
        "wrong key: anthropic messages": "AuthenticationError 401",
        "wrong key: ai chat": "APICallError 401",
        "cut: openai chat": f"APIError {CUT}",
        "cut: openai responses": f"Error failed: {CUT}",
        "cut: anthropic messages": f"APIError {error}",
        "cut: ai chat": f"Object {CUT}",
        "queue full: openai chat": "RateLimitError 429, again in time",
        "queue full: openai responses": "RateLimitError 429, again in time",
        "queue full: anthropic messages": "RateLimitError 429, again in time",
        "queue full: ai chat": "APICallError 429, again in time",
        # `x-should-retry: false` stops all but the AI SDK.
        "queue timeout: openai chat": "APIError 408",
        "queue timeout: openai responses": "APIError 408",
        "queue timeout: anthropic messages": "RequestTimeoutError 408",
        "queue timeout: ai chat": "APICallError 408, again in time",
        "released: openai chat": "APIError 499",
        "released: openai responses": "APIError 499",
        "released: anthropic messages": "ClientClosedRequestError 499",
    }
