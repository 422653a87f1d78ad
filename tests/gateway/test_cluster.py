"""Gateways and schedulers that are applications of their own, over TCP: who leads, and what happens when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cluster_world import SECRET, SLOTS, HeldAnswers, cluster
from world import admission_config, run, run_on_sockets

from maitred.core.errors import ConfigError
from maitred.gateway.cluster.link_setup import connecting_context, link_secret, listening_context
from maitred.programs import ProgramsConfig
from maitred.scheduler.interface import Dialer, KnownAddresses, LinkAddress
from maitred.scheduler.link_config import SchedulerConfig
from maitred.scheduler.sharing import link_client


def test_the_next_leader_grants_what_is_free_and_streams_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = HeldAnswers()
        async with cluster(engine, 2, 3, election=f"file:{tmp_path}/leader") as c:
            await c.linked()
            first = c.leader()
            assert first is c.schedulers[0]
            streams = [await c.start_request(at) for at in (0, 1)]
            await c.until(lambda: engine.now == SLOTS)
            waiting = [await c.start_request(at) for at in (0, 1, 2)]
            await c.kill(first)
            await c.until(lambda: c.leader() is c.schedulers[0])
            await c.linked()
            assert c.schedulers[0].host is not None
            assert c.schedulers[0].host.leadership.epoch == 2
            assert (await c.page("/ready", 2))["cluster"]["epoch"] == 2
            shown = {family.name: family for family in c.schedulers[0].metric_families()}
            assert sum(each.value for each in shown["maitred_cluster_gateway_slots"].samples) == SLOTS
            assert {each.labels["mode"]: each.value for each in shown["maitred_cluster_mode"].samples}["standby"] == 0
            shown = {family.name: family for family in c.gateways[0].metric_families()}
            assert {each.labels["mode"]: each.value for each in shown["maitred_cluster_mode"].samples}["linked"] == 1
            assert [each.value for each in shown["maitred_link_grants"].samples] == [1]
            engine.go_on.set()
            answers = [await each.read_response() for each in (*streams, *waiting)]
            assert {(status, body) for status, _, body in answers} == {(200, b"abcd")}
            assert engine.most == SLOTS
            for scheduler in c.schedulers:
                assert scheduler.host is not None
                await c.until(lambda host=scheduler.host: not host.requests)
                scheduler.host.end.check()

    run(scenario())


def test_a_scheduler_that_ends_hands_over_and_one_that_is_started_anew_stands_by(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(None, 2, 1, election=f"file:{tmp_path}/leader") as c:
            await c.linked()
            first, second = c.schedulers
            await c._stops.pop(first).aclose()  # as on SIGTERM
            await c.until(lambda: second.host and second.host.leadership.mode == "leading")
            third = await c.add_scheduler()
            assert third.host is not None
            assert third.host.leadership.mode == "standby"
            await c.linked()
            assert (await (await c.start_request()).read_response())[0] == 200

    run(scenario())


def test_the_dashboard_of_a_scheduler_shows_what_its_gateways_hold() -> None:
    async def scenario() -> None:
        engine = HeldAnswers()
        async with cluster(engine, 1, 2) as c:
            await c.linked()
            url = c.pages[c.schedulers[0]]
            status, page = await c.ask(url, "/maitred")
            assert (status, page[:15]) == (200, b"<!doctype html>")

            async def live() -> Any:
                return msgspec.json.decode((await c.ask(url, "/maitred/live"))[1])

            await live()  # Decisions are kept once somebody looks.
            held = [await c.start_request(at) for at in (0, 1)]
            await c.until(lambda: engine.now == SLOTS)
            waiting = await c.start_request(1)
            await c.until(lambda: any(each.is_waiting for each in c.schedulers[0].scheduler.admission.leases))
            seen = await live()
            assert (seen["state"]["in_flight"], seen["state"]["waiting"]) == (SLOTS, 1)
            assert seen["queues"]["default"]["waiting"] == 1
            assert [each["action"] for each in seen["decisions"]][:2] == ["queue", "admit"]
            leader = seen["state"]["cluster"]
            assert leader["mode"] == "leading"
            assert sorted(each["name"] for each in leader["gateways"]) == ["g0", "g1"]
            assert list(seen["backends"]) == [c.backend.url]
            own = await c.page("/maitred/state")  # A gateway knows no backend's slots, and none is made up.
            assert [(each["slots"], each["source"]) for each in own["backends"]] == [(None, "scheduler")]
            assert own["models"] == {"m": {"slots": SLOTS, "source": "scheduler"}}
            assert b"maitred_backend_slots{" not in (await c.ask(c.urls[0], "/metrics"))[1]
            engine.go_on.set()
            for each in (*held, waiting):
                assert (await each.read_response())[0] == 200

    run(scenario())


def test_a_scheduler_alone_learns_what_its_gateways_hold_when_it_is_started_anew() -> None:
    async def scenario() -> None:
        engine = HeldAnswers()
        async with cluster(engine, 1, 3) as c:
            await c.linked()
            streams = [await c.start_request(at) for at in (0, 2)]
            await c.until(lambda: engine.now == SLOTS)
            first, cut_off = c.schedulers[0], c.gateways.pop().scheduler.link
            await cut_off.close()  # Its stream goes on, and the next scheduler never hears of it.
            address = str(first.link_address)
            await c.kill(first)
            late = await c.start_request(0)
            again = await c.add_scheduler(address)
            await c.linked()
            assert again.host is not None
            assert again.host.leadership.mode == "learning"
            await c.until(lambda: again.host and again.host.leadership.mode == "leading")
            assert sum(each.holds_slot for each in again.host.requests) == 1, "the other slot is in use, as the engine says"
            engine.go_on.set()
            answers = [await each.read_response() for each in (*streams, late)]
            assert [status for status, _, _ in answers] == [200, 200, 200]
            assert engine.most == SLOTS

    run(scenario())


def test_a_scheduler_says_which_gateways_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        engine = HeldAnswers()
        with caplog.at_level(logging.INFO, "maitred.gateway"):
            async with cluster(engine, 1, 2) as c:
                await c.linked()
                address = c.schedulers[0].link_address
                names = [gateway.scheduler.link.end.name for gateway in c.gateways]
                held = await c.start_request(0)
                await c.until(lambda: engine.now == 1)
                for gateway in c.gateways:
                    await gateway.scheduler.link.close()
                await c.until(lambda: any(names[0] in each and "gone" in each for each in caplog.messages))
                await c.until(lambda: any(names[1] in each and "left" in each for each in caplog.messages))
                engine.go_on.set()
                assert (await held.read_response())[0] == 200
        for name in names:
            assert f"{name} is linked to the scheduler at {address}, epoch 1" in caplog.messages
            assert f"{name} is linked (from 127.0.0.1)" in caplog.messages
        held_on = "slots held until the backends show its requests gone: 1"
        assert f"{names[0]} is gone (from 127.0.0.1): {held_on}" in caplog.messages
        assert f"{names[1]} has left (from 127.0.0.1)" in caplog.messages

    run(scenario())


@pytest.mark.parametrize(
    ("changes", "theirs", "ours"),
    [
        (
            {"secret": "another secret of a test"},
            "no link to the scheduler at {}: the scheduler does not know the secret of this gateway: both need the same"
            " (tried again every 5 s)",
            "a peer was turned away: closed by the peer: the scheduler does not know the secret of this gateway: both need"
            " the same (from 127.0.0.1)",
        ),
    ],
)
def test_both_ends_say_in_one_line_why_there_is_no_link(
    changes: dict[str, Any], theirs: str, ours: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with cluster(None, 1) as c:
            with caplog.at_level(logging.WARNING, "maitred.gateway"):
                gateway = await c.add_gateway(**changes)
                await c.until(lambda: gateway.scheduler.link.problem and ours in caplog.messages)
                await asyncio.sleep(0.4)  # in which it would come again four times
            address = c.schedulers[0].link_address
            assert [each for each in caplog.messages if "link" in each or "turned" in each or "secret" in each] == [
                *sorted([theirs.format(address), ours], key=caplog.messages.index)
            ]
            ready = await c.page("/ready")
            assert "does not know the secret" in ready["cluster"]["problem"]
            assert c.schedulers[0].host is not None
            assert c.schedulers[0].host._last_connection == 1

    run(scenario())


def test_a_gateway_with_other_backends_is_told_which() -> None:
    async def scenario() -> None:
        async with cluster(None, 1) as c:
            c.settings = msgspec.structs.replace(c.settings, backends=(c.backend.url, "http://127.0.0.1:1"))
            gateway = await c.add_gateway()
            await c.until(lambda: gateway.scheduler.link.problem)
            words = "the backends of this gateway are not those of the scheduler: only it has http://127.0.0.1:1"
            assert words in str(gateway.scheduler.link.problem)

    run(scenario())


def test_the_end_that_a_gateway_is_told_is_its_own_and_that_of_a_backend_the_scheduler_s() -> None:
    async def scenario() -> None:
        async with cluster(schedulers=1, gateways=1) as c:
            await c.linked()
            ended: list[str] = []
            c.gateways[0].drain_switch.request_stop = lambda: ended.append("gateway")
            c.schedulers[0].drain_switch.request_stop = lambda: ended.append("scheduler")
            assert (await c.page("/admin/drain", method="POST"))["draining"] is True
            assert ended == ["gateway"]
            drained = await c.page("/admin/drain", method="POST", body={"backend": c.backend.url})
            assert drained["backend"] == c.backend.url
            assert c.schedulers[0].scheduler.fleet.backends[0].is_draining
            assert ended == ["gateway"]

    run(scenario())


def test_of_several_schedulers_none_is_obeyed_that_has_no_election() -> None:
    async def scenario() -> None:
        async with cluster(None, 2) as c:
            gateway = await c.add_gateway()
            await c.until(lambda: gateway.scheduler.link.problem)
            assert "this scheduler leads without an election (scheduler.election)" in str(gateway.scheduler.link.problem)
            assert gateway.scheduler.unlinked.mode == "waiting"

    run(scenario())


def test_a_port_that_is_taken_ends_the_start_in_one_line() -> None:
    async def scenario() -> None:
        async with cluster(None, 1) as c:
            address = str(c.schedulers[0].link_address)
            with pytest.raises(ConfigError, match=f"cannot listen on {address}: address already in use") as refused:
                c.make_scheduler(address).open_link()
            assert str(refused.value).startswith("--listen: ")

    run(scenario())


def test_a_gateway_waits_for_a_scheduler_that_is_not_there_yet() -> None:
    async def scenario() -> None:
        async with cluster(None, 1) as c:
            address = str(c.schedulers[0].link_address)
            await c._stops.pop(c.schedulers.pop()).aclose()
            gateway = await c.add_gateway(Dialer(KnownAddresses(LinkAddress.parse(address))))
            await c.until(lambda: gateway.scheduler.link.problem)
            assert gateway.scheduler.link.problem == f"no scheduler can be reached at {address}: connection refused"
            early = await c.start_request()
            await asyncio.sleep(5)
            assert (await c.page("/v1/models"))["error"]["code"] == "admission_no_scheduler"
            await c.add_scheduler(address)
            await c.linked()
            assert (await early.read_response())[0] == 200
            assert (await (await c.start_request()).read_response())[0] == 200

    run(scenario())


def test_a_gateway_that_has_no_scheduler_for_long_says_so_in_mode_closed() -> None:
    async def scenario() -> None:
        async with cluster(None, 1, 1, degraded_after_secs=0.3) as c:
            await c.linked()
            await c.kill(c.schedulers[0])
            status, headers, body = await (await c.start_request()).read_response()
            assert (status, headers["retry-after"]) == (503, "5")
            assert b"this gateway has no scheduler at present" in body
            ready = await c.page("/ready")
            assert (ready["ready"], ready["cluster"]["mode"]) == (False, "closed")

    run(scenario())


def test_a_gateway_that_has_never_had_a_scheduler_does_not_blame_the_backends() -> None:
    async def scenario() -> None:
        async with cluster() as c:
            await c.add_gateway(Dialer(KnownAddresses(LinkAddress.parse("127.0.0.1:1"))), degraded_after_secs=2.0)
            for _ in range(2):
                status, headers, body = await (await c.start_request()).read_response()
                assert (status, headers["retry-after"]) == (503, "5")
                assert b"this gateway has no scheduler at present" in body
            assert (await c.page("/ready"))["cluster"]["mode"] == "closed"

    run(scenario())


def test_in_mode_share_each_gateway_has_its_part_of_the_slots_and_the_next_scheduler_knows_it() -> None:
    async def scenario() -> None:
        engine = HeldAnswers()
        async with cluster(engine, 1, 2, degraded="share", degraded_after_secs=0.2) as c:
            await c.linked()
            address = str(c.schedulers[0].link_address)
            await c.kill(c.schedulers[0])
            requests = [await c.start_request(at) for at in (0, 0, 1, 1)]
            await c.until(lambda: engine.now == SLOTS)
            assert (await c.page("/ready"))["cluster"]["mode"] == "share"
            again = await c.add_scheduler(address)
            await c.linked()
            assert again.host is not None
            assert sum(request.holds_slot for request in again.host.requests) == SLOTS
            engine.go_on.set()
            assert [(await each.read_response())[0] for each in requests] == [200] * 4
            assert engine.most == SLOTS

    run(scenario())


@pytest.mark.parametrize("mode", ["closed", "share"])
def test_a_request_of_a_program_that_waits_for_memory_is_answered_where_there_is_no_scheduler(mode: str) -> None:
    async def scenario() -> None:
        async with cluster() as c:
            c.programs = ProgramsConfig(mode="tr", state="none")
            await c.add_scheduler()
            await c.add_gateway(degraded=mode, degraded_after_secs=0.1)
            await c.linked()
            await c.kill(c.schedulers[0])
            request = await c.start_request(0, {"model": "m", "prompt": "hi", "program_id": "a"})
            status, headers, body = await request.read_response()
            assert (status, headers["retry-after"]) == (503, "5")
            assert b"this gateway has no scheduler at present" in body

    run(scenario())


class StandsStill:
    """A connection to a process that neither reads nor ends it."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        """Do nothing."""

    close = abort = lambda self: None


def test_a_gateway_looks_for_the_next_scheduler_before_the_one_that_stands_still_has_ended_the_connection() -> None:
    async def scenario() -> None:
        async with cluster(None, 1, 1) as c:
            await c.linked()
            link = c.gateways[0].scheduler.link
            link._writer.transport.abort()  # type: ignore[union-attr]
            link._writer.transport = StandsStill()  # type: ignore[assignment]
            link._take([link.end.give_up("the lease is over")])
            await c.linked()
            assert (await (await c.start_request()).read_response())[0] == 200

    run(scenario())


class FailingOnce(KnownAddresses):
    """A finder whose store's client has a defect."""

    has_failed = False

    async def addresses(self) -> Sequence[LinkAddress]:
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("a defect")
        return await super().addresses()


