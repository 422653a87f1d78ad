"""Computed results that are kept on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from maitred.files.computed import cache_folder, computed


class Question(msgspec.Struct):
    number: int


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "maitred" / "squares"


def square(number: int, computing: list[int]) -> int:
    def compute() -> int:
        computing.append(number)
        return number * number

    return computed("squares", Question(number), int, compute)


def test_each_is_computed_once(folder: Path) -> None:
    computing: list[int] = []

    assert [square(number, computing) for number in (3, 4, 3)] == [9, 16, 9]
    assert computing == [3, 4]
    assert [path.suffix for path in folder.iterdir()] == [".json", ".json"]  # and nothing half written


@pytest.mark.parametrize("content", [b"", b'[{"number":3},9', b'[{"number":3},"nine"]', b'[{"number":4},16]', b"\xff"])
def test_a_file_that_is_not_what_it_should_be_is_made_anew(folder: Path, content: bytes) -> None:
    computing: list[int] = []
    square(3, computing)
    (kept,) = folder.iterdir()
    kept.write_bytes(content)

    assert [square(3, computing), square(3, computing)] == [9, 9]
    assert computing == [3, 3]


def test_a_folder_that_cannot_be_written_costs_time_alone(folder: Path) -> None:
    folder.parent.write_text("a file, where the folder should be")
    computing: list[int] = []

    assert [square(3, computing), square(3, computing)] == [9, 9]
    assert computing == [3, 3]


def test_a_relative_folder_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")

    assert cache_folder() == Path("~/.cache/maitred").expanduser()
