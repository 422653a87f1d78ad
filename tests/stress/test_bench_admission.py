"""The benchmark of the admission core: each case does what its assertions say, whatever it costs."""

from __future__ import annotations

import pytest

import admission


@pytest.mark.parametrize("name", admission.CASES)
def test_a_round_of_every_case(name: str) -> None:
    case, _ = admission.CASES[name]
    assert admission.measure(case(100)) > 0
