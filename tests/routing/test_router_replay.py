"""The decision log of routers: a router that is shown again what it read chooses the same, byte for byte."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from maitred.core.contracts import InstanceView
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass, Request
from maitred.kv.block_hashes import PromptTokenIds
from maitred.replay import replay
from maitred.routing import RoutingConfig, check_policy, open_router

POLICIES = (
    "round-robin",
    "least-loaded",
    "least-loaded(load=effective)",
    "power-of-two",
    "random",
    "weighted",
    "session-affinity",
    "prefix-hash",
)


class Engine:
    """An instance with numbers that change between two choices."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.in_flight = 0
        self.waiting: int | None = 0
        self.running: int | None = 0
        self.kv_usage: float | None = 0.0
        self.kv_tokens: int | None = 4000

    def cached_blocks(self, request: Request) -> int:
        return request.id % (self.index + 2)


def random_log(policy: str, seed: int) -> tuple[list[bytes], list[int]]:
    """Return the log of a router with 300 inputs, and the instances that it chose."""
    draw, lines, chosen = Random(seed), list[bytes](), list[int]()
    router = open_router(RoutingConfig(policy=policy), seed, DecisionLog(lines.append), now=3)
    engines = [Engine(index) for index in range(4)]
    fleets: list[list[InstanceView]] = [list(engines), list(engines[:2]), list(engines[1:])]
    under_way: list[tuple[Request, int]] = []
    for number in range(300):
        now = 10 * number
        for engine in engines:
            engine.waiting, engine.running = draw.choice(((None, None), (1, draw.randrange(9)), (0, 3)))
            engine.kv_usage = draw.random()
        if under_way and draw.random() < 0.4:
            request, index = under_way.pop(draw.randrange(len(under_way)))
            engines[index].in_flight -= 1
            router.on_request_end(request, index, now)
            continue
        fleet = draw.choice(fleets) if draw.random() < 0.9 else list(draw.choice(fleets))  # a new object now and then
        tokens = tuple(range(draw.choice((40, 64, 200))))
        request = Request(
            id=number,
            arrival=now,
            prompt_tokens=len(tokens),
            program=f"p{draw.randrange(5)}",
            priority_class=PriorityClass(draw.randrange(4)),
            prefix=draw.choice((None, PromptTokenIds(tokens))),
        )
        choice = router.choose(request, fleet, now)
        chosen.append(choice.instance)
        engines[choice.instance].in_flight += 1
        under_way.append((request, choice.instance))
        check_policy(router)
    return lines, chosen


@pytest.mark.parametrize("policy", POLICIES)
def test_a_log_replays_byte_for_byte(policy: str) -> None:
    lines, chosen = random_log(policy, 1)
    again: list[bytes] = []
    replay(lines, DecisionLog(again.append))
    assert again == lines
    said = [entry["decision"]["instance"] for line in lines if "decision" in (entry := msgspec.json.decode(line))]
    assert said == chosen
    assert len(set(chosen)) > 1


def test_a_line_has_what_the_router_looks_at_and_no_more() -> None:
    first = next(entry for line in random_log("least-loaded", 2)[0] if "fleet" in (entry := msgspec.json.decode(line)))
    assert {*first["instances"][0]} == {"index"}
    assert "prefix" not in first or not first["prefix"]
    loaded = [entry for line in random_log("weighted", 2)[0] if "fleet" in (entry := msgspec.json.decode(line))]
    assert any("kv_usage" in seen for entry in loaded for seen in entry["instances"])


def test_a_choice_that_was_refused_is_in_the_log_and_is_refused_again() -> None:
    lines, again = list[bytes](), list[bytes]()
    router = open_router(RoutingConfig(), 1, DecisionLog(lines.append))
    with pytest.raises(ValueError, match="no instance"):
        router.choose(Request(id=1, arrival=0, prompt_tokens=1), [], 5)
    assert b'"raised":"ValueError"' in lines[-1]
    replay(lines, DecisionLog(again.append))
    assert again == lines
    quiet = [line.replace(b'"raised":"ValueError",', b"") for line in lines]
    with pytest.raises(ValueError, match="no instance"):
        replay(quiet, DecisionLog(again.append))


def test_a_log_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="the log has version 4"):
        replay([b'{"room":"log","version":4}'], DecisionLog(lambda line: None))
