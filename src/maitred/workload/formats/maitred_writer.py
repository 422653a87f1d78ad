"""Writing maitred's own CSV: its columns, and the extra ones that are needed.

The writer is registered as `maitred` in `WRITERS` (`workload/trace_writer.py`); the reader of the format is
`formats/maitred.py`. The header comes before the rows, so the first jobs decide which extra columns the file has.

What prompts share is written in the shortest form that says all of it:

    continues: true           the prompt begins with the last prompt of its program and the response to it
    prefix_group              the prompt begins with tokens of a group, and is its own from there on
    block_ids                 anything else, in blocks: of the format that the jobs came from, or of 16 tokens
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from maitred.core.request import PrefixKeys
from maitred.workload.formats.maitred import ALL_COLUMNS, COMPLETED, EXTRA_COLUMNS, format_row, format_seconds
from maitred.workload.job import Job
from maitred.workload.prefix_keys import ChainedBlockIds, UnchainedBlockIds, pieces_of, shared_beginning
from maitred.workload.trace_writer import WRITERS, Conversations, LostField, TraceWriter, csv_line

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
