from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from maitred.cli import main


class Said(msgspec.Struct):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


Maitred = Callable[..., Said]


@pytest.fixture
def maitred(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Maitred:
    """Runs a command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, env: Mapping[str, str] | None = None) -> Said:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["maitred", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        code: Any = ended.value.code
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return run


@pytest.fixture
def samples() -> Path:
    """The folder of tiny traces."""
    return Path(__file__).parents[1] / "samples"
