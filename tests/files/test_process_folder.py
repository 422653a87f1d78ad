"""ProcessFolder: what a killed process has left is removed by the next one, and nothing else is."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from maitred.files import scratch
from maitred.files.scratch import ProcessFolder

HELD = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from maitred.files.scratch import ProcessFolder
folder = ProcessFolder("maitred-x-")
(folder.path / "more").write_text("")
print(folder.path, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_process_that_was_killed_is_removed_and_that_of_a_living_one_is_not(temporary: Path) -> None:
    command = [sys.executable, "-c", HELD, str(temporary)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        ProcessFolder("maitred-x-").close()
        assert left.is_dir()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert left.is_dir()
    ProcessFolder("maitred-y-").close()
    assert left.is_dir()
    mine = ProcessFolder("maitred-x-")
    assert [*temporary.iterdir()] == [mine.path]
    mine.close()
    mine.close()
    assert [*temporary.iterdir()] == []


def test_what_is_not_known_to_be_left_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("unlocked", "linked", "others"):
        (temporary / f"maitred-x-{name}").mkdir()
    (temporary / "maitred-x-file").write_text("")
    (temporary / "elsewhere").write_text("")
    (temporary / "maitred-x-linked" / "lock").symlink_to(temporary / "elsewhere")
    ProcessFolder("maitred-x-").close()
    (temporary / "maitred-x-others" / "lock").write_text("")
    uid = temporary.stat().st_uid
    monkeypatch.setattr(scratch.os, "geteuid", lambda: uid + 1)
    ProcessFolder("maitred-x-").close()
    assert len([*temporary.glob("maitred-x-*")]) == 4


def test_a_folder_is_made_where_the_filesystem_has_no_locks(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(scratch.fcntl, "flock", without_locks)
    first, second = ProcessFolder("maitred-x-"), ProcessFolder("maitred-x-")
    assert first.path.is_dir()
    for folder in (first, second):
        folder.close()
    assert [*temporary.iterdir()] == []
