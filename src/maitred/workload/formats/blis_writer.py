"""TraceV2 for BLIS to read, or us: its 27 columns, and of the optional ones those that are needed.

A header has to come before the rows, so the first jobs say which optional columns there are. Of what prompts share, it can be
said what is the prefix of a group (which name that had is not known any more, and does not matter), and not what they repeat
of earlier rounds.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

from maitred.request import PrefixKeys, RequestId
from maitred.slo_classes import slo_class
from maitred.workload.content import Content
from maitred.workload.formats.blis import COLUMNS
from maitred.workload.job import Job
from maitred.workload.prefix import GroupPrefix
from maitred.workload.writing import WRITERS, Lost, Measured, TraceWriter, csv_line

_AFTER = {"slo_class": "vllm_priority", "deadline_us": "slo_target_us", "finish_reason": "x_request_id"}
_LAST = "adapter"
_LOSSES = {
    "vllm_priority": Lost.PRIORITY,
    "slo_target_us": Lost.TARGET,
    "x_request_id": Lost.ID,
    "adapter": Lost.NAMESPACE,
}


@WRITERS.register("blis")
class BlisWriter(TraceWriter):
    """A deadline at 0 cannot be said, since 0 means none."""

    companion = (".yaml", "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n")

    def __init__(self) -> None:
        self.lost: Counter[Lost] = Counter()
        self._rounds: Counter[str] = Counter()
        self._columns: Sequence[str] = COLUMNS

    def begin(self, first: Sequence[Job]) -> str:
        needed = {column for job in first for column, value in _optional(job).items() if value != ""}
        known = [*chain.from_iterable((name, _AFTER.get(name, "")) for name in COLUMNS), _LAST]
        self._columns = [name for name in known if name in COLUMNS or name in needed]
        return csv_line(self._columns)

    def row(self, job: Job) -> str:
        values = self._values(job)
        return csv_line(values.get(name, "") for name in self._columns)

    def measured(self, line: str, happened: Callable[[RequestId], Measured | None]) -> str:
        row = dict(zip(self._columns, next(csv.reader((line,))), strict=True))
        found = happened(int(row["request_id"])) if row["request_id"].isdecimal() else None
        return line if found is None else csv_line((row | _measured(found, row["streaming"] == "true")).values())

    def _values(self, job: Job) -> dict[str, object]:
        request = job.request
        group, shared = _group(request.prefix)
        own = request.prompt_tokens - shared
        round_index = self._round(request.program)
        repeats = job.whole is not None and round_index > 0
        extra = _optional(job)
        for column, value in extra.items():
            if value != "" and column not in self._columns:
                self.lost[_LOSSES[column]] += 1
        self.lost[Lost.PREFIX] += repeats or not isinstance(request.prefix, GroupPrefix | Content | None)
        self.lost[Lost.DEADLINE] += request.deadline == 0
        return extra | {
            "request_id": request.id,
            "tenant_id": request.tenant,
            "slo_class": slo_class(request),
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
            **dict.fromkeys(_ZERO, 0),
        }

    def _round(self, program: str) -> int:
        self._rounds[program] += bool(program)
        return max(0, self._rounds[program] - 1)


_STATUS = {"completed": "ok", "timed_out": "timeout"}
_ZERO = (
    *("image_tokens", "audio_tokens", "video_tokens", "reason_ratio", "server_input_tokens"),
    *("first_chunk_time_us", "last_chunk_time_us", "num_chunks"),
)


def _measured(found: Measured, streams: bool) -> dict[str, object]:
    """A chunk is a token, or the whole answer at once."""
    completed = found.outcome == "completed"
    first = found.first_token if streams else found.finished if completed else -1
    return {
        "first_chunk_time_us": max(first, 0),
        "last_chunk_time_us": found.finished if completed else 0,
        "num_chunks": found.output_tokens if streams else int(completed),
        "status": _STATUS.get(found.outcome, "error"),
        "error_message": "" if completed else found.outcome,
    }


def _group(prefix: PrefixKeys | None) -> tuple[str, int]:
    """Its name for the group with whose prefix a prompt begins, and the tokens of that; empty and 0: none."""
    if isinstance(prefix, GroupPrefix) and prefix.shared:
        return f"g{prefix.group}", prefix.shared
    if isinstance(prefix, Content) and prefix.group:
        return f"g{prefix.group[0]}", prefix.group[1]
    return "", 0


def _optional(job: Job) -> dict[str, object]:
    """vLLM's priorities say the contrary of ours: smaller is more urgent."""
    request = job.request
    priority = -request.priority if request.priority else ""
    return {
        "vllm_priority": int(priority) if isinstance(priority, float) and priority.is_integer() else priority,
        "slo_target_us": "" if request.slo_target is None else request.slo_target,
        "x_request_id": request.client_id,
        "adapter": request.cache_namespace,
    }
