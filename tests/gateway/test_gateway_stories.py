"""What a gateway says of its decisions: in every answer, to a client that asks, and at /admin/requests/ID."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from world import ANSWER, Backend, BackendRequest, GatedAnswer, run, whole, world

from maitred.replay import ROOMS
from maitred.replay.story import story_data
from maitred.replay.why import tell

ASKS = {"x-maitred-decision": "1", "x-request-id": "job-1", "x-smg-priority": "system"}


def test_an_answer_says_how_long_its_request_has_waited_and_why_if_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario() -> None:
        admission = {"default_max_class": "default"}
        async with world(Backend(gate := GatedAnswer()), slots=1, admission=admission, decision_log=str(log)) as w:
            first = asyncio.create_task(w.request())
            await asyncio.sleep(0.1)
            second = asyncio.create_task(w.request(**ASKS))
            await asyncio.sleep(0.25)
            gate.open.set()
            _, headers, _ = await first
            assert headers["x-maitred-queue-ms"] == "0"
            assert "x-maitred-decision" not in headers
            _, headers, _ = await second
            assert 240 <= int(headers["x-maitred-queue-ms"]) <= 260
            assert headers["x-maitred-decision"] == (
                "class=default; asked=system; queued=no_slot; admitted=slot_free; routed=least_loaded"
            )
            status, _, body = await w.request("/admin/requests/job-1", method="GET")
            assert status == 200
            (story,) = json.loads(body)["requests"]
            assert story["class"]["asked"] == "system"
            assert 240 <= story["queue_ms"] <= 260
            assert (await w.request("/admin/requests/nobody", method="GET"))[0] == 404

    run(scenario())
    lines = log.read_bytes().splitlines(keepends=True)
    ((story,), _) = tell([("log", number, line) for number, line in enumerate(lines, 1)], ROOMS, "job-1")
    assert story_data(story)["class"] == {"asked": "system", "given": "default", "rule": story.class_rule}
    assert story_data(story)["waits"][0]["reason"] == "no_slot"


def test_a_refusal_says_it_too() -> None:
    admission = {"classes": {"default": {"queue_timeout_secs": 0.5}}, "default_max_class": "default"}

    async def scenario() -> None:
        async with world(Backend(gate := GatedAnswer()), slots=1, admission=admission) as w:
            first = asyncio.create_task(w.request())
            await asyncio.sleep(0.1)
            status, headers, _ = await w.request(**ASKS)
            assert (status, int(headers["x-maitred-queue-ms"]) // 10) == (408, 50)
            assert headers["x-maitred-decision"] == "class=default; asked=system; queued=no_slot; rejected=queue_timeout"
            status, headers, _ = await w.request(body={"model": "nobody"})
            assert (status, headers["x-maitred-queue-ms"]) == (404, "0")
            status, _, body = await w.request("/admin/requests/job-1", method="GET")
            assert (status, json.loads(body)["error"]["code"]) == (404, "no_stories")
            gate.open.set()
            await first

    run(scenario())


def test_a_backend_that_is_a_maitred_is_not_passed_on() -> None:
    async def respond(received: BackendRequest) -> None:
        assert b"x-maitred-decision" not in received.head
        await received.send(whole(ANSWER, headers=b"x-maitred-queue-ms: 77\r\nx-maitred-decision: its own\r\n"))

    async def scenario() -> None:
        async with world(Backend(respond)) as w:
            _, headers, _ = await w.request()
            assert headers["x-maitred-queue-ms"] == "0"
            assert "x-maitred-decision" not in headers
            _, headers, _ = await w.request(**ASKS)
            assert headers["x-maitred-decision"].startswith("class=")

    run(scenario())
