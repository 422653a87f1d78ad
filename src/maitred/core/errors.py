"""Errors for the person who reads them: what was wrong, where, what would be right.

One root, `MaitredError`. The command line prints the message and exits with 2; the gateway turns it into an OpenAI error
object. A bare traceback is a defect of ours, never the answer to a user's mistake.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MaitredError(Exception):
    """The root of every error that maitred raises on purpose."""


class ConfigError(MaitredError):
    """Input that cannot be used: a file, key, flag, row or name.

    `where` is the place as the user would point at it (`maitred.yaml:12`, `--rate`); `hint` is what would be right.
    """

    def __init__(self, problem: str, *, where: str = "", hint: str = "") -> None:
        self.problem, self.where, self.hint = problem, where, hint
        super().__init__(f"{where}: {problem}" if where else problem)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.problem}{advice}"


class InvariantError(MaitredError):
    """A core's own books do not balance: always a defect of ours. Raised by `check_fit()` only."""


def nearest_name_hint(name: str, valid: Iterable[str]) -> str:
    """What to say beside an unknown name: the nearest valid one, or the whole choice when nothing is near."""
    names = sorted(valid)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"valid: {', '.join(names)}" if names else "there is nothing to choose from"
