"""Starts servers in processes that have imported maitred already: to import it is most of what a start costs.

`python forking.py` imports it once, and forks for each line of its input, one after the other: the arguments of `maitred`, the
folder to run in, and the pipe for what is written to standard error, as JSON. It answers with the process, and with its exit
code when that has ended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO


class ForkedCommand:
    """A command that runs."""

    def __init__(self, answers: TextIO, lines: TextIO) -> None:
        self._answers = answers
        self.lines = lines
        """What it writes to standard error."""
        self.pid = int(answers.readline())
        self._code: int | None = None

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        os.kill(self.pid, signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        if self._code is None:
            self._code = int(self._answers.readline())
        return self._code

    def close(self) -> None:
        """End it, if it runs."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        self.lines.close()


class Forking:
    """The process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def start(self, arguments: Sequence[str], pipe: Path) -> ForkedCommand:
        """Start `maitred` with these arguments in the present folder. `pipe` is a path that is made, on which it writes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.mkfifo(pipe)
        self._process.stdin.write(json.dumps([arguments, str(Path.cwd()), str(pipe)]) + "\n")
        self._process.stdin.flush()
        return ForkedCommand(self._process.stdout, pipe.open())

    def close(self) -> None:
        self._process.communicate(timeout=20)


def _fork() -> None:
    import maitred.gateway.app  # noqa: F401
    from maitred.cli import main

    for command in ("serve", "engine"):  # What they import when they are called is there from now on.
        sys.argv = ["maitred", command, "--help"]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            main()
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _become(*json.loads(line))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(arguments: Sequence[str], folder: str, pipe: str) -> NoReturn:
    from maitred.cli import main

    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard, target in enumerate((nothing, nothing, os.open(pipe, os.O_WRONLY))):
        os.dup2(target, standard)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    sys.argv = ["maitred", *arguments]
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _fork()