def test_a_gateway_looks_again_for_a_scheduler_after_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_client, "_LASTING_SECS", 0.1)

    async def scenario() -> None:
        async with cluster(None, 1) as c:
            address = c.schedulers[0].link_address
            assert address is not None
            await c.add_gateway(Dialer(FailingOnce(address)))
            await c.linked()

    run(scenario())


def test_a_request_waits_no_longer_than_its_class_allows_where_there_is_no_scheduler() -> None:
    async def scenario() -> None:
        async with cluster() as c:
            c.rules = admission_config(classes={"default": {"queue_timeout_secs": 0.3}})
            await c.add_scheduler()
            await c.add_gateway(degraded="wait")
            await c.linked()
            await c.kill(c.schedulers[0])
            assert (await (await c.start_request()).read_response())[0] == 408

    run(scenario())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
def test_the_link_over_tls_takes_only_ends_whose_certificate_is_trusted(tmp_path: Path) -> None:
    cert, key = _certificate(tmp_path, "here")
    other, other_key = _certificate(tmp_path, "elsewhere")

    async def scenario() -> None:
        async with cluster(None, tls_cert=cert, tls_key=key, tls_ca=cert) as c:
            await c.add_scheduler()
            await c.add_gateway()
            await c.linked()
            assert (await (await c.start_request()).read_response())[0] == 200
            deaf = await c.add_gateway(tls_ca=other, tls_cert=other, tls_key=other_key)
            plain = await c.add_gateway(tls_ca=None, tls_cert=None, tls_key=None)
            await c.until(lambda: deaf.scheduler.link.problem and plain.scheduler.link.problem)
            assert "TLS: self-signed certificate" in str(deaf.scheduler.link.problem)
            assert "do both ends speak TLS, or neither?" in str(plain.scheduler.link.problem)

    run_on_sockets(scenario())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
