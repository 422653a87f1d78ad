"""Every block of Python in README.md and docs/ runs as it stands. (`make check` holds them to mypy --strict.)"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs_text import PAGES, ROOT, Block, blocks

BLOCKS = [block for page in PAGES for block in blocks(page) if block.language == "python"]
CHAT = (ROOT / "examples" / "workloads" / "chat-and-batch.yaml").read_text(encoding="utf-8")


# tests/study/test_studies_doc.py runs the block with a capacity whole, and looks at what comes of it.
@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if "openai" not in block.text and "maitred.capacity" not in block.text],
    ids=lambda block: block.name,
)
def test_a_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "chat.yaml").write_text(CHAT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    exec(compile(_with_fewer(block.text), block.name, "exec"), {"__name__": "__main__"})


def _with_fewer(text: str) -> str:
    """Fewer requests and seeds: the same calls, sooner."""
    text = re.sub(r"num_requests(\"?)([=:] ?)[\d_]+", r"num_requests\1\g<2>60", text)
    return re.sub(r"seeds=\d+", "seeds=2", text)


def test_the_client_of_openai_talks_to_an_engine(capfd: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in BLOCKS if "openai" in block.text)
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    engine = subprocess.Popen(
        [sys.executable, "-m", "maitred", "engine", "--port", "0", "--model", "emulated", "--latency", "linear:100,1,1"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert engine.stderr is not None
        url = next(found[0] for line in engine.stderr if (found := re.search(r"http://[\d.:]+", line)))
        exec(compile(block.text.replace("http://127.0.0.1:8080", url), block.name, "exec"), {"__name__": "__main__"})
    finally:
        engine.terminate()
        engine.wait()
        assert engine.stderr is not None
        engine.stderr.close()
    assert len(capfd.readouterr().out) > 10


def test_there_are_blocks_on_many_pages() -> None:
    assert len({block.page for block in BLOCKS}) > 5
