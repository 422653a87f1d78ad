"""Writing TraceV2 for BLIS and maitred: its 27 columns, and the optional ones that are needed.

The writer is registered as `blis` in `WRITERS` (`workload/trace_writer.py`); the reader of the format is `formats/blis.py`.

The header comes before the rows, so the first jobs decide which optional columns the file has. Of shared prefixes the format
can hold the prefix of a group (under a new name, since jobs do not have the old one), but not what a prompt repeats of earlier
rounds.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from maitred.core.request import PrefixKeys, RequestId
from maitred.core.slo_classes import slo_class_of
from maitred.workload.formats.blis import WRITTEN_COLUMNS
from maitred.workload.job import Job
from maitred.workload.prefix_keys import GroupPrefixKeys, PieceChain
from maitred.workload.trace_writer import WRITERS, LostField, RequestMeasurement, TraceWriter, csv_line

# Where BLIS puts the optional columns: after these, and one at the end.
_OPTIONAL_AFTER = {"slo_class": "vllm_priority", "deadline_us": "slo_target_us", "finish_reason": "x_request_id"}
_LAST_COLUMN = "adapter"
_LOST_FIELDS = {
    "vllm_priority": LostField.PRIORITY,
    "slo_target_us": LostField.TARGET,
    "x_request_id": LostField.ID,
    "adapter": LostField.NAMESPACE,
}


@WRITERS.register("blis")
class BlisWriter(TraceWriter):
    """BLIS's TraceV2, with its header beside it. A deadline at time 0 cannot be written, because 0 means no deadline."""

    companion_file = (".yaml", "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n")

    def __init__(self) -> None:
        self.lost_fields: Counter[LostField] = Counter()
        self._rounds: Counter[str] = Counter()
        self._columns: Sequence[str] = WRITTEN_COLUMNS

    def header(self, first_jobs: Sequence[Job]) -> str:
        needed = {column for job in first_jobs for column, value in _optional_columns(job).items() if value != ""}
        known = [*chain.from_iterable((name, _OPTIONAL_AFTER.get(name, "")) for name in WRITTEN_COLUMNS), _LAST_COLUMN]
        self._columns = [name for name in known if name in WRITTEN_COLUMNS or name in needed]
        return csv_line(self._columns)

    def row(self, job: Job) -> str:
        values = self._values(job)
        return csv_line(values.get(name, "") for name in self._columns)

    def with_measurement(self, line: str, measurement_of: Callable[[RequestId], RequestMeasurement | None]) -> str:
        row = dict(zip(self._columns, next(csv.reader((line,))), strict=True))
        found = measurement_of(int(row["request_id"])) if row["request_id"].isdecimal() else None
        return line if found is None else csv_line((row | _measured_columns(found, row["streaming"] == "true")).values())

    def _values(self, job: Job) -> dict[str, object]:
        request = job.request
        group, shared = _prefix_group(request.prefix)
        own = request.prompt_tokens - shared
        round_index = self._round_index(request.program)
        extra = _optional_columns(job)
        self._count_lost_fields(job, extra, round_index)
        return extra | {
            "request_id": request.id,
            "tenant_id": request.tenant,
            "slo_class": slo_class_of(request),
            "session_id": request.program,
            "round_index": round_index,
            "prefix_group": group,
            "prefix_length": shared,
            "streaming": "true" if request.stream else "false",
            "input_tokens": own,
            "output_tokens": job.output_tokens,
            "text_tokens": own,
            "model": request.model,
            "deadline_us": request.deadline or 0,
            "arrival_time_us": request.arrival,
            "send_time_us": request.arrival,
            "status": "ok",
            **dict.fromkeys(_ZERO_COLUMNS, 0),
        }

    def _count_lost_fields(self, job: Job, extra: Mapping[str, object], round_index: int) -> None:
        """Count what the row cannot hold: optional values without a column, and prefixes that only the history explains."""
        for column, value in extra.items():
            if value != "" and column not in self._columns:
                self.lost_fields[_LOST_FIELDS[column]] += 1
        prefix = job.request.prefix
        repeats = job.conversation_prefix is not None and round_index > 0
        self.lost_fields[LostField.PREFIX] += repeats or not isinstance(prefix, GroupPrefixKeys | PieceChain | None)
        self.lost_fields[LostField.DEADLINE] += job.request.deadline == 0  # 0 is how the format says that there is none

    def _round_index(self, program: str) -> int:
        self._rounds[program] += bool(program)
        return max(0, self._rounds[program] - 1)


_STATUS_OF_OUTCOME = {"completed": "ok", "timed_out": "timeout"}
_ZERO_COLUMNS = (
    *("image_tokens", "audio_tokens", "video_tokens", "reason_ratio", "server_input_tokens"),
    *("first_chunk_time_us", "last_chunk_time_us", "num_chunks"),
)


def _measured_columns(found: RequestMeasurement, streams: bool) -> dict[str, object]:
    """Return the columns of a measurement. A streamed answer has one chunk per token, any other answer has one chunk."""
    completed = found.outcome == "completed"
    first = found.first_token if streams else found.finished if completed else -1
    return {
        "first_chunk_time_us": max(first, 0),
        "last_chunk_time_us": found.finished if completed else 0,
        "num_chunks": found.output_tokens if streams else int(completed),
        "status": _STATUS_OF_OUTCOME.get(found.outcome, "error"),
        "error_message": "" if completed else found.outcome,
    }


def _prefix_group(prefix: PrefixKeys | None) -> tuple[str, int]:
    """Return the name of the group that the prompt shares its prefix with, and its tokens; empty and 0 if none."""
    if isinstance(prefix, GroupPrefixKeys) and prefix.shared_tokens:
        return f"g{prefix.group}", prefix.shared_tokens
    if isinstance(prefix, PieceChain) and prefix.shared_piece:
        return f"g{prefix.shared_piece[0]}", prefix.shared_piece[1]
    return "", 0


def _optional_columns(job: Job) -> dict[str, object]:
    """Return the optional columns. For vLLM a smaller priority is more urgent, in `Request` a larger one."""
    request = job.request
    priority = -request.priority if request.priority else ""
    return {
        "vllm_priority": int(priority) if isinstance(priority, float) and priority.is_integer() else priority,
        "slo_target_us": "" if request.slo_target is None else request.slo_target,
        "x_request_id": request.client_id,
        "adapter": request.cache_namespace,
    }