def test_a_reload_reads_the_certificates_of_the_link_again(tmp_path: Path) -> None:
    """Each end shows the other one its certificate, and trusts it alone. Links that are open stay as they are."""
    cert, key = _certificate(tmp_path, "here")
    newer, newer_key = _certificate(tmp_path, "newer")

    async def scenario() -> None:
        async with cluster(None, tls_cert=cert, tls_key=key, tls_ca=cert) as c:
            scheduler = await c.add_scheduler()
            first = await c.add_gateway()
            await c.linked()
            link = first.scheduler.link
            shutil.copy(newer, cert)  # half of the pair
            for url in (c.pages[scheduler], c.urls[0]):
                status, said = await c.ask(url, "/admin/reload", "POST")
                assert (status, b"scheduler.tls_key: the key in" in said) == (400, True)
            shutil.copy(newer_key, key)
            assert (await c.ask(c.pages[scheduler], "/admin/reload", "POST"))[0] == 200
            await c.add_gateway()
            await c.linked()
            assert (await (await c.start_request(0)).read_response())[0] == 200

            link._writer.transport.abort()  # type: ignore[union-attr]
            await c.until(lambda: "TLS: self-signed certificate" in str(link.problem))
            assert (await c.ask(c.urls[0], "/admin/reload", "POST"))[0] == 200
            await c.linked()

    run_on_sockets(scenario())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
