"""`maitred envoy-config`, and `--ext-proc` without what it needs."""

import importlib.util
import sys

import pytest
import yaml

from maitred.cli import main
from maitred.cli.picker import require_extra
from maitred.core.errors import ConfigError


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["maitred", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, *capsys.readouterr()


def test_the_configuration_of_envoy_has_backends_and_pickers(monkeypatch, capsys):
    flags = (
        "--backend",
        "http://10.0.0.1:8000",
        "--backend",
        "https://engine-2",
        "--picker",
        "10.0.0.5:9002",
        "--admin",
        "none",
    )
    code, out, _ = run(monkeypatch, capsys, "envoy-config", *flags)
    assert code == 0
    made = yaml.safe_load(out)
    assert "admin" not in made
    clusters = {cluster["name"]: cluster for cluster in made["static_resources"]["clusters"]}
    hosts = {
        name: [
            (at["address"], at["port_value"])
            for host in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            for at in [host["endpoint"]["address"]["socket_address"]]
        ]
        for name, cluster in clusters.items()
    }
    assert hosts == {"backends": [("10.0.0.1", 8000), ("engine-2", 443)], "picker": [("10.0.0.5", 9002)]}
    assert clusters["backends"]["transport_socket_matches"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "--backend"),
        (("--backend", "http://a", "--picker", "nowhere"), "--picker: nowhere is no address"),
        (("--backend", "http://a", "--body-mode", "streamed"), "--body-mode: no mode is called streamed"),
    ],
)
def test_a_mistake_is_one_line(monkeypatch, capsys, flags, words):
    code, _, err = run(monkeypatch, capsys, "envoy-config", *flags)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="hpack is not installed") as raised:
        require_extra("--ext-proc")
    assert "maitred[envoy]" in str(raised.value)


@pytest.mark.parametrize("ext_proc", [(), ("--ext-proc", "127.0.0.1:0")])
def test_a_scheduler_that_no_request_passes_says_that_it_records_none(ext_proc, tmp_path, monkeypatch, capsys, caplog):
    secret = tmp_path / "secret"
    secret.write_text("a secret of thirty-two characters or more")
    secret.chmod(0o600)
    given = ("--pages-host", "203.0.113.1", "--link-secret-file", str(secret), "--record", str(tmp_path / "r"))
    code, _, err = run(monkeypatch, capsys, "scheduler", "--backend", "http://127.0.0.1:1", *given, *ext_proc)
    assert (code, "203.0.113.1 is no address of this machine" in err) == (2, True), err  # after all else was said
    assert any("without --ext-proc" in message for message in caplog.messages) is not bool(ext_proc)
