"""What a gateway writes for as long as it serves: the log of decisions, the recording of requests, the lines of its log.

All are opened before anything is served, so that a start that fails leaves none behind (`files/undo.py`), and SIGHUP opens them
anew, as tools that rotate files expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from maitred.core.decisions import LOG_BEGINS, DecisionLog, encode_gap, encode_seal
from maitred.core.errors import ConfigError, describe_os_error
from maitred.files import check_output, named_path
from maitred.files.append_file import AppendFile
from maitred.files.line_file import LineFile
from maitred.gateway.config import GatewayConfig
from maitred.gateway.observe.access_log import AccessLog
from maitred.gateway.observe.logs import LogOutput
from maitred.gateway.observe.record_file import RecordFile, open_rows
from maitred.gateway.observe.recording import RecordSink, TrafficRecorder
from maitred.replay.narrated_log import NarratedLog
from maitred.replay.narrator import Narrator
from maitred.wire.clock import Clock

RECENT_REQUESTS: Final = 1000
"""Requests of which a gateway with a decision log knows the story, unless the configuration says otherwise."""


class GatewayOutputs:
    """The files of one gateway that are written while it serves, from `start` to `close`."""

    def __init__(self, config: GatewayConfig, clock: Clock, log_output: LogOutput | None = None) -> None:
        """`log_output` takes the lines of the log; None: standard error. Raises ConfigError for a file that cannot be had."""
        self._decision_file = _open_decision_log(config)
        self.narrator = _narrator(config)
        """What knows the stories of recent requests, or None if nobody is to ask for them."""
        self.decisions = _decision_log(self._decision_file, self.narrator)
        """Every input and decision of the cores, or None if they are not logged."""
        self.record_sink = None if config.record is None else self.open_record(config.record, clock, config.file_mode)
        """Where the rows of a recording go, or None if requests are not recorded."""
        self.recorder = None if self.record_sink is None else TrafficRecorder(self.record_sink)
        """What records the requests, or None if they are not recorded."""
        self._log = log_output or LogOutput(config.log_format, file_mode=config.file_mode)
        self.access_log = AccessLog(self._log, clock) if config.access_log else None
        """What writes a line for each request, or None if there is none."""

    def open_record(self, path: str, clock: Clock, file_mode: int) -> RecordSink:
        """Return where the rows of a recording go. Raises ConfigError for a file that cannot be had."""
        return RecordFile(path, clock, file_mode)

    def start(self) -> None:
        """Write from now on, inside this event loop."""
        self._log.start()
        for file in (self._decision_file, self.record_sink):
            if file is not None:
                file.start()

    def reopen(self) -> None:
        """Open each file anew under its name before the next line is written."""
        for file in (self._decision_file, self.record_sink, self._log):
            if file is not None:
                file.reopen()

    async def close(self) -> None:
        """Write what is left, and close the files; the log last, because the others may have something to say in it."""
        for file in (self._decision_file, self.record_sink, self._log):
            if file is not None:
                await file.close()

    @property
    def log(self) -> LogOutput:
        """Where the lines of the log go."""
        return self._log

    @property
    def decision_log_failed(self) -> bool:
        """Whether inputs and decisions are not written at present, or are lost."""
        return self._decision_file is not None and self._decision_file.failed

    def dropped_lines(self) -> dict[str, int]:
        """Return how many lines each file has lost."""
        return {
            "decision_log": 0 if self._decision_file is None else self._decision_file.num_dropped,
            "record": 0 if self.record_sink is None else self.record_sink.num_dropped,
            "log": self._log.num_dropped,
        }


def output_problems(config: GatewayConfig) -> Iterator[ConfigError]:
    """Yield why a gateway would not start with the files that it is to write. Nothing is made or changed."""
    for key, path, open_file in (
        ("decision_log", config.decision_log, _open_decisions),
        ("record", config.record, open_rows),
    ):
        if path is None:
            continue
        try:
            if not path or Path(path).is_file():
                open_file(path, config.file_mode).close()
            else:
                check_output(Path(path))
        except OSError as error:
            yield ConfigError(f"cannot write {path}: {describe_os_error(error)}", where=f"gateway.{key}")
        except ConfigError as error:
            yield error


def _narrator(config: GatewayConfig) -> Narrator | None:
    wanted = config.recent_requests
    if wanted is None:
        wanted = 0 if config.decision_log is None else RECENT_REQUESTS
    return Narrator(wanted) if wanted else None


def _decision_log(file: AppendFile | None, narrator: Narrator | None) -> DecisionLog | None:
    if narrator is not None:
        return NarratedLog(narrator, None if file is None else file.write)
    return None if file is None else DecisionLog(file.write)


def _open_decision_log(config: GatewayConfig) -> AppendFile | None:
    if config.decision_log is None:
        return None
    file = _open_decisions(config.decision_log, config.file_mode)
    return AppendFile(file, "decisions", gap_line=encode_gap, seal_line=encode_seal)


def _open_decisions(path: str, file_mode: int) -> LineFile:
    where = "gateway.decision_log"
    return LineFile(named_path(path, where), where=where, begins=LOG_BEGINS, mode=file_mode)
