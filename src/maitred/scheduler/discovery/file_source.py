"""The source `file`: what something else writes to a file, in the format of Prometheus' `file_sd_config`.

    [{"targets": ["10.0.0.1:8000", "10.0.0.2:8000"], "labels": {"__scheme__": "http"}}]

JSON, or YAML of the same shape. A target is `host:port`, or a URL; the label `__scheme__` says http (the default) or https, and
other labels are not looked at. `*` in the last part of the path stands for any text: the targets of all such files are listed.

The path is looked at every `interval` seconds, in a thread, and the files are read when one of them has another time, size or
number than before, and every `RESYNC_SECS` in any case, since a file system may keep coarse times. A file that cannot be read,
or has not the format (because it is being written), is a failure: the last list holds. Write a file beside it and rename it.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from maitred.core.errors import ConfigError, describe_os_error
from maitred.core.units import Micros, from_seconds
from maitred.core.yaml_document import YamlDocument
from maitred.files import MAX_TEXT_BYTES, read_file
from maitred.files.daemon_threads import DAEMON_THREADS
from maitred.scheduler.discovery.base import SOURCES, BackendSource, SourceError, SourceInfo, SourceListener, check_secs, url_of

RESYNC_SECS: Final = 60.0
_MAX_FILES: Final = 256
_SCHEMES: Final = ("http", "https")


class TargetGroup(msgspec.Struct):
    """One entry of such a file."""

    targets: list[str] = []
    labels: dict[str, str] = {}


class _Mark(NamedTuple):
    """What says that a file is another one than before."""

    path: str
    modified_ns: int
    size: int
    number: int


@SOURCES.register("file")
class FileSource(BackendSource):
    """Lists the targets in files in the format of Prometheus' file_sd."""

    about = SourceInfo(
        summary="the targets in a file in the format of Prometheus' `file_sd`, JSON or YAML; `*` in its name is any text",
        looks="every `interval` seconds, and reads when the file has changed",
    )

    def __init__(self, path: str, interval: float = 1.0) -> None:
        """Raises ValueError for a path with `*` in a folder."""
        check_secs("interval", interval)
        self._path, self._interval = Path(path), interval
        if "*" in str(self._path.parent):
            raise ValueError("path may have * in its last part alone")

    async def run(self, told: SourceListener) -> None:
        loop, clock = asyncio.get_running_loop(), told.machine.clock
        before, read_at = list[_Mark](), clock.now() - from_seconds(RESYNC_SECS)
        while True:
            try:
                marks = await loop.run_in_executor(DAEMON_THREADS, self._marks)
                if marks != before or self._is_old(read_at, clock.now()):
                    told.listed(await loop.run_in_executor(DAEMON_THREADS, self._read, marks))
                    before, read_at = marks, clock.now()
            except SourceError as error:
                before = []
                told.failed(str(error))
            await asyncio.sleep(self._interval)

    def _is_old(self, read_at: Micros, now: Micros) -> bool:
        return now - read_at >= from_seconds(RESYNC_SECS)

    def _paths(self) -> list[Path]:
        if "*" not in self._path.name:
            return [self._path]
        names = sorted(each.name for each in self._path.parent.iterdir())
        return [self._path.parent / name for name in names if fnmatch.fnmatchcase(name, self._path.name)][: _MAX_FILES + 1]

    def _marks(self) -> list[_Mark]:
        """Return the marks of all files, by which a change is noticed. Raises SourceError."""
        try:
            paths = self._paths()
            stats = [(path, path.stat()) for path in paths]
        except OSError as error:
            raise SourceError(f"{error.filename or self._path} cannot be read: {describe_os_error(error)}") from error
        if not paths:
            raise SourceError(f"there is no file {self._path}")
        if len(paths) > _MAX_FILES:
            raise SourceError(f"{self._path} means more than {_MAX_FILES} files")
        return [_Mark(str(path), found.st_mtime_ns, found.st_size, found.st_ino) for path, found in stats]

    def _read(self, marks: Sequence[_Mark]) -> list[str]:
        return [url for mark in marks for url in _targets(Path(mark.path))]


def _targets(path: Path) -> Iterator[str]:
    try:
        groups = parse_groups(read_file(path, MAX_TEXT_BYTES), str(path))
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {describe_os_error(error)}") from error
    for group in groups:
        scheme = group.labels.get("__scheme__", "http")
        if scheme not in _SCHEMES:
            raise SourceError(f"{path}: __scheme__ is {scheme!r} and must be http or https")
        yield from (target if "://" in target else url_of(target, scheme=scheme) for target in group.targets)


def parse_groups(content: bytes, name: str) -> list[TargetGroup]:
    """Return the entries of a file. Raises SourceError for content that is neither JSON nor YAML of that shape."""
    if not content.strip():
        raise SourceError(f"{name} is empty: a list without targets is written as []")
    try:
        found: Any = json.loads(content)
    except RecursionError:
        raise SourceError(f"{name} is nested too deeply") from None
    except ValueError:
        try:
            found = YamlDocument(content.decode("utf-8-sig"), name).value
        except (ConfigError, UnicodeDecodeError) as error:
            raise SourceError(str(error) if isinstance(error, ConfigError) else f"{name} is not UTF-8") from error
    try:
        return msgspec.convert(found, list[TargetGroup])
    except msgspec.ValidationError as error:
        hint = 'write [{"targets": ["host:port"]}]'
        raise SourceError(f"{name} is no list of targets: {error} ({hint})") from error
