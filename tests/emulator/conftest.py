"""The servers of these tests stop at once."""

from __future__ import annotations

from prompt_shutdown import prompt_shutdown

__all__ = ["prompt_shutdown"]
