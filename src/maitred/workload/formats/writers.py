"""Writing traces: for BLIS (TraceV2) and in maitred's own CSV, each with its columns and the optional ones that are needed.

The writers are registered in `WRITERS` (`workload/trace_writer.py`); `formats/blis.py` and `formats/maitred.py` read what they
write. The header of the columns comes before the rows, so the first jobs decide which optional columns a file has.

**BLIS**: 27 columns, and the YAML beside them says for the whole file whether its sessions accumulate
(`session_context_growth`): the row of a later round then has the new tokens of its prompt only. A session of which a prompt
does not contain the rounds before it cannot be written in such a file: its later rows lose their session. Of other shared
prefixes the format can hold that of a group (under a new name, since jobs do not have the old one).

**maitred**: what prompts share is written in the shortest form that says all of it:

    continues: true           the prompt begins with the last prompt of its program and the response to it
    prefix_group              the prompt begins with tokens of a group, and is its own from there on
    block_ids                 anything else, in blocks: of the format that the jobs came from, or of 16 tokens
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from maitred.core.request import PrefixKeys, RequestId
from maitred.core.slo_classes import priority_class_of, slo_class_of
from maitred.workload.formats.blis import WRITTEN_COLUMNS
from maitred.workload.formats.maitred import ALL_COLUMNS, COMPLETED, EXTRA_COLUMNS, format_row, format_seconds
from maitred.workload.job import Job
from maitred.workload.prefix_keys import ChainedBlockIds, UnchainedBlockIds, pieces_of, shared_beginning
from maitred.workload.trace_writer import WRITERS, Conversations, LostField, RequestMeasurement, TraceWriter, csv_line

# Where BLIS puts the optional columns: after these, and the last ones at the end.
_OPTIONAL_AFTER = {"slo_class": "vllm_priority", "deadline_us": "slo_target_us", "finish_reason": "x_request_id"}
_LAST_COLUMNS = ("adapter", "think_time_us")
_HEADER = "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
_ACCUMULATES = "session_context_growth: accumulate\n"
_LOST_FIELDS = {
    "vllm_priority": LostField.PRIORITY,
    "slo_target_us": LostField.TARGET,
    "x_request_id": LostField.ID,
    "adapter": LostField.NAMESPACE,
    "think_time_us": LostField.THINK_TIME,
}


@WRITERS.register("blis")
class BlisWriter(TraceWriter):
    """BLIS's TraceV2, with its header beside it. A deadline at time 0 cannot be written, because 0 means no deadline."""

    def __init__(self) -> None:
        self.lost_fields: Counter[LostField] = Counter()
        self._rounds: Counter[str] = Counter()
        self._columns: Sequence[str] = WRITTEN_COLUMNS
        self._accumulates = False
        self._conversations = Conversations()

    @property
    def companion_file(self) -> tuple[str, str]:
        return ".yaml", _HEADER + (_ACCUMULATES if self._accumulates else "")

    def header(self, first_jobs: Sequence[Job]) -> str:
        self._accumulates = any(job.request.program and pieces_of(job.conversation_prefix) for job in first_jobs)
        needed = {column for job in first_jobs for column, value in _optional_columns(job).items() if value != ""}
        known = [*chain.from_iterable((name, _OPTIONAL_AFTER.get(name, "")) for name in WRITTEN_COLUMNS), *_LAST_COLUMNS]
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
        group, shared = shared_beginning(request.prefix)
        session, known = self._session_of(job)
        own = request.prompt_tokens - (known or shared)
        extra = _optional_columns(job)
        self._count_lost_fields(job, extra, is_whole=bool(known) or not session or not self._rounds[session])
        round_index = self._rounds[session] if session else 0
        self._rounds[session] += bool(session)
        return extra | {
            "request_id": request.id,
            "tenant_id": request.tenant,
            "slo_class": slo_class_of(request),
            "session_id": session,
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

    def _session_of(self, job: Job) -> tuple[str, int]:
        """Return the session of the row, and the tokens of the prompt that the rows of the session before it have said."""
        session = job.request.program
        if not (self._accumulates and session):
            return session, 0
        known = self._conversations.tokens_before(job) if self._rounds[session] else 0
        known = 0 if known > job.request.prompt_tokens else known
        self._conversations.add(job)
        # A reader adds every later row of a session to the rows before it, so a row for which that is wrong has no session.
        is_lost = self._rounds[session] > 0 and not known
        self.lost_fields[LostField.SESSION] += is_lost
        return ("", 0) if is_lost else (session, known)

    def _count_lost_fields(self, job: Job, extra: Mapping[str, object], *, is_whole: bool) -> None:
        """Count what the row cannot hold: optional values without a column, prefixes and fields of other formats.

        `is_whole` says whether the row and those of its session before it say all that is shared with earlier rounds.
        """
        request, lost = job.request, self.lost_fields
        for column, value in extra.items():
            if value != "" and column not in self._columns:
                lost[_LOST_FIELDS[column]] += 1
        pieces = pieces_of(request.prefix)
        repeats = job.conversation_prefix is not None and not is_whole
        begins_elsewhere = request.parent_program and self._rounds[request.program] == 0 and pieces and len(pieces) > 2
        lost[LostField.PREFIX] += bool(repeats or begins_elsewhere or (request.prefix is not None and pieces is None))
        lost[LostField.DEADLINE] += request.deadline == 0  # 0 is how the format says that there is none
        lost[LostField.ROUTING_KEY] += request.routing_key != request.cache_namespace
        lost[LostField.PARENT] += bool(request.parent_program)
        lost[LostField.CLASS] += priority_class_of(slo_class_of(request)) != request.priority_class
        lost[LostField.LIMIT] += request.max_output_tokens not in (None, job.output_tokens)


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


def _optional_columns(job: Job) -> dict[str, object]:
    """Return the optional columns. For vLLM a smaller priority is more urgent, in `Request` a larger one."""
    request = job.request
    priority = -request.priority if request.priority else ""
    return {
        "vllm_priority": int(priority) if isinstance(priority, float) and priority.is_integer() else priority,
        "slo_target_us": "" if request.slo_target is None else request.slo_target,
        "x_request_id": request.client_id,
        "adapter": request.cache_namespace,
        "think_time_us": "" if job.think_time is None else job.think_time,
    }


_BLOCK_TOKENS = 16
"""The size of the blocks in which content is written that nothing else describes."""


@WRITERS.register("maitred")
class MaitredWriter(TraceWriter):
    """The CSV of maitred itself. A tenant that tenant policies cannot name is written as a header tenant: `acme` as
    `header:acme`."""

    def __init__(self) -> None:
        self.lost_fields: Counter[LostField] = Counter()
        self._extra: Sequence[str] = ()
        self._conversations = Conversations()

    def header(self, first_jobs: Sequence[Job]) -> str:
        conversations = Conversations()
        needed = {name for job in first_jobs for name, value in _extra_fields(job, conversations)[1].items() if value != ""}
        self._extra = [name for name in EXTRA_COLUMNS if name in needed]
        return csv_line((*ALL_COLUMNS, *self._extra))

    def row(self, job: Job) -> str:
        is_partial = self._conversations.repeats_a_part(job) and not self._conversations.tokens_before(job)
        self.lost_fields[LostField.PREFIX] += is_partial
        continues, extra = _extra_fields(job, self._conversations)
        for field in {EXTRA_COLUMNS[name] for name, value in extra.items() if value != "" and name not in self._extra}:
            self.lost_fields[field] += 1
        more = [extra[name] for name in self._extra]
        request, think_time = job.request, job.think_time
        return format_row(request, request.prompt_tokens, job.output_tokens, COMPLETED, think_time, continues, more=more)


def _extra_fields(job: Job, conversations: Conversations) -> tuple[bool | None, dict[str, object]]:
    """Return `continues` and the extra columns of the row of `job`, and note its conversation."""
    request = job.request
    deadline = None if request.deadline is None else max(0, request.deadline - request.arrival)
    fields: dict[str, object] = dict.fromkeys(EXTRA_COLUMNS, "") | {
        "client_id": request.client_id,
        "parent_program": request.parent_program,
        "priority": request.priority or "",
        "routing_key": request.routing_key,
        "adapter": request.cache_namespace,
        "deadline_secs": format_seconds(deadline),
        "slo_target_secs": format_seconds(request.slo_target),
    }
    takes_over = job.conversation_prefix is not None and bool(conversations.tokens_before(job))
    conversations.add(job)
    if takes_over or request.prefix is None:
        return takes_over or None, fields
    pieces, shared = pieces_of(request.prefix), shared_beginning(request.prefix)
    if pieces is None or len(pieces) - bool(shared.tokens) > 1:
        return None, fields | _block_fields(request.prefix, job.conversation_prefix)
    if shared.tokens:
        fields |= {"prefix_group": shared.group, "prefix_tokens": shared.tokens}
    return None if job.conversation_prefix is None else False, fields


def _block_fields(prompt: PrefixKeys, conversation: PrefixKeys | None) -> dict[str, object]:
    """Return the columns of a content that no group and no earlier row describes. A format with blocks keeps their size."""
    contents = [each for each in (prompt, conversation) if each is not None]
    chained = [each.chained() if isinstance(each, UnchainedBlockIds) else each for each in contents]
    known = [each for each in chained if isinstance(each, ChainedBlockIds)]
    if len(known) == len(contents):
        return {"block_tokens": known[0].block_tokens, "block_ids": _written_ids(max((each.ids for each in known), key=len))}
    # Hashed, so that no key is one of the pieces that the reader numbers.
    ids = [hash((key, _BLOCK_TOKENS)) for key in contents[-1].block_keys(_BLOCK_TOKENS)]
    return {"block_tokens": _BLOCK_TOKENS, "block_ids": _written_ids(ids)}


def _written_ids(ids: Sequence[int]) -> str:
    """Return the ids with those that follow each other as FIRST..LAST."""
    runs: list[list[int]] = []
    for each in ids:
        if runs and runs[-1][1] == each - 1:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    return " ".join(f"{first}..{last}" if first < last else str(first) for first, last in runs)
