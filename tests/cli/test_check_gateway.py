"""What `maitred check` says of a gateway before it serves: its certificate, its backends, and tenants that cannot occur."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from maitred.files import check_output
from maitred.wire.certificate import ServerCertificate
from maitred.wire.certificate_dates import Validity, read_validities

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
NOW = datetime.now(UTC)
DAY = timedelta(days=1)
AUTHORITY = """
[ca]
default_ca = own
[own]
database = index.txt
rand_serial = yes
new_certs_dir = .
default_md = sha256
policy = any
[any]
commonName = supplied
"""


def make_certificate(folder: Path, name: str, begins: datetime, ends: datetime) -> None:
    """Make NAME.pem and NAME.key, valid from `begins` to `ends`."""
    (folder / "ca.cnf").write_text(AUTHORITY)
    (folder / "index.txt").write_text("")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")
    openssl("req", "-new", *key, "-subj", "/CN=localhost", "-out", f"{name}.csr")
    dates = ("-startdate", f"{begins:%Y%m%d%H%M%SZ}", "-enddate", f"{ends:%Y%m%d%H%M%SZ}")
    files = ("-keyfile", f"{name}.key", "-in", f"{name}.csr", "-out", f"{name}.pem")
    openssl("ca", "-config", "ca.cnf", "-batch", "-notext", "-selfsign", *dates, *files)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, "good", NOW - DAY, NOW + DAY)
    make_certificate(folder, "expired", NOW - 9 * DAY, NOW - DAY)
    make_certificate(folder, "early", NOW + DAY, NOW + 9 * DAY)
    make_certificate(folder, "long", NOW - DAY, NOW.replace(year=2070))  # in GeneralizedTime, with four digits
    (folder / "nonsense.pem").write_text("no certificate")
    (folder / "chain.pem").write_text((folder / "good.pem").read_text() + (folder / "expired.pem").read_text())
    return folder


TLS: dict[str, tuple[str, str, str]] = {
    "missing": ("none.pem", "good.key", r"gateway.tls_cert: cannot read .*none.pem: .*"),
    "no key": ("good.pem", "none.key", r"gateway.tls_key: cannot read .*none.key: .*"),
    "unreadable": ("nonsense.pem", "good.key", r"gateway\.tls_cert: .*nonsense.pem holds no certificate in PEM.*"),
    "a folder": (".", "good.key", r"gateway.tls_cert: cannot read .*: .*directory.*"),
    "the key of another": ("good.pem", "expired.key", r"gateway.tls_key: the key in .*expired.key is not that of .*good.pem"),
    "expired": ("expired.pem", "expired.key", r"gateway.tls_cert: .*expired.pem: the certificate has expired at 20.*Z .*"),
    "not yet valid": ("early.pem", "early.key", r"gateway.tls_cert: .*early.pem: the certificate is not valid before 20.*Z .*"),
    "expired in the chain": ("chain.pem", "good.key", r"gateway.tls_cert: .*: certificate 2 of the chain has expired at .*"),
}


@needs_openssl
@pytest.mark.parametrize(("chain", "key", "problem"), TLS.values(), ids=TLS)
def test_a_certificate_that_cannot_serve_is_an_error(maitred: Any, folder: Path, chain: str, key: str, problem: str) -> None:
    path = folder / "gateway.yaml"
    path.write_text(f"gateway: {{backends: [http://a:1], tls_cert: {folder / chain}, tls_key: {folder / key}}}\n")
    result = maitred("check", str(path))
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("maitred: error: gateway")
    assert re.fullmatch(f"maitred: error: {problem}", line), line


@needs_openssl
def test_the_certificate_of_the_admin_port_is_looked_at_as_well(maitred: Any, folder: Path) -> None:
    path = folder / "gateway.yaml"
    files = "{0}tls_cert: {2}/{1}.pem, {0}tls_key: {2}/{1}.key"
    both = ", ".join((files.format("", "good", folder), files.format("admin_", "expired", folder)))
    path.write_text(f"gateway: {{backends: [http://a:1], admin_port: 9000, {both}}}\n")
    result = maitred("check", str(path))
    assert result.code == 2
    assert result.err.startswith(
        f"maitred: error: gateway.admin_tls_cert: {folder}/expired.pem: the certificate has expired at"
    )


@needs_openssl
@pytest.mark.parametrize("name", ["good", "long"])
def test_a_certificate_that_can_is_none(maitred: Any, folder: Path, name: str) -> None:
    path = folder / "gateway.yaml"
    path.write_text(f"gateway: {{backends: [http://a:1], tls_cert: {folder}/{name}.pem, tls_key: {folder}/{name}.key}}\n")
    result = maitred("check", str(path))
    assert (result.code, result.err) == (0, "")


@needs_openssl
def test_a_gateway_serves_with_it_and_says_so(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A restart at night must not fail because of a date."""
    ServerCertificate(str(folder / "expired.pem"), str(folder / "expired.key"), where="gateway")
    assert "TLS: the certificate has expired at" in caplog.text


