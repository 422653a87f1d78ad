"""A reload is whole or nothing, whatever fails in it, and the next one is served."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_gateway_reload import Files, reload
from test_gateway_tls import make_certificate
from world import Backend, admission_config, run, run_on_sockets, world

from maitred.core.errors import ConfigError
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway
from maitred.programs import ProgramsConfig
from maitred.wire.server import running_server


class Refusing:
    """A policy that cannot be made."""

    def __init__(self) -> None:
        raise ValueError("there is no such model")

    def refusal(self, *_asked: object) -> None:
        return None


class FewDescriptors:
    """`os.memfd_create` of a process in which only some more descriptors are left."""

    def __init__(self, left: int) -> None:
        self._left, self._make = left, os.memfd_create

    def __call__(self, name: str) -> int:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._make(name)


async def served_certificates(urls: Sequence[str]) -> list[str]:
    """Return the certificates of the ports, in PEM."""
    ports = [int(url.rpartition(":")[2]) for url in urls]
    return [await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port)) for port in ports]


def in_force(gateway: Gateway) -> tuple[object, ...]:
    """Return what a reload may change, as each part has it."""
    assert gateway.programs is not None
    rules, waits = gateway._intake.rules, gateway.programs.core.config.max_wait_secs
    settings, mode = gateway.settings(), gateway.core.config.mode
    return settings, mode, waits, rules.config, gateway._budget.limit, gateway._intake.rules.cross_origins


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="certificates pass through memory on Linux alone")
@pytest.mark.parametrize("num_descriptors", range(9))
def test_a_certificate_that_cannot_be_loaded_changes_nothing(
    num_descriptors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors run out in the middle of a reload that brings a certificate for each port, keys and classes."""
    made = [make_certificate(tmp_path, name) for name in ("first", "second", "third", "fourth")]
    pems = [Path(cert).read_text() for cert, _ in made]
    names = ("tls_cert", "tls_key", "admin_tls_cert", "admin_tls_key")
    changed = dict(zip(names, (*made[2], *made[3]), strict=True))

    async def scenario() -> None:
        backend, files, urls = Backend(), Files(), list[str]()
        await backend.start()
        config = GatewayConfig(backends=(backend.url,), admin_port=0, **dict(zip(names, (*made[0], *made[1]), strict=True)))
        gateway = Gateway(config, admission_config(), programs=ProgramsConfig(mode="tr"), reload=lambda: files.read(config))
        files.admission, files.programs = admission_config(mode="legacy"), ProgramsConfig(mode="tr", max_wait_secs=7)
        files.changed = {**changed, "cors_origins": ("https://a.example",), "max_body_bytes": 77, "max_parked_body_bytes": 77}
        listeners = {"certificate": gateway.certificates.port, "beside": gateway.admin_listener()}
        try:
            async with running_server(gateway, **listeners, on_ready=lambda *each: urls.extend(each)):
                before = in_force(gateway)
                assert await served_certificates(urls) == pems[:2]
                monkeypatch.setattr(os, "memfd_create", FewDescriptors(num_descriptors))
                if num_descriptors < 4:
                    with pytest.raises(ConfigError, match=r"(?i)too many open files"):
                        await gateway._reloader.reload()
                    assert in_force(gateway) == before
                    assert await served_certificates(urls) == pems[:2]
                else:
                    await gateway._reloader.reload()
                    assert in_force(gateway)[1:3] == ("legacy", 7)
                    assert all(now != then for now, then in zip(in_force(gateway), before, strict=True))
                    assert await served_certificates(urls) == pems[2:]
        finally:
            await backend.stop()

    run_on_sockets(scenario())


def test_a_policy_that_cannot_be_made_changes_nothing() -> None:
    files = Files()
    files.admission = admission_config(policy="test_gateway_reload_whole:Refusing", default_max_class="bulk")
    files.programs = ProgramsConfig(mode="tr", max_wait_secs=7)
    files.changed = {"upstream_api_key": "k", "trust_tenant_header": True}

    async def scenario() -> None:
        async with world(reload=files.read, programs={}) as w:
            before, rules = w.gateway.settings(), w.gateway._intake.rules
            status, answer = await reload(w)
            assert status == 400
            assert "there is no such model" in answer["error"]["message"]
            assert (w.gateway.settings(), w.gateway._intake.rules) == (before, rules)
            assert w.gateway.programs is not None
            assert w.gateway.programs.core.config.max_wait_secs == before.programs.max_wait_secs

    run(scenario())


def test_after_a_reload_that_fails_in_an_unforeseen_way_the_next_one_is_served() -> None:
    class Broken(Files):
        def read(self, start: GatewayConfig) -> Any:
            if self.error is not None:
                raise RuntimeError("a plug-in is broken")
            return super().read(start)

    files = Broken()
    files.error = ConfigError("")
    files.admission = admission_config(mode="legacy")

    async def scenario() -> None:
        async with world(reload=files.read) as w:
            results = w.gateway.counters.reloads
            w.gateway.request_reload()
            await w.wait_until(lambda: results["failed"] == 1)
            assert w.state.mode == "priority"
            files.error = None
            w.gateway.request_reload()
            await w.wait_until(lambda: results["ok"] == 1)
            assert w.state.mode == "legacy"

    run(scenario())
