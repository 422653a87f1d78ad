"""Models that backends list and drop: there may be many, they may change at each poll, and what was counted stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from world import Backend, GatedAnswer, run, world

from maitred.core.errors import JSON_ERRORS
from maitred.scheduler.backends import served_models
from maitred.scheduler.engines.polling import read_models
from maitred.testing.world.invariants import check_replay


def test_of_a_backend_that_lists_thousands_the_first_are_served(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        backend = Backend(models=tuple(f"m{n}" for n in range(10_000)))
        async with world(backend, max_models=20) as w:
            assert len(w.state.pools) == len(w.state.models) == 20
            assert (await w.request(body={"model": "m19"}))[0] == 200
            assert (await w.request(body={"model": "m20"}))[0] == 404
            polls = backend.health_polls
            await w.wait_until(lambda: backend.health_polls > polls + 2)

    run(scenario())
    said = [record.message for record in caplog.records if "lists" in record.message]
    assert len(said) == 1
    assert said[0].endswith("lists 10000 models, and gateway.max_models is 20: the others are not served")


def test_a_name_of_a_model_that_is_too_long_is_none() -> None:
    async def scenario() -> None:
        async with world(Backend(models=("x" * 1_024, "y" * 1_025))) as w:
            assert list(w.state.models) == ["x" * 1_024]

    run(scenario())


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e400", b"1" + b"0" * 5_000])
def test_a_limit_that_is_no_number_is_not_known(number: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        backend = Backend()
        backend.in_each_model = b'"max_model_len":%s,"top":18446744073709551617,"share":0.5,' % number
        async with world(backend) as w:
            polls = backend.health_polls
            await w.wait_until(lambda: backend.health_polls > polls + 2)
            (model,) = json.loads((await w.request("/v1/models", b"", "GET"))[2])["data"]
            assert (model["max_model_len"], model["top"], model["share"]) == (None, 2**64 + 1, 0.5)

    run(scenario())
    assert sum("a number of its /v1/models is none, and counts as not given" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("wrong", [b'"\\ud800"', b"[" * 5_000, b"1,", b"\xff"])
def test_what_is_more_than_a_wrong_number_is_refused(wrong: bytes) -> None:
    with pytest.raises(JSON_ERRORS):
        read_models(b'{"data": [{"id": "m", "limit": NaN, "name": %s}]}' % wrong)


@pytest.mark.parametrize("mode", ["priority", "legacy", "off", "flow-control"])
def test_models_that_change_at_each_poll_leave_nothing_but_what_they_counted(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_models, "MAX_FORMER_MODELS", 3)

    async def scenario() -> None:
        backend = Backend(models=("m0",))
        async with world(backend, admission={"mode": mode}, decision_log=str(tmp_path / "log")) as w:
            for n in range(6):
                backend.models = (f"m{n}",)
                await w.wait_until(lambda n=n: list(w.state.models) == [f"m{n}"])
                assert (await w.request(body={"model": f"m{n}"}))[0] == 200
            assert list(w.state.pools) == (["*"] if mode in ("legacy", "off") else ["m5"])
            # The last three are remembered: their clients may come back.
            assert [(await w.request(body={"model": f"m{n}"}))[0] for n in range(6)] == [404, 404, 503, 503, 503, 200]
            assert w.state.classes["default"].completed == 7
            page = (await w.request("/metrics", b"", "GET"))[2].decode().splitlines()
            assert 'maitred_scheduler_arrivals_total{class="default"} 7.0' in page

    run(scenario())
    log = (tmp_path / "log").read_bytes()
    assert list(check_replay(log.splitlines(keepends=True), may_lack_lines=False)) == []
    assert log.count(b'"input":"forget"') == 5


def test_a_model_with_requests_stays_until_they_have_ended() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        backend = Backend(gated, models=("a",))
        async with world(backend, slots=1) as w:
            clients = [await w.start_request({"model": "a"}) for _ in range(2)]
            await w.wait_until(lambda: (w.state.in_flight, w.state.waiting) == (1, 1))
            backend.models = ("b",)
            await w.wait_until(lambda: "b" in w.state.pools)
            assert set(w.state.pools) == {"a", "b"}
            gated.open.set()
            assert (await clients[0].read_response())[0] == 200
            clients[1].disconnect()
            await w.wait_until(lambda: set(w.state.pools) == {"b"})
            assert w.state.classes["default"].arrived == 2

    run(scenario())


def test_a_model_of_a_backend_that_is_down_has_not_vanished() -> None:
    async def scenario() -> None:
        first, second = Backend(models=("a",)), Backend(models=("b",))
        async with world(first, second) as w:
            await first.stop()
            await w.wait_until(lambda: not w.state.backends[0].healthy)
            polls = second.health_polls
            await w.wait_until(lambda: second.health_polls > polls + 2)
            assert set(w.state.pools) == {"a", "b"}
            assert (await w.request(body={"model": "a"}))[0] == 503

    run(scenario())
