"""A command as a child process of the demo: `python -m maitred.cli.demo_child COMMAND ...` ends when its parent is gone.

The parent holds the other end of our standard input and says nothing. However the parent ends, and be it by SIGKILL, the system
closes that end; then we stop as if told to by SIGTERM.
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
