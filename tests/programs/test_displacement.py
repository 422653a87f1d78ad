"""Acting programs lose their memory to one that waits only when it has waited for long: each pause is KV computed again."""

from __future__ import annotations

import pytest

from maitred.core.units import SECOND
from maitred.programs import ProgramAction, ProgramReason, ProgramRequest, Programs, ProgramsConfig, Usage


def crowded(config: ProgramsConfig) -> Programs:
    """Return a core in which `a` acts in 600 of 1,000 tokens since second 1, and `b` waits for 600 since second 2."""
    core = Programs(config)
    core.set_backend(0, 0, models=["m"], capacity=1_000)
    core.begin(ProgramRequest(id=1, model="m", program="a", prompt_tokens=590), 0)
    core.end(1, Usage(590, 600), 1 * SECOND)
    core.begin(ProgramRequest(id=2, model="m", program="b", prompt_tokens=600), 2 * SECOND)
    return core


@pytest.mark.parametrize(("displace_secs", "at"), [(20, 25), (60, 65)])
def test_an_acting_program_is_paused_at_the_first_tick_after_displace_secs(displace_secs: float, at: int) -> None:
    core = crowded(ProgramsConfig(mode="tr", acting_estimator="fixed", displace_secs=displace_secs))
    assert not core.advance((at - 1) * SECOND)
    decisions = core.advance(at * SECOND)
    assert [(d.action, d.reason) for d in decisions] == [
        (ProgramAction.PAUSE, ProgramReason.MADE_ROOM),
        (ProgramAction.RESUME, ProgramReason.ROOM),
        (ProgramAction.GRANT, ProgramReason.RESUMED),
    ]
    assert decisions[0].at == at * SECOND
    core.check()


def test_the_flavour_thunderagent_displaces_none() -> None:
    core = crowded(ProgramsConfig(mode="tr", flavour="thunderagent", displace_secs=20))
    assert not core.advance(600 * SECOND)
