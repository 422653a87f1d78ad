"""A number that does not fit into its column is reported in one line as a mistake of the workload."""

from __future__ import annotations

from typing import Any

import pytest

from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.sim import Results, simulate
from maitred.workload import Job

LARGE = 1 << 63


def run(log_gaps: bool = False, **said: Any) -> Results:
    request = Request(**({"id": 7, "arrival": 0, "prompt_tokens": 10} | said))
    return simulate([Job(request, 3)], log_itl=log_gaps)


def test_an_id() -> None:
    assert run(id=LARGE - 1).request_id.tolist() == [LARGE - 1]
    with pytest.raises(
        ConfigError, match=r"^request 9223372036854775808: id cannot be .* \(a whole number of 64 bits at most\)$"
    ):
        run(id=LARGE)
    with pytest.raises(ConfigError, match=r"^request 9223372036854775808: its id is too large \(ids have 64 bits at most\)$"):
        run(id=LARGE, log_gaps=True)


def test_a_prompt() -> None:
    """It is refused, because it is longer than any model takes."""
    with pytest.raises(ConfigError, match="prompt_tokens cannot be 9223372036854775808"):
        run(prompt_tokens=LARGE)
