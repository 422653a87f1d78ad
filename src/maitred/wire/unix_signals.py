"""Signals of the process, handled by the event loop: servers drain, the demo and the live benchmark say what they have."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def handle_signals(numbers: Sequence[int], on_signal: Callable[[], object]) -> Iterator[None]:
    """Call `on_signal` for each signal with one of these numbers while the block runs, and give the signals back afterwards. In
    another thread than the main one, where signals cannot be handled, nothing is called."""
    loop, handled = asyncio.get_running_loop(), dict[int, Any]()
    try:
        for number in numbers:
            with contextlib.suppress(RuntimeError, ValueError):
                before = signal.getsignal(number)
                loop.add_signal_handler(number, on_signal)
                handled[number] = before
        yield
    finally:
        for number, before in handled.items():
            loop.remove_signal_handler(number)
            # None: it was handled by another language than Python. The same: the loop has not changed it, or made it up.
            if before is not None and signal.getsignal(number) is not before:
                signal.signal(number, before)
