"""TLS in front of a gateway: from the configuration to the socket, and a new certificate by a reload."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_gateway_reload import Files
from world import Backend, admission_config, run_on_sockets

from maitred.core.errors import ConfigError
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway
from maitred.wire.server import running_server

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """Make a certificate for this machine; return the paths of the certificate and of its key."""
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1", "-nodes"]
    subprocess.run(["openssl", "req", "-x509", *made, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_a_reload_brings_a_new_certificate_or_changes_nothing(tmp_path: Path) -> None:
    """A client that trusts one certificate alone can tell which one is in force."""
    (cert, key), second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    trusted = {
        name: ssl.create_default_context(cafile=shutil.copy(path, tmp_path / name))
        for name, path in (("first", cert), ("second", second[0]))
    }

    def ask(url: str, name: str, method: str = "GET") -> dict[str, Any]:
        asked = urllib.request.Request(url, method=method, data=b"" if method == "POST" else None)
        with urllib.request.urlopen(asked, context=trusted[name], timeout=30) as answered:
            found: dict[str, Any] = msgspec.json.decode(answered.read())
            return found

    def reloads(url: str, files: Files) -> None:
        assert ask(f"{url}/health", "first") == {"status": "ok"}
        shutil.copy(second[0], cert)  # half of it
        files.admission = admission_config(mode="legacy")
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(f"{url}/admin/reload", "first", "POST")
        said = refused.value.read().decode()
        refused.value.close()
        assert (refused.value.code, "is not that of the certificate" in said) == (400, True)
        assert ask(f"{url}/maitred/state", "first")["mode"] == "priority"
        shutil.copy(second[1], key)
        assert ask(f"{url}/admin/reload", "first", "POST")["reloaded"]
        assert ask(f"{url}/maitred/state", "second")["mode"] == "legacy"
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            ask(f"{url}/health", "first")
        files.changed = {"tls_cert": None, "tls_key": None}
        assert ask(f"{url}/admin/reload", "second", "POST")["ignored"] == ["gateway.tls_cert", "gateway.tls_key"]
        assert ask(f"{url}/health", "second") == {"status": "ok"}

    async def scenario() -> None:
        backend, files = Backend(), Files()
        await backend.start()
        config = GatewayConfig(backends=(backend.url,), tls_cert=cert, tls_key=key)
        gateway = Gateway(config, admission_config(), reload=lambda: files.read(config))
        try:
            async with running_server(gateway, certificate=gateway.certificates.port) as url:
                assert url.startswith("https://")
                await asyncio.to_thread(reloads, url, files)
        finally:
            await backend.stop()

    run_on_sockets(scenario())


def test_a_wrong_certificate_never_starts(tmp_path: Path) -> None:
    cert, _ = make_certificate(tmp_path, "first")
    _, key = make_certificate(tmp_path, "second")
    config = GatewayConfig(backends=("http://127.0.0.1:9",), tls_cert=cert, tls_key=key)
    with pytest.raises(ConfigError, match=r"gateway\.tls_key: the key in .* is not that of the certificate"):
        Gateway(config)
    with pytest.raises(ValueError, match="tls_key needs tls_cert"):
        GatewayConfig(tls_key=key)


@pytest.mark.parametrize(("given", "scheme"), [({}, "https"), ({"admin_tls": "none"}, "http"), ({"own": True}, "https")])
def test_the_port_of_the_operator(tmp_path: Path, given: dict[str, Any], scheme: str) -> None:
    """It has the certificate of the other port, none, or one of its own, which a reload reads again."""
    (cert, key), own = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    has_own = given.pop("own", False)
    named = dict(zip(("admin_tls_cert", "admin_tls_key"), own, strict=True)) if has_own else {}
    trusted = ssl.create_default_context(cafile=own[0] if has_own else cert)
    later = ssl.create_default_context(cafile=make_certificate(tmp_path, "third")[0])

    def ask(url: str, context: ssl.SSLContext) -> None:
        urllib.request.urlopen(f"{url}/admin/config", context=context if scheme == "https" else None, timeout=30).close()

    def replace(url: str) -> None:
        for name, path in zip(("third.pem", "third.key"), own if has_own else (cert, key), strict=True):
            shutil.copy(tmp_path / name, path)
        asked = urllib.request.Request(f"{url}/admin/reload", method="POST", data=b"")
        urllib.request.urlopen(asked, context=trusted if scheme == "https" else None, timeout=30).close()

    async def scenario() -> None:
        backend, files, urls = Backend(), Files(), list[str]()
        await backend.start()
        config = GatewayConfig(backends=(backend.url,), tls_cert=cert, tls_key=key, admin_port=0, **named, **given)
        gateway = Gateway(config, admission_config(), reload=lambda: files.read(config))
        listeners = {"certificate": gateway.certificates.port, "beside": gateway.admin_listener()}
        try:
            async with running_server(gateway, **listeners, on_ready=lambda *each: urls.extend(each)):
                assert [url.partition(":")[0] for url in urls] == ["https", scheme]
                await asyncio.to_thread(ask, urls[1], trusted)
                await asyncio.to_thread(replace, urls[1])
                await asyncio.to_thread(ask, urls[1], later)
        finally:
            await backend.stop()

    run_on_sockets(scenario())
