"""The units: their commands have flags that there are, their time to stop is that of the gateway, and systemd takes them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from maitred.cli.scheduler import run as run_scheduler
from maitred.cli.serve import run as run_serve
from maitred.gateway import GatewayConfig

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
BIN = "/opt/maitred/bin/maitred"


def _values(unit: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", (FOLDER / unit).read_text(), re.MULTILINE)


@pytest.mark.parametrize(("unit", "command"), [("maitred.service", run_serve), ("maitred-scheduler.service", run_scheduler)])
def test_a_service_starts_what_there_is_and_is_told_of_its_state(unit: str, command: object) -> None:
    (start,) = _values(unit, "ExecStart")
    program, name, *arguments = shlex.split(start)
    assert (program, name) == (BIN, {"maitred.service": "serve"}.get(unit, "scheduler"))
    known = {"--config", "--strict-config", *command.flag_names.values()}  # type: ignore[attr-defined]
    assert {word for word in arguments if word.startswith("--")} <= known
    assert _values(unit, "ExecStartPre") == [f"{BIN} check /etc/maitred/maitred.yaml"]
    assert _values(unit, "Type") == ["notify"]
    assert _values(unit, "ExecReload") == ["/bin/kill -HUP $MAINPID"]


def test_the_service_is_not_killed_before_its_drain_is_over_and_takes_the_port_of_its_socket() -> None:
    config = GatewayConfig(backends=("http://127.0.0.1:1",))
    for unit in ("maitred.service", "maitred-scheduler.service"):
        (secs,) = _values(unit, "TimeoutStopSec")
        assert float(secs.removesuffix("s")) > config.drain_secs + config.settle_secs + 10
    assert _values("maitred.socket", "ListenStream") == [f"0.0.0.0:{config.port}"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of Debian's package systemd")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in FOLDER.iterdir():
        (tmp_path / unit.name).write_text(unit.read_text().replace(BIN, "/usr/bin/env"))  # which is on every machine
    units = [str(path) for path in tmp_path.iterdir()]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