def test_a_scheduler_that_asks_for_certificates_lets_no_session_go_on(tmp_path: Path) -> None:
    """Nobody would look at the certificate again, whose authority a reload may have taken away."""
    cert, key = _certificate(tmp_path, "here")
    listening = listening_context(SchedulerConfig(tls_cert=cert, tls_key=key, tls_ca=cert))
    connecting = connecting_context(SchedulerConfig(tls_cert=cert, tls_key=key, tls_ca=cert))
    assert listening is not None
    assert connecting is not None
    connecting.current.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = connecting.current.wrap_bio(back, there)
    server = listening.current.wrap_bio(there, back, server_side=True)
    for end in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    server.write(b"hello")
    assert client.read(5) == b"hello"  # behind the tickets, if there are any
    assert client.session is not None
    assert not client.session.has_ticket


def _certificate(folder: Path, name: str) -> tuple[str, str]:
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", "req", "-x509", *made, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({}, "gateways and schedulers need a secret that they share"),
        ({"secret": "short"}, "the secret has 5 characters"),
        ({"secret_file": "/nowhere/secret"}, "cannot read /nowhere/secret: no such file or directory"),
    ],
)
def test_a_link_without_a_good_secret_is_refused(link: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        link_secret(SchedulerConfig(**link))


def test_a_reload_reads_the_secret_of_the_link_again(tmp_path: Path) -> None:
    """Links that are open stay as they are; a gateway that has the old secret is turned away until it has read the new one."""
    file = tmp_path / "secret"
    file.write_text(SECRET)

    async def scenario() -> None:
        async with cluster(None, secret=None, secret_file=str(file)) as c:
            scheduler = await c.add_scheduler()
            first = await c.add_gateway()
            await c.linked()
            file.write_text("short")
            for url in (c.pages[scheduler], c.urls[0]):
                status, said = await c.ask(url, "/admin/reload", "POST")
                assert (status, b"scheduler.secret_file: the secret has 5 characters" in said) == (400, True)
            file.write_text(f"another {SECRET}")
            assert (await c.ask(c.pages[scheduler], "/admin/reload", "POST"))[0] == 200
            assert (await (await c.start_request(0)).read_response())[0] == 200

            link = first.scheduler.link
            link._writer.transport.abort()  # type: ignore[union-attr]
            await c.until(lambda: "secret" in str(link.problem))
            assert (await c.ask(c.urls[0], "/admin/reload", "POST"))[0] == 200
            await c.linked()

    run_on_sockets(scenario())


def test_a_secret_in_a_file_may_end_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    assert link_secret(SchedulerConfig(secret_file=str(tmp_path / "secret"))) == SECRET.encode()
