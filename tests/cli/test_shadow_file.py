"""The file of a shadow: checked with the configuration that names it, and no reason not to serve."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from maitred.cli.app import app
from maitred.config import ConfigSources
from maitred.config.shadow_file import read_shadow, shadow_at_start
from maitred.core.errors import ConfigError

WRONG = "admission:\n  mode: priority\n  classes: {bulk: {queue_sise: 5}}\n"


def config_file(folder: Path, shadow: str | None) -> Path:
    """A configuration that names `other.yaml`, which has this text; None: it is not there."""
    if shadow is not None:
        (folder / "other.yaml").write_text(shadow)
    path = folder / "maitred.yaml"
    path.write_text(f"gateway: {{backends: ['http://127.0.0.1:9'], shadow: '{folder / 'other.yaml'}'}}\n")
    return path


@pytest.mark.parametrize(
    ("shadow", "said"),
    [
        (WRONG, ["gateway.shadow: ", "other.yaml:3", "queue_sise", "queue_size"]),
        (None, ["gateway.shadow: ", "other.yaml", "no such file"]),
        ("routing: {policy: none-such}\n", ["none-such"]),
        ("admission: {policy: none-such}\n", ["none-such"]),
    ],
)
def test_a_wrong_shadow_is_found_by_check_and_keeps_nothing_from_serving(
    tmp_path: Path, shadow: str | None, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = config_file(tmp_path, shadow)
    checked = CliRunner().invoke(app, ["check", str(path)])
    assert checked.exit_code == 2
    assert all(each in checked.output for each in said), checked.output
    config = ConfigSources(file=path).load()
    assert shadow_at_start(config) is None
    assert len(caplog.records) == 1
    with pytest.raises(ConfigError, match=r"gateway\.shadow: "):
        read_shadow(config)


def test_a_right_one_is_named(tmp_path: Path) -> None:
    path = config_file(tmp_path, "admission: {mode: priority}\n")
    checked = CliRunner().invoke(app, ["check", str(path)])
    assert checked.exit_code == 0, checked.output
    assert "shadow     by" in checked.output
    rules = shadow_at_start(ConfigSources(file=path).load())
    assert rules is not None
    assert rules.admission.mode == "priority"
