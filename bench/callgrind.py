"""Instructions of processes, as valgrind counts them: the same on a busy machine as on an idle one. What the kernel does counts
for nothing, and everything takes fifty times as long."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_FLAGS: Final = ("--tool=callgrind", "--trace-children=yes", "--instr-atstart=no", "--dump-instr=no")


class Callgrind:
    """Counts the instructions of processes that were started with `wrap`, while it is told to."""

    def __init__(self, folder: str | None = None) -> None:
        """What is counted is written to a folder; None: to a new one."""
        self._folder = Path(folder or tempfile.mkdtemp(prefix="callgrind-"))

    def wrap(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the command that runs `command` under valgrind."""
        out = f"--callgrind-out-file={self._folder}/out.%p"
        return ("valgrind", "-q", *_FLAGS, out, "env", "PYTHONHASHSEED=0", *command)

    def begin(self, pids: Sequence[int]) -> None:
        """Count from now on."""
        for pid in pids:
            _control("-i", "on", str(pid))

    def end(self, pids: Sequence[int]) -> list[int]:
        """Count no more. Return the instructions of each process since `begin`."""
        counts = []
        for pid in pids:
            _control("-i", "off", str(pid))
            _control("-d", str(pid))
            newest = max(self._folder.glob(f"out.{pid}.*"), key=lambda path: int(path.suffix[1:]))
            totals = [line for line in newest.read_text().splitlines() if line.startswith("totals:")]
            counts.append(int(totals[-1].split()[1]) if totals else 0)
        return counts


def _control(*arguments: str) -> None:
    subprocess.run(["callgrind_control", *arguments], check=True, stdout=subprocess.DEVNULL)
