"""The source `file`: what it reads of files, and what it says of broken ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from heard import Heard, write

from maitred.core.errors import ConfigError
from maitred.scheduler.discovery.base import SOURCES, SourceError, SourceListener, checked_urls
from maitred.scheduler.discovery.file_source import FileSource, parse_groups
from maitred.testing import check_source

A, B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


def test_targets_follow_the_file_and_a_broken_one_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"

    async def scenario() -> None:
        heard = Heard()
        task = asyncio.create_task(FileSource(str(path), interval=0.01).run(heard))
        assert await heard.next() == f"{path} cannot be read: no such file or directory"
        write(path, '[{"targets": ["10.0.0.1:8000"], "labels": {"zone": "a"}}]')
        assert await heard.next() == [A]
        write(path, "- targets: [10.0.0.1:8000, 'http://10.0.0.2:8000']\n")
        assert await heard.next() == [A, B]
        write(path, "[]")
        assert await heard.next() == []
        write(path, "")
        assert await heard.next() == f"{path} is empty: a list without targets is written as []"
        task.cancel()

    asyncio.run(scenario())


def test_a_star_stands_for_any_text_in_the_last_part(tmp_path: Path) -> None:
    write(tmp_path / "a.json", '[{"targets": ["10.0.0.1:8000"]}]')
    write(tmp_path / "b.json", '[{"targets": ["10.0.0.2:8000"], "labels": {"__scheme__": "https"}}]')

    async def scenario() -> None:
        heard = Heard()
        task = asyncio.create_task(FileSource(str(tmp_path / "*.json"), interval=0.01).run(heard))
        assert await heard.next() == [A, "https://10.0.0.2:8000"]
        (tmp_path / "a.json").unlink()
        assert await heard.next() == ["https://10.0.0.2:8000"]
        (tmp_path / "b.json").unlink()
        assert await heard.next() == f"there is no file {tmp_path / '*.json'}"
        task.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"targets": []}', 'f is no list of targets: Expected `array`, got `object` (write [{"targets": ["host:port"]}])'),
        (b'[{"targets": "a:1"}]', "f is no list of targets: Expected `array`, got `str` - at `$[0].targets`"),
        (b"[{", "f:1:3: not YAML"),
        (b"\xff\xfe[]", "f is not UTF-8"),
        (b"[" * 100_000, "f is nested too deeply"),
    ],
)
def test_what_is_no_list_of_targets_is_one_clear_line(content: bytes, problem: str) -> None:
    with pytest.raises(SourceError) as error:
        parse_groups(content, "f")
    assert str(error.value).startswith(problem)
    assert "\n" not in str(error.value)


def test_they_keep_the_contract_of_a_source(tmp_path: Path) -> None:
    write(tmp_path / "a.json", '[{"targets": ["10.0.0.1:8000"]}]')
    for source in (f"file({tmp_path / 'a.json'})", f"file({tmp_path / 'none'})", "static([http://a:1, http://b:1])"):
        check_source(source)
    with pytest.raises(AssertionError, match="it has ended"):
        check_source(Ending)


class Ending:
    """A source that breaks its contract."""

    async def run(self, told: SourceListener) -> None:
        told.listed([])


@pytest.mark.parametrize("url", ["http://a:1/v1", "ftp://a:1", "http://a:port", "http://"])
def test_a_target_that_is_no_origin_is_refused(url: str) -> None:
    with pytest.raises(SourceError):
        checked_urls([url])


def test_too_many_backends_are_refused() -> None:
    with pytest.raises(SourceError, match="5,000 backends are listed, and 4,096 are the most"):
        checked_urls([f"http://h{number}:1" for number in range(5_000)])


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("file", "source of backends 'file' needs 'path'"),
        ("file(/a/*/b.json)", "path may have \\* in its last part alone"),
        ("file(/a, interval=0)", "interval must be more than 0"),
        ("static([http://a:1/x])", "has more than a host and a port"),
        ("fil(/a)", "unknown source of backends 'fil'"),
    ],
)
def test_a_source_that_is_written_wrongly_is_one_clear_error(spec: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SOURCES.create(spec)
