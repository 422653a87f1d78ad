"""A command as a child process of the demo: `python -m maitred.cli.demo_child COMMAND ...` ends when its parent is gone.

The parent holds the other end of this process's standard input and writes nothing. When the parent ends, even by SIGKILL, the
system closes that end, and this process stops as it does on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import threading

from maitred.cli import main

_STDIN = 0


def _stop_when_orphaned() -> None:
    while os.read(_STDIN, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_when_orphaned, daemon=True).start()
    main()
