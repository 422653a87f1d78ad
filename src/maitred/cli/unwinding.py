"""SIGTERM and SIGHUP end a command as Ctrl-C does: by unwinding it, so that every `with` cleans up behind itself.

By default they kill the interpreter where it stands, and half-written files stay behind.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[None]:
    """While the block runs, these signals raise SystemExit(128 + signal). Those that are ignored (`nohup`) stay ignored."""
    ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _unwind)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _unwind(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)
