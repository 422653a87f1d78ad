"""SIGTERM and SIGHUP end a command as Ctrl-C does: its stack is unwound, so that every `with` cleans up after itself.

By default they end the interpreter at once, and half-written files stay behind.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise SystemExit(128 + signal) for these signals while the block runs. Ignored ones (`nohup`) stay ignored."""
    handled = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)
