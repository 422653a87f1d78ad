"""The image and the compose file: no root, nothing written outside two folders, and what they name is there.

That the image builds, and serves, `tools/container.py` shows with a real builder; it takes minutes.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from maitred.cli.engine import run as run_engine
from maitred.cli.serve import run as run_serve
from maitred.config import ConfigSources

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "container"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("container_tool", ROOT / "tools" / "container.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STAGES = _tool().stages((FOLDER / "Containerfile").read_text())
BUILD, FINAL = STAGES


def values(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [value for instruction, value in stage if instruction == name]


def test_the_process_is_no_root_and_its_health_is_asked() -> None:
    assert values(FINAL, "USER") == ["10001:10001"]
    assert "MAITRED_HEALTH_URL" in values(FINAL, "HEALTHCHECK")[0]
    assert values(FINAL, "ENTRYPOINT") == ['["maitred"]']
    # After the last change of its files nothing is run as root.
    assert not values(FINAL[FINAL.index(("USER", "10001:10001")) :], "RUN")
    assert values(FINAL, "COPY") == ["--from=build /opt/maitred /opt/maitred"], "no compiler, no sources"


def test_what_the_build_names_is_there() -> None:
    for copied in values(BUILD, "COPY"):
        *sources, _ = copied.split()
        assert all((ROOT / source).exists() for source in sources)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"whl\)\[([\w,-]+)\]", "\n".join(values(BUILD, "RUN")))
    of_studies = {"frames", "plots", "ray", "search", "silicon", "tokenizer"}
    of_developers = {"dev", "docs", "release"}
    assert set(named.split(",")) == extras.keys() - of_studies - of_developers
    assert any("MAITRED_COMPILE=1" in run for run in values(BUILD, "RUN"))


def test_the_compose_file_starts_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ConfigSources(file=FOLDER / "maitred.yaml", env={}).problems() == []
    config = yaml.safe_load((FOLDER / "maitred.yaml").read_text())["gateway"]
    services = COMPOSE["services"]
    assert [re.fullmatch(r"http://([\w-]+):8000", url)[1] for url in config["backends"]] == ["engine-a", "engine-b"]  # type: ignore[index]
    for name, command in (("gateway", run_serve), ("engine-a", run_engine)):
        flags = {word for word in services[name]["command"] if word.startswith("--")}
        known = {"--config", "--strict-config", *command.flag_names.values()}
        assert flags <= known | {"--model", "--max-num-seqs"}
        assert services[name]["read_only"]
        assert services[name]["cap_drop"] == ["ALL"]
    for service in services.values():
        mounted = [volume.split(":")[0] for volume in service.get("volumes", ())]
        assert all((FOLDER / path).exists() for path in mounted if path.startswith("."))
    grace = float(services["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace > config.get("settle_secs", 10) + config.get("drain_secs", 30) + 10


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    for path in (FOLDER / "prometheus.yml", ROOT / "deploy/prometheus/maitred.rules.yml"):
        shutil.copy(path, tmp_path)
    done = subprocess.run(shlex.split("promtool check config prometheus.yml"), cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
