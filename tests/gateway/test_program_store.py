"""The file of programs, damaged in every way: it is moved aside and begun anew, or the start says why it cannot be used."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass
from maitred.programs import ProgramKey
from maitred.scheduler.programs import store as program_store
from maitred.scheduler.programs.store import ProgramStore, StateChanges, StoredProgram

NUM_PROGRAMS = 60


def stored(number: int) -> StoredProgram:
    return StoredProgram(
        *("acme", f"program-{number}", "llama", PriorityClass.DEFAULT, "", "http://a:1", 0),
        *(100, 400, 0, 3, 2, 1.5, number, number),
    )


ALL = [stored(number) for number in range(NUM_PROGRAMS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file with programs that was closed in order."""
    path = tmp_path / "programs.sqlite"
    with closing(ProgramStore(str(path))) as store:
        store.write(StateChanges({ProgramKey(each.tenant, each.name, each.model): each for each in ALL}))
    return path


def found(path: Path) -> list[StoredProgram]:
    with closing(ProgramStore(str(path))) as store:
        programs = list(store.found)
        store.write(StateChanges({ProgramKey("t", "later", "m"): stored(1)}))
    return programs


def places(content: bytes) -> Iterator[int]:
    """Yield the places to flip: the header, the schema, and the first, a middle and the last bytes of each page."""
    yield from range(100)
    yield from range(content.index(b"CREATE TABLE"), content.index(b"CREATE TABLE") + 300, 7)
    for page in range(0, len(content), 4096):
        yield from (page, page + 1, page + 3, page + 5, page + 8, page + 2048, page + 4095)


def test_one_flipped_byte_ends_no_start(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, aside = path.read_bytes(), path.with_name("programs.sqlite.unreadable")
    num_moved = 0
    for place in places(good):
        for file in path.parent.iterdir():
            file.unlink()
        bad = bytearray(good)
        bad[place] ^= 0xFF
        path.write_bytes(bad)
        caplog.clear()
        programs = found(path)
        assert aside.exists() == (not programs), place
        assert aside.exists() == ("cannot be read" in caplog.text), place
        if len(programs) not in (0, NUM_PROGRAMS):
            assert "make no sense" in caplog.text, place
        num_moved += aside.exists()
    assert num_moved > 50


@pytest.mark.parametrize("size", [1, 50, 100, 4095, 4096, 8192])
def test_a_file_that_is_cut_off_is_moved_aside(path: Path, size: int) -> None:
    content = path.read_bytes()[:size]
    path.write_bytes(content)
    assert found(path) == []
    assert path.with_name("programs.sqlite.unreadable").read_bytes()[:size] == content


def test_an_empty_file_is_begun_anew_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"")
    assert found(path) == []
    assert "is empty: programs of the last run are not known" in caplog.text


def test_what_was_moved_aside_before_stays(path: Path) -> None:
    for number in (1, 2):
        path.write_bytes(b"damage %d" % number * 1000)
        assert found(path) == []
    for name, number in (("unreadable", 1), ("unreadable.2", 2)):
        assert path.with_name(f"{path.name}.{name}").read_bytes().startswith(b"damage %d" % number)


def test_a_file_that_another_program_has_locked_is_an_error_and_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_store, "_LOCK_SECS", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigError, match=r"programs\.state: another program has locked .*programs\.sqlite \(close"):
            ProgramStore(str(path))
    assert found(path) == ALL


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anything")
def test_a_file_that_may_not_be_written_is_an_error_and_stays(path: Path) -> None:
    path.chmod(0o400)
    with pytest.raises(ConfigError, match=r"may not be read and written"):
        ProgramStore(str(path))
    path.chmod(0o600)
    assert found(path) == ALL


KINDS: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "it is a pipe, where a file is needed"),
    (Path.mkdir, "is a directory"),
    (
        lambda path: path.symlink_to("/dev/zero"),
        r"(it is a device, where a file is needed|programs\.sqlite[.-]\w+ is a symbolic link)",
    ),
]


@pytest.mark.parametrize(("make", "problem"), KINDS)
@pytest.mark.parametrize("suffix", ["", ".lock", "-wal"])
def test_a_path_that_leads_to_no_file_is_an_error(
    tmp_path: Path, make: Callable[[Path], object], problem: str, suffix: str
) -> None:
    make(tmp_path / f"programs.sqlite{suffix}")
    with pytest.raises(ConfigError, match=rf"programs\.state: cannot keep programs in .*programs\.sqlite: {problem}"):
        ProgramStore(str(tmp_path / "programs.sqlite"))


def test_a_write_after_a_failure_opens_the_file_anew(path: Path) -> None:
    with closing(ProgramStore(str(path))) as store:
        store.write(StateChanges({ProgramKey("t", "a", "m"): stored(1)}))
        with pytest.raises(sqlite3.Error):
            store.write(StateChanges({ProgramKey("t", "b", "m"): (1, 2)}))  # type: ignore[dict-item]
        store.write(StateChanges({ProgramKey("acme", "program-0", "llama"): None}))
    assert len(found(path)) == NUM_PROGRAMS - 1
