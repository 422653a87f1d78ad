"""Where `maitred serve` keeps its programs if no file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from maitred.cli.serve import default_state


@pytest.mark.parametrize(
    ("env", "port", "path"),
    [
        ({"XDG_STATE_HOME": "/state"}, 8080, "/state/maitred/programs-8080.sqlite"),
        ({"XDG_STATE_HOME": ""}, 80, str(Path("~/.local/state/maitred/programs-80.sqlite").expanduser())),
        ({}, 0, None),  # The next run has another port, and would not find it.
    ],
)
def test_a_file_for_each_port(env: dict[str, str], port: int, path: str | None) -> None:
    assert default_state(env, port) == path
