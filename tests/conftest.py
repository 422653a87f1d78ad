"""Hypothesis looks for new examples on a developer's machine, and repeats the same in CI: a change fails for what it did."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("search", deadline=None)
settings.register_profile("repeat", deadline=None, derandomize=True)
settings.load_profile("repeat" if os.environ.get("CI") else "search")
