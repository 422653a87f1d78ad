from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maitred.cli import main

Maitred = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def maitred(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Maitred:
    """Return a function that runs a command line in this process, in an empty folder, and returns its exit code, output and
    errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["maitred", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capfd.readouterr())

    return run