@needs_openssl
def test_dates_are_those_that_openssl_shows(folder: Path) -> None:
    for name in ("good", "expired", "early", "long"):
        command = ["openssl", "x509", "-in", f"{name}.pem", "-noout", "-dates"]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
        dates = [line.split("=")[1] for line in shown.splitlines()]
        expected = Validity(*(datetime.strptime(date, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC) for date in dates))
        assert list(read_validities((folder / f"{name}.pem").read_bytes())) == [expected]


@pytest.mark.parametrize("backends", ["", "backends: [], "])
def test_a_gateway_without_backends_is_a_warning(maitred: Any, tmp_path: Path, backends: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(f"gateway: {{{backends}port: 9000}}\n")
    result = maitred("check", str(path))
    assert result.code == 0
    assert "gateway.backends names no backend: maitred serve needs one, there or as --backend URL" in result.err
    path.write_text("instance: {max_num_seqs: 4}\n")  # for a simulation
    assert maitred("check", str(path)).err == ""


IMPOSSIBLE: dict[str, tuple[str, str, str | None]] = {
    "no keys": ("", "auth:acme", "there are no keys (gateway.tenant_api_keys)"),
    "no trusted header": ("", "header:acme", "no header is trusted (gateway.trust_tenant_header)"),
    "a trusted header": ("trust_tenant_header: true", "header:acme", None),
    "an address": ("", "ip:10.0.0.1", None),
    "a key": ("tenant_api_keys: {acme: k}", "auth:acme", None),
    "a slip": (
        "tenant_api_keys: {acme: k}",
        "auth:acne",
        "acne has no key in gateway.tenant_api_keys (did you mean 'acme'?)",
    ),
    "an address behind keys": (
        "tenant_api_keys: {acme: k}",
        "ip:10.0.0.1",
        "every request needs a key, which names its tenant (auth:ID)",
    ),
    "a header behind the shared key": ("api_key: k", "header:a", "every request needs a key, which names its tenant (auth:ID)"),
    "the shared key": ("api_key: k", "auth:8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a", None),
}


@pytest.mark.parametrize("rule", ["tenant_policies: {TENANT: {weight: 2}}"])
@pytest.mark.parametrize(("keys", "tenant", "problem"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_rule_for_a_tenant_that_cannot_occur_is_a_warning(
    maitred: Any, tmp_path: Path, keys: str, tenant: str, problem: str | None, rule: str
) -> None:
    path = tmp_path / "gateway.yaml"
    admission = rule.replace("TENANT", f'"{tenant}"')
    path.write_text(f"gateway: {{backends: [http://a:1], {keys}}}\nadmission: {{mode: priority, {admission}}}\n")
    result = maitred("check", str(path))
    assert result.code == 0
    said = f"admission.tenant_policies: no request can come from {tenant}: {problem}"
    assert result.err == ("" if problem is None else f"maitred: warning: {said}\n")


def test_a_trusted_header_that_a_key_beats_is_a_warning(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("gateway: {backends: [http://a:1], api_key: k, trust_tenant_header: true}\n")
    assert "gateway.trust_tenant_header has no effect" in maitred("check", str(path)).err


@needs_openssl
def test_a_certificate_with_a_date_that_makes_no_sense_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """OpenSSL loads it, and says nothing of the dates."""
    make_certificate(tmp_path, "odd", NOW - DAY, NOW + DAY)
    path = tmp_path / "odd.pem"
    der = ssl.PEM_cert_to_DER_cert(path.read_text())
    ends = (NOW + DAY).strftime("%y%m%d").encode()
    assert der.count(ends) == 1
    path.write_text(ssl.DER_cert_to_PEM_cert(der.replace(ends, ends[:2] + b"9999")))

    ServerCertificate(str(path), str(tmp_path / "odd.key"), where="gateway")

    assert list(read_validities(path.read_bytes())) == [None]
    assert not caplog.text


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("num_instances: 3, disaggregation: {prefill_instances: 1, decode_instances: 1}", "are not num_instances 3"),
        (
            "num_instances: 2, disaggregation: {prefill_instances: 1, decode_instances: 1}",
            "the size of the KV of a token is not",
        ),
    ],
)
def test_prefill_and_decode_instances_that_no_simulation_takes_are_an_error(
    maitred: Any, tmp_path: Path, section: str, problem: str
) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text(f"cluster: {{{section}}}")
    result = maitred("check", path)
    assert (result.code, result.out) == (2, "")
    assert problem in result.err
    assert maitred("simulate", "--config", path, "--rate", 1, "--num-requests", 1).code == 2


LINK = "addresses: [10.0.0.5:7070, 10.0.0.6:7070], secret: a secret of a test"


@pytest.mark.parametrize(
    ("link", "code", "out", "err"),
    [
        (f"{LINK}, election: 'redis://:word@10.0.0.9'", 0, "plain, elected in redis://10.0.0.9, pages on 127.0.0.1:7071", ""),
        (
            LINK,
            0,
            "a gateway asks 10.0.0.5:7070, 10.0.0.6:7070; without one for 10 s: closed",
            "scheduler.election is not given",
        ),
        ("addresses: [10.0.0.5:7070], secret: short", 2, "", "scheduler.secret: the secret has 5 characters"),
        ("addresses: [10.0.0.5:7070], degraded: never", 2, "", "scheduler.degraded"),
    ],
)
def test_the_link_of_a_set_up_is_looked_at(maitred: Any, tmp_path: Path, link: str, code: int, out: str, err: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(f"gateway: {{backends: [http://a:1]}}\nscheduler: {{{link}}}\n")
    result = maitred("check", str(path))
    assert result.code == code
    assert out in result.out
    assert err in result.err
    assert "word" not in result.out.replace("password", "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("gateway: {keys_file: gone.yaml}", "gateway.keys_file: gone.yaml: cannot be read: no such file or directory"),
        ("gateway: {keys_file: wrong.yaml}", "gateway.keys_file: wrong.yaml:1: unknown key 'key'"),
        ("gateway: {jwt: {jwks: gone.json, issuer: a, audience: b}}", "gateway.jwt.jwks: cannot read gone.json"),
        ("instance: {model: llama-9}", "instance.model: unknown model 'llama-9'"),
        ("instance: {model: llama-3.1-8b, hardware: H1000}", "instance.hardware: unknown hardware 'H1000'"),
        (
            "cluster: {groups: [{hardware: H1000}]}\ninstance: {model: llama-3.1-8b}",
            "cluster.groups[0]: hardware: unknown hardware",
        ),
        ("cluster: {costs: {price_per_gpu_hour: {H1000: 2}}}", "cluster.costs.price_per_gpu_hour: unknown hardware 'H1000'"),
    ],
)
def test_files_and_names_without_which_nothing_starts_are_looked_up(
    maitred: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.yaml").write_text("key: []")
    Path("c.yaml").write_text(text)
    result = maitred("check", "c.yaml")
    assert (result.code, result.err.startswith(f"maitred: error: {error}")) == (2, True), result.err


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((f"gateway: {{{key}: ''}}", f"gateway.{key}: '' names no file") for key in ("keys_file", "record", "decision_log")),
        ("gateway: {host: ''}", "gateway.host: '' is no address"),
        ("gateway: {record: gone/r.csv}", "gateway.record: cannot write gone/r.csv: no such file or directory"),
        ("gateway: {decision_log: gone/d.jsonl}", "gateway.decision_log: cannot write gone/d.jsonl: no such file or directory"),
        ("gateway: {decision_log: c.yaml/d.jsonl}", "gateway.decision_log: cannot write c.yaml/d.jsonl: not a directory"),
        ("gateway: {record: .}", "gateway.record: cannot write .: is a directory"),
        ("gateway: {record: c.yaml}", "gateway.record: c.yaml holds something else"),
    ],
)
def test_what_serve_refuses_of_the_files_that_it_writes_check_says(
    maitred: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(text)
    for command in (("check", "c.yaml"), ("serve", "--config", "c.yaml", "--backend", "http://127.0.0.1:9")):
        if command[0] == "serve" and "host" in text:
            continue  # It ends with an error of the port, in its own words.
        result = maitred(*command)
        assert (result.code, result.err.partition("maitred: error: ")[2].startswith(error)) == (2, True), result.err


def test_files_that_can_be_written_are_no_error_and_are_not_made(
    maitred: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("gateway: {record: r.csv, decision_log: d.jsonl, backends: ['http://127.0.0.1:9']}")
    Path("d.jsonl").write_text("half a li")
    assert maitred("check", "c.yaml").code == 0
    assert not Path("r.csv").exists()
    assert Path("d.jsonl").read_text() == "half a li"


def test_a_folder_that_others_own_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of the system, which lets root write everywhere."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PermissionError):
        check_output(tmp_path / "r.csv")
