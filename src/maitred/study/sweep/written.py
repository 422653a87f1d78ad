"""The runs of a sweep as files: `results.jsonl`, and `results.parquet` where polars is installed. In the order of the grid or
the search, so that the same sweep gives the same bytes, whatever made its runs."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import msgspec

from maitred.report.files import OutputFile
from maitred.study.sweep.swept import Swept


def write_swept(swept: Swept, folder: Path) -> list[Path]:
    """Returns the files. Raises ConfigError for those that cannot be written."""
    written = [folder / "results.jsonl"]
    _write(written[0], b"".join(msgspec.json.encode(row) + b"\n" for row in swept.runs))
    if find_spec("polars") is not None:
        buffer = BytesIO()
        swept.to_frame().write_parquet(buffer)
        written.append(folder / "results.parquet")
        _write(written[1], buffer.getvalue())
    return written


def _write(path: Path, content: bytes) -> None:
    with OutputFile(path) as file:
        file.write(content)
