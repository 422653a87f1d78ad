"""Signals of the process, handled by the event loop: servers drain, the demo and the live benchmark say what they have."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence


@contextlib.contextmanager
def handle_signals(numbers: Sequence[int], on_signal: Callable[[], object]) -> Iterator[None]:
    """Call `on_signal` for each signal with one of these numbers while the block runs. In another thread than the main one,
    where signals cannot be handled, nothing is called."""
    loop, handled = asyncio.get_running_loop(), list[int]()
    try:
        for number in numbers:
            with contextlib.suppress(RuntimeError, ValueError):
                loop.add_signal_handler(number, on_signal)
                handled.append(number)
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
