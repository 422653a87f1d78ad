"""burstgpt: the BurstGPT traces (Wang et al., 2024, HPMLL/BurstGPT), as published: CSV, six columns or eight (`Session ID`).

`Timestamp` is in seconds; the later files begin far from 0. A row with no response tokens is a request that failed: as in
vLLM's loader it is not replayed, and the rows left out are counted. The files `..._without_fails_...` have none.
"""

from __future__ import annotations

from maitred.workload.lines import Lines
from maitred.workload.row import FORMATS, Columns, NotReplayedError, Row, RowParser, TraceFormat, seconds, split, tokens

_NAMES = ("Timestamp", "Model", "Request tokens", "Response tokens")


@FORMATS.register("burstgpt")
class BurstGpt(TraceFormat):
    """A `Session ID` becomes the program."""

    about = "The BurstGPT traces, with or without sessions."
    example = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"

    def recognises(self, first_line: str) -> bool:
        return set(_NAMES) <= set(split(first_line))

    def begin(self, lines: Lines) -> RowParser:
        columns = Columns(next(lines), *_NAMES, optional=("Session ID",))

        def parse(line: str) -> Row:
            at, model, prompt, answer, session = columns.pick(line)
            if answer.strip() == "0":
                raise NotReplayedError("a request that failed: it has no response tokens", "it is not replayed")
            return Row(
                seconds(at, "Timestamp"),
                tokens(prompt, "Request tokens"),
                tokens(answer, "Response tokens"),
                model=model.strip(),
                program=session.strip(),
            )

        return parse
