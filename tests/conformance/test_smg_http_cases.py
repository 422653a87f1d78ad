"""The cases of SMG's own tests that live at the level of HTTP, restated as scenarios for the real gateway.

One slot and an engine that answers when it is told to, unless a case says otherwise. What the recorded scenarios show already
is not repeated: a queue timeout (s06), preemption over keep-alive (s07), promotion into the only slot, reserved for another
class (s18), a scheduler that serves with and without the header (s01), and one that falls back because more is reserved than
there is, and serves (s21).
"""

from functools import partial

import msgspec
import pytest
from smg_conformance.gateway import in_this_process
from smg_conformance.runner import run
from smg_conformance.scenario import Base

import virtual_time

CLASS = {
    "reserved_floor": 0,
    "reserved_per_slot": 0.0,
    "queue_size": 8,
    "queue_timeout_secs": 20,
    "starvation_threshold_secs": 600,
    "can_preempt": False,
}
BASE = Base(
    classes={
        "system": {**CLASS, "can_preempt": True},
        "interactive": {**CLASS, "can_preempt": True},
        "default": CLASS,
        "bulk": CLASS,
    },
    default_max_class="system",
)
CASES: dict[str, dict[str, object]] = {}


def send(at, name, priority=None, **more):
    return {"at": at, "do": "send", "name": name, "x-smg-priority": priority, **more}


def held(at, name, priority=None, **more):
    return send(at, name, priority, engine="hold", **more)


def release(at):
    return {"at": at, "do": "release_held"}


def case(name, *timeline, config=None, **expect):
    CASES[name] = {
        "id": name,
        "kind": "match",
        "title": name,
        "engines": [{"max_running_requests": 1}],
        "config": config or {},
        "timeline": list(timeline),
        "expect": expect,
    }


def refused(status, code):
    headers = {"X-SMG-Error-Code": code, "Retry-After": "2", "X-SMG-Preempted": None, "Content-Type": "application/json"}
    return {"status": status, "headers": headers}


PREEMPTED = {
    "status": 503,
    "headers": {"X-SMG-Error-Code": "scheduler_preempted", "Retry-After": "1", "X-SMG-Preempted": "true"},
    "body": {
        "error": {
            "type": "server_error",
            "code": "scheduler_preempted",
            "message": "request preempted by higher-priority traffic",
            "param": None,
        }
    },
}
SERVED = {"status": 200, "body_from": "engine"}
LEGACY = {"scheduler": False, "max_concurrent_requests": 1}

case(
    "a class without a queue: 429 at once, and the one that holds the slot is served",
    held(0, "held"),
    send("when held runs", "overflow"),
    release("after overflow"),
    config={"classes": {"default": {"queue_size": 0}}},
    overflow=refused(429, "scheduler_queue_full"),
    held=SERVED,
    metrics={"admit_total{default}": {"admitted": 1, "rejected_queue_full": 1}},
)
case(
    "preemption: bulk reads its 503 whole, over a connection that is to be closed, and after nothing but the engine's head",
    held(0, "victim", "bulk", connection="close"),
    send("when victim runs", "vip", "interactive"),
    send("after vip", "stream", "bulk", stream=True, engine_delay_s=5, engine_head_delay_s=0),
    send("0.2 s after stream runs", "vip2", "interactive"),
    **{"victim and stream": PREEMPTED, "vip and vip2": {**SERVED, "within_s": 0.5}},
    engine={"order": ["victim", "vip", "stream", "vip2"], "disconnects": 2},
    metrics={"preemption_total": {"bulk by interactive": 2}},
)
case(
    "a tenant capped at default that asks for system preempts nobody: 429, and bulk is untouched",
    held(0, "bulk", "bulk"),
    send("when bulk runs", "capped", "system"),
    release("after capped"),
    config={"default_max_class": "default", "classes": {"default": {"queue_size": 0}}},
    capped=refused(429, "scheduler_queue_full"),
    bulk=SERVED,
    metrics={"preemption_total": 0, "clamp_total{requested_class=system,effective_class=default}": 1},
)
case(
    "one after the other: the slot is free when the answer has drained",
    send(0, "first"),
    send("after first", "second"),
    first=SERVED,
    second=SERVED,
    metrics={"admit_total{default}": {"admitted": 2}, "queue_wait_seconds_count": 0},
)
case(
    "the only victim has shown its client data: the higher class waits and times out, the stream goes on",
    send(0, "stream", "bulk", stream=True, engine_chunks=4, engine_gap_s=0.6),
    send("after the first chunk of stream", "vip", "interactive"),
    config={"classes": {"interactive": {"queue_timeout_secs": 1}}},
    vip=refused(503, "scheduler_queue_timeout"),
    stream={"status": 200, "complete": True, "data_lines": 5},
    metrics={"preemption_total": 0},
)
case(
    "a body that is no JSON: 400 without a slot, also when there is none",
    held(0, "held"),
    send("when held runs", "broken", body="{"),
    release("after broken"),
    broken={"status": 400},
    held=SERVED,
    engine_order=["held"],
    metrics={"admit_total{default}": {"admitted": 1}},
)
case(
    "more capacity drains the queue",
    held(0, "held"),
    send(0.05, "queued"),
    {"at": 0.3, "do": "add_engine", "max_running_requests": 1},
    release("after queued"),
    queued=SERVED,
    held=SERVED,
    engine_order=["held", "queued"],
)
case(
    "no scheduler and no limit: everybody is served, and the header means nothing",
    held(0, "a", "bulk"),
    send("when a runs", "b", "system"),
    release("after b"),
    config={"scheduler": False},
    all=SERVED,
    mode="legacy",
    metrics={"clamp_total": 0, "preemption_total": 0},
)
case(
    "legacy: a stream holds its place to the last byte, or until its client leaves",
    send(0, "whole", stream=True, engine_chunks=3, engine_gap_s=0.2),
    send("after the first chunk of whole", "left", stream=True, engine_chunks=99, engine_gap_s=0.2, client_leaves_after_s=2.0),
    send("when left runs", "next"),
    config=LEGACY,
    whole={"status": 200, "complete": True},
    left={"starts_after": "end of whole"},
    next={**SERVED, "starts_after": "end of left"},
    engine={"order": ["whole", "left", "next"], "disconnects": 1},
)
case(
    "legacy: exactly queue_size wait, first come first served; the next is turned away",
    held(0, "held"),
    send(0.1, "q1", engine_delay_s=0.1),
    send(0.2, "q2", engine_delay_s=0.1),
    send(0.3, "overflow"),
    release(0.5),
    config={**LEGACY, "queue_size": 2},
    overflow=refused(429, "admission_queue_full"),
    engine_order=["held", "q1", "q2"],
    metrics={"admission_queue_depth": 0, "http_rate_limit_total": {"allowed": 3, "rejected": 1}},
    **{"metrics_at_0.4s": {"admission_queue_depth": 2, "admission_inflight": 1, "admission_queue_rejected_total{full}": 1}},
)
case(
    "legacy: no queue, so 429 at once, which is no queue's rejection",
    held(0, "held"),
    send("when held runs", "overflow"),
    release("after overflow"),
    config={**LEGACY, "queue_size": 0},
    overflow=refused(429, "admission_queue_full"),
    metrics={"admission_queue_rejected_total": 0},
)


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    async def play():
        launch = partial(in_this_process, machine=virtual_time.MACHINE.get())
        return [result async for result in run([msgspec.json.encode(CASES[name])], BASE, launch=launch)]

    (result,) = virtual_time.run(play())
    assert result.passed, "\n".join([*map(str, result.failures), *result.details])
