"""Errors that say what is wrong, where, and what would be right.

All errors that maitred raises on purpose derive from `MaitredError`. The command line prints the message and exits with 2; the
gateway turns it into an OpenAI error object. A traceback is never the answer to a user's mistake: it shows a defect of maitred.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MaitredError(Exception):
    """The root of every error that maitred raises on purpose."""


class ConfigError(MaitredError):
    """Input that cannot be used: a file, key, flag, row or name.

    `problem` says what is wrong. `where` is the place in the user's terms (`maitred.yaml:12`, `--rate`), and `hint` says what
    would be right; both may be empty.
    """

    def __init__(self, problem: str, *, where: str = "", hint: str = "") -> None:
        self.problem, self.where, self.hint = problem, where, hint
        super().__init__(f"{where}: {problem}" if where else problem)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.problem}{advice}"


class InvariantError(MaitredError):
    """The state of a core contradicts itself: always a defect of maitred. Raised by `check()` only."""


def nearest_name_hint(name: str, valid: Iterable[str]) -> str:
    """Return the hint for an unknown name: the nearest valid name, or all valid names if none is near."""
    names = sorted(valid)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"valid: {', '.join(names)}" if names else "there is nothing to choose from"
