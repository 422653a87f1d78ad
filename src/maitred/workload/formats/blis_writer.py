"""TraceV2 for BLIS to read, or us: its 27 columns, and of the optional ones those that are needed.

A header has to come before the rows, so the first jobs say which optional columns there are. Prefixes can be said where
they are those of a group (`GroupPrefix`): which name the group had is not known any more, and does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from maitred.slo_classes import slo_class
from maitred.workload.formats.blis import COLUMNS
from maitred.workload.job import Job
from maitred.workload.prefix import GroupPrefix
from maitred.workload.writing import WRITERS, Lost, TraceWriter, csv_line

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

    def _values(self, job: Job) -> dict[str, object]:
        request = job.request
        shared = request.prefix if isinstance(request.prefix, GroupPrefix) and request.prefix.shared else None
        own = request.prompt_tokens - (shared.shared if shared else 0)
        extra = _optional(job)
        for column, value in extra.items():
            if value != "" and column not in self._columns:
                self.lost[_LOSSES[column]] += 1
        if request.prefix is not None and not isinstance(request.prefix, GroupPrefix):
            self.lost[Lost.PREFIX] += 1
        self.lost[Lost.DEADLINE] += request.deadline == 0
        return extra | {
            "request_id": request.id,
            "tenant_id": request.tenant,
            "slo_class": slo_class(request),
            "session_id": request.program,
            "round_index": self._round(request.program),
            "prefix_group": f"g{shared.group}" if shared else "",
            "prefix_length": shared.shared if shared else 0,
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


_ZERO = (
    *("image_tokens", "audio_tokens", "video_tokens", "reason_ratio", "server_input_tokens"),
    *("first_chunk_time_us", "last_chunk_time_us", "num_chunks"),
)


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
