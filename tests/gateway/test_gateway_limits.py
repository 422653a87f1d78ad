"""Limits of requests and tokens, as clients of a gateway and of several see them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from shared_world import shared_world
from world import Backend, BackendRequest, run, whole, world

from maitred.core.units import SECOND
from maitred.gateway.limit_headers import format_span

USAGE = b'{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}}'
ASKED = {"model": "m", "max_tokens": 100, "messages": []}


async def answer(received: BackendRequest) -> None:
    await received.send(whole(USAGE, headers=b"x-ratelimit-limit-requests: 9\r\nx-ratelimit-limit-tokens: 9\r\n"))


def limits(headers: dict[str, str]) -> dict[str, str]:
    return {name.removeprefix("x-ratelimit-"): value for name, value in headers.items() if name.startswith("x-ratelimit-")}


def test_clients_are_told_of_their_limits_and_refused_beyond() -> None:
    async def scenario() -> None:
        rules = [{"requests_per_minute": 3, "tokens_per_minute": 170}]
        async with world(Backend(answer), admission={"limits": rules}) as w:
            status, headers, _ = await w.request(body=ASKED)
            told = limits(headers)
            assert status == 200
            assert told.pop("reset-requests") == told.pop("reset-tokens")
            reserved = 170 - int(told.pop("remaining-tokens"))
            assert 100 < reserved < 130
            assert told == {"limit-requests": "3", "limit-tokens": "170", "remaining-requests": "2"}
            await w.wait_until_idle()
            second = limits((await w.request(body=ASKED))[1])
            assert int(second["remaining-tokens"]) == 170 - 30 - reserved  # of the first one only what it had
            await w.wait_until_idle()
            status, headers, body = await w.request(body={**ASKED, "max_tokens": 101})
            error = msgspec.json.decode(body)["error"]
            assert (status, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
            assert error["message"].startswith("Rate limit reached for tokens per minute: limit 170, used 60, requested ")
            assert headers["retry-after"] == "59"
            assert "x-should-retry" not in headers
            assert limits(headers)["remaining-tokens"] == "110"

    run(scenario())


@pytest.mark.parametrize("rule", [{"requests_per_day": 1}, {"tokens_per_minute": 50}])
def test_nothing_is_to_come_again_by_itself_where_that_takes_long_or_for_ever(rule: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with world(Backend(answer), admission={"limits": [rule]}) as w:
            small = {"model": "m", "max_tokens": 1, "messages": []}
            assert (await w.request(body=small))[0] == 200
            status, headers, _ = await w.request(body=ASKED)
            assert (status, headers["x-should-retry"]) == (429, "false")
            assert headers.get("retry-after") == ("59" if "requests_per_day" in rule else None)

    run(scenario())


def test_without_limits_an_engine_is_heard() -> None:
    async def scenario() -> None:
        async with world(Backend(answer)) as w:
            assert limits((await w.request(body=ASKED))[1]) == {"limit-requests": "9", "limit-tokens": "9"}
            assert len(w.gateway.core._agenda.reserved) == 0

    run(scenario())


def test_limits_are_exact_over_gateways() -> None:
    async def scenario() -> None:
        rules = [{"requests_per_minute": 5}]
        async with shared_world(Backend(answer), admission={"limits": rules}) as w:
            answers = await asyncio.gather(*(w.request(ASKED) for _ in range(12)))
            assert sorted(status for status, _, _ in answers) == [200] * 5 + [429] * 7
            left = [limits(headers)["remaining-requests"] for status, headers, _ in answers if status == 200]
            assert sorted(left) == ["0", "1", "2", "3", "4"]
            refused = [limits(headers) for status, headers, _ in answers if status == 429]
            assert {told["remaining-requests"] for told in refused} == {"0"}

    run(scenario())


@pytest.mark.parametrize(
    ("secs", "said"),
    [(0, "0ms"), (0.1201, "121ms"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s"), (86_399.5, "24h0m0s"), (3_725, "1h2m5s")],
)
def test_spans_are_written_as_openai_writes_them(secs: float, said: str) -> None:
    assert format_span(round(secs * SECOND)) == said
