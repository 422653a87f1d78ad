"""Measure the requests of programs: how long each was paused, prefilled and decoded, and how long the tool before it took.

    arrival ──pause──▶ granted ──prefill──▶ first data ──decode──▶ end ──tool──▶ arrival of the next request

Prefill and decode are known of streamed answers only, and are 0 otherwise. Prefill has the wait for a slot in it, if there was
one. A request counts when data of its response has come. The KV hit rate is the cached part of the prompt, where the
backend reports it; a request without it does not count in the average.

Sums are kept for each program, and forgotten with it. With a folder, each request is a row of `step_profiles.csv` as well
(ThunderAgent's columns), written in a thread of its own. A file of `MAX_CSV_BYTES`, or with other columns, becomes
`step_profiles.csv.1`, in place of the one before, so that two of that size is all the disk that profiles take.
"""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from maitred.core.errors import ConfigError, describe_os_error
from maitred.core.units import Micros, to_seconds
from maitred.files import check_own_file
from maitred.files.background_writer import BackgroundWriter, BatchSource
from maitred.files.line_file import PRIVATE, LineFile
from maitred.files.undo import make_folders
from maitred.programs import Program, ProgramAction, ProgramDecision, ProgramState
from maitred.scheduler.interface import MemoryLease, RealTimePrograms

CSV_NAME: Final = "step_profiles.csv"
HEADER: Final = "program_id,step_id,prefill_s,decode_s,pause_s,tool_call_s,kv_hit_rate,completed_at\n"
MAX_CSV_BYTES: Final = 64 * 1024 * 1024
MAX_PENDING: Final = 20_000
"""Rows that are kept while the disk does not take them; beyond, the oldest are dropped."""
_WHERE: Final = "programs.profile_dir"
_CONTROL_CHARACTERS: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


class ProfileSummary(msgspec.Struct, frozen=True):
    """The averages of one program, s. Null where nothing was measured."""

    step_count: int
    avg_prefill_s: float
    avg_decode_s: float
    avg_pause_s: float
    avg_tool_call_s: float
    avg_kv_hit_rate: float | None


class ProgramProfile:
    """The sums of one program, in µs."""

    __slots__ = ("_decode", "_hit_rate", "_num_hit_rates", "_pause", "_prefill", "_tool", "last_end", "step_count")

    def __init__(self) -> None:
        self.step_count = 0
        self.last_end: Micros | None = None
        self._prefill = self._decode = self._pause = self._tool = 0
        self._hit_rate = 0.0
        self._num_hit_rates = 0

    def add(self, request: RequestProfile) -> None:
        """Count a request."""
        self.step_count += 1
        self.last_end = request.ended_at
        self._prefill += request.prefill
        self._decode += request.decode
        self._pause += request.pause
        self._tool += request.tool
        if request.kv_hit_rate is not None:
            self._hit_rate += request.kv_hit_rate
            self._num_hit_rates += 1

    def summary(self) -> ProfileSummary:
        """Return the averages; that of the tools is over all requests but the first."""
        requests = max(1, self.step_count)
        return ProfileSummary(
            step_count=self.step_count,
            avg_prefill_s=_seconds(self._prefill / requests),
            avg_decode_s=_seconds(self._decode / requests),
            avg_pause_s=_seconds(self._pause / requests),
            avg_tool_call_s=_seconds(self._tool / max(1, self.step_count - 1)),
            avg_kv_hit_rate=round(self._hit_rate / self._num_hit_rates, 4) if self._num_hit_rates else None,
        )


class RequestProfile(msgspec.Struct, frozen=True):
    """One request, in µs."""

    prefill: Micros
    decode: Micros
    pause: Micros
    tool: Micros
    ended_at: Micros
    kv_hit_rate: float | None


