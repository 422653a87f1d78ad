"""The files that a gateway writes: who may read them, and that it writes to no other file than those."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from world import Backend, run, world

from maitred.core.decisions import LOG_BEGINS
from maitred.core.errors import ConfigError
from maitred.files.line_file import LineFile
from maitred.gateway.observe.logs import LogOutput
from maitred.scheduler.programs.store import ProgramStore


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    """Take nothing away by umask: the permissions are the gateway's own."""
    before = os.umask(0)
    yield
    os.umask(before)


def _permissions(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}


WRITTEN = {
    *("record.csv", "decisions.jsonl", "log"),
    *("programs.sqlite", "programs.sqlite.lock", "programs.sqlite-wal", "programs.sqlite-shm", "step_profiles.csv"),
}


@pytest.mark.parametrize(("readers", "mode"), [(None, 0o600), ("group", 0o640), ("all", 0o644)])
def test_what_the_gateway_makes_is_for_its_owner(tmp_path: Path, readers: str | None, mode: int) -> None:
    """At the start, and after each file was moved away and opened anew."""
    old = tmp_path / "old"
    old.mkdir()

    async def scenario() -> None:
        with (tmp_path / "log").open("ab", buffering=0) as standard:
            settings: dict[str, Any] = {} if readers is None else {"files_readable_by": readers}
            output = LogOutput("json", standard.fileno(), mode)
            written = {"record": str(tmp_path / "record.csv"), "decision_log": str(tmp_path / "decisions.jsonl")}
            programs: dict[str, Any] = {
                "state": str(tmp_path / "programs.sqlite"),
                "profile": True,
                "profile_dir": str(tmp_path),
            }
            async with world(Backend(), programs=programs, access_log=True, log_output=output, **written, **settings) as w:
                assert (await w.request(body={"model": "m", "program_id": "p"}))[0] == 200
                await w.wait_until(lambda: _permissions(tmp_path).keys() >= WRITTEN)
                made = {name: found for name, found in _permissions(tmp_path).items() if name != "log"}  # The shell makes that.
                assert set(made.values()) == {mode}, made
                moved = ("record.csv", "decisions.jsonl", "log", "step_profiles.csv")
                for name in moved:
                    (tmp_path / name).rename(old / name)
                w.gateway.request_reload()
                assert (await w.request(body={"model": "m", "program_id": "p"}))[0] == 200
                await w.wait_until(lambda: all((tmp_path / name).exists() for name in moved))
                again = {name: (tmp_path / name).stat().st_mode & 0o777 for name in moved}
                assert set(again.values()) == {mode}, again

    run(scenario())


def test_a_file_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "record.csv"
    path.touch(0o664)
    LineFile(path, where="gateway.record").close()
    assert path.stat().st_mode & 0o777 == 0o664


@pytest.mark.parametrize("suffix", [".lock", "-wal", "-shm", "-journal"])
def test_no_link_is_followed_at_a_name_that_no_user_has_given(tmp_path: Path, suffix: str) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("of someone else")
    (tmp_path / f"programs.sqlite{suffix}").symlink_to(treasure)
    with pytest.raises(ConfigError, match=rf"programs\.state: .*programs\.sqlite{suffix} is a symbolic link"):
        ProgramStore(str(tmp_path / "programs.sqlite"))
    assert treasure.read_text() == "of someone else"


def test_a_lock_empties_no_file(tmp_path: Path) -> None:
    (tmp_path / "programs.sqlite.lock").write_text("something")
    ProgramStore(str(tmp_path / "programs.sqlite")).close()
    assert (tmp_path / "programs.sqlite.lock").read_text() == "something"


def test_a_state_behind_a_link_of_the_user_is_used(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with closing(ProgramStore(str(tmp_path / "link"))):
        assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600


def test_the_end_of_a_file_that_is_no_decision_log_stays(tmp_path: Path) -> None:
    """It may be JSON on one line, without a line end."""
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}')
    with closing(LineFile(path, where="gateway.decision_log", begins=LOG_BEGINS)) as file:
        file.append(b"a line\n")
    assert path.read_text() == '{"a": 1}a line\n'