class ProgramProfiler(BatchSource[Sequence[str]]):
    """Profiles the programs of one gateway."""

    def __init__(self, driver: RealTimePrograms, folder: str | None, file_mode: int = PRIVATE) -> None:
        """`file_mode` is for files that are made. Raises ConfigError if `folder` cannot be written."""
        self._driver = driver
        self._profiles: dict[int, ProgramProfile] = {}
        """By serial number of the program."""
        self._rows: list[str] = []
        self._num_written = 0  # Rows of the last batch that are in the file; the thread sets it.
        self._path = None if folder is None else _prepare(Path(folder), file_mode)
        self._file_mode = file_mode
        self._writer = BackgroundWriter(self, "step profiles")
        driver.observers.append(self._on_decisions)
        driver.end_observers.append(self._on_request_ended)

    def start(self) -> None:
        """Begin to write, inside this event loop."""
        if self._path is not None:
            self._writer.start()

    async def close(self) -> None:
        """Write what is left."""
        await self._writer.close()

    def find(self, program: Program) -> ProfileSummary | None:
        """Return the averages of a program, or None if no request of it has ended."""
        profile = self._profiles.get(program.serial)
        return None if profile is None else profile.summary()

    def _on_decisions(self, decisions: Sequence[ProgramDecision]) -> None:
        for decision in decisions:
            if decision.action is ProgramAction.END:
                self._profiles.pop(decision.program, None)

    def _on_request_ended(self, lease: MemoryLease, program: Program | None) -> None:
        if program is None or program.is_anonymous or program.state is ProgramState.TERMINATED:
            return
        if lease.granted_at is None or lease.first_data_at is None:
            return
        profile = self._profiles.setdefault(program.serial, ProgramProfile())
        measured = _measure(lease, profile.last_end, self._driver.clock.now())
        profile.add(measured)
        if self._path is not None:
            self._rows.append(_row(program.key.name, profile.step_count, measured, self._driver.clock.wall()))
            del self._rows[:-MAX_PENDING]

    def take_batch(self) -> Sequence[str] | None:
        batch, self._rows, self._num_written = self._rows, [], 0
        return batch or None

    def write_batch(self, batch: Sequence[str]) -> None:
        assert self._path is not None, "rows are made for a file only"
        if _has_other_columns(self._path) or (self._path.exists() and self._path.stat().st_size >= MAX_CSV_BYTES):
            self._path.replace(_old(self._path))
        # Opened for each batch, by its name: it may have been moved.
        with closing(_open(self._path, self._file_mode)) as file:
            rows = "".join(batch).encode()
            try:
                file.append(rows)
            finally:
                self._num_written = rows.count(b"\n", 0, file.num_written)

    def give_back(self, batch: Sequence[str]) -> None:
        self._rows = [*batch[self._num_written :], *self._rows][-MAX_PENDING:]


def _open(path: Path, file_mode: int) -> LineFile:
    return LineFile(path, where=_WHERE, header=HEADER.encode(), mode=file_mode)


def _prepare(folder: Path, file_mode: int) -> Path:
    """Return the path of the file, which may be appended to, or has other columns and may be moved aside."""
    path = folder / CSV_NAME
    try:
        make_folders(folder)
        check_own_file(path)
        is_to_be_moved = _has_other_columns(path)
        if is_to_be_moved and not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {describe_os_error(error)}", where=_WHERE) from error
    if not is_to_be_moved:
        _open(path, file_mode).close()
    return path


def _has_other_columns(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open("rb") as file:
        return file.readline(len(HEADER) + 1) not in (b"", HEADER.encode())


def _old(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _measure(lease: MemoryLease, last_end: Micros | None, now: Micros) -> RequestProfile:
    assert lease.granted_at is not None
    assert lease.first_data_at is not None
    usage = lease.usage
    hit_rate = None
    if usage is not None and usage.cached_tokens is not None and usage.prompt_tokens:
        hit_rate = min(usage.cached_tokens / usage.prompt_tokens, 1.0)
    return RequestProfile(
        prefill=lease.first_data_at - lease.granted_at if lease.is_stream else 0,
        decode=now - lease.first_data_at if lease.is_stream else 0,
        pause=max(0, lease.granted_at - lease.arrival),
        tool=0 if last_end is None else max(0, lease.arrival - last_end),
        ended_at=now,
        kv_hit_rate=hit_rate,
    )


def _row(name: str, step_id: int, request: RequestProfile, at: Micros) -> str:
    """Return a row of a request that has ended `at` this time of day; the id is quoted, and control characters in it are
    escaped, so that a row is one line."""
    line = io.StringIO()
    times = [f"{to_seconds(span):.4f}" for span in (request.prefill, request.decode, request.pause, request.tool)]
    hit_rate = "" if request.kv_hit_rate is None else f"{request.kv_hit_rate:.4f}"
    quoted = name.translate(_CONTROL_CHARACTERS).replace('"', '""')
    csv.writer(line, lineterminator="\n").writerow([step_id, *times, hit_rate, f"{to_seconds(at):.4f}"])
    return f'"{quoted}",{line.getvalue()}'


def _seconds(span: float) -> float:
    return round(span / 1e6, 4)
