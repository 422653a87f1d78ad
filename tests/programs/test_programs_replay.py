"""The decision log of programs: a core that is given its inputs again takes the same decisions, byte for byte."""

from __future__ import annotations

from random import Random

import pytest

from maitred.core.decisions import DecisionLog
from maitred.programs import BackendStatus, ProgramRecord, ProgramRequest, Programs, ProgramsConfig, Usage
from maitred.replay import replay

MODEL = "m"


def random_run(rng: Random, flavour: str) -> list[bytes]:
    """Return the log of a run with every kind of input."""
    lines: list[bytes] = []
    config = ProgramsConfig(mode="tr", flavour=flavour, acting_estimator="learned", scheduler_interval_secs=1.0)
    core = Programs(config, log=DecisionLog(lines.append), now=5)
    for index in range(2):
        core.set_backend(index, 10, models=[MODEL], capacity=10_000)
    core.adopt([ProgramRecord(tenant="t", name="p0", model=MODEL, backend=1, tokens=4000, last_active=1, num_requests=3)], 20)
    under_way: set[int] = set()
    for number in range(300):
        now = 1000 + number * 200_000 + rng.randrange(200_000)
        kind = rng.choice(["begin"] * 5 + ["end"] * 4 + ["progress", "progress", "release", "move", "set_backend", "advance"])
        chosen = rng.choice(sorted(under_way)) if under_way else number
        if kind == "begin":
            name, parent = f"p{rng.randrange(12)}", rng.choice(["", "p0"])
            under_way.add(number)
            core.begin(
                ProgramRequest(
                    id=number, model=MODEL, tenant="t", program=name, parent=parent, characters=rng.randrange(100, 20_000)
                ),
                now,
            )
        elif kind == "end":
            under_way.discard(chosen)
            total = rng.randrange(10, 5000)
            core.end(chosen, rng.choice([None, Usage(total, total + 10, rng.choice([None, 5]))]), now)
        elif kind == "progress":
            core.progress(chosen, 20, now)
        elif kind == "release":
            core.release("t", f"p{rng.randrange(12)}", now)
        elif kind == "move":
            core.move(chosen, now)
        elif kind == "set_backend":
            status = rng.choice([BackendStatus.UP, BackendStatus.UP, BackendStatus.DOWN])
            core.set_backend(rng.randrange(2), now, models=[MODEL], status=status, capacity=8000, shared_tokens=100)
        else:
            core.advance(now)
    core.reconfigure(ProgramsConfig(mode="tr", flavour=flavour, acting_estimator="learned", headroom=0.1), 10**9)
    return lines


@pytest.mark.parametrize("flavour", ["ours", "thunderagent"])
@pytest.mark.parametrize("seed", range(5))
def test_a_log_replays_byte_for_byte(seed: int, flavour: str) -> None:
    lines = random_run(Random(seed), flavour)
    again: list[bytes] = []
    replay(lines, DecisionLog(again.append))
    assert again == lines
    assert any(b'"input":"adopt"' in line and b'"step_count":3' in line for line in lines)  # as in older logs
    for action in ("grant", "wait", "pause", "resume"):
        assert any(b'"decision"' in line and f'"action":"{action}"'.encode() in line for line in lines), action


def test_lines_of_other_rooms_are_skipped_and_a_log_without_a_beginning_is_refused() -> None:
    lines = random_run(Random(1), "ours")
    again: list[bytes] = []
    replay([b'{"room":"elsewhere","input":"open","at":0}\n', *lines], DecisionLog(again.append))
    assert again == lines
    with pytest.raises(ValueError, match="how this core was made"):
        replay(lines[2:], DecisionLog(again.append))


def test_a_tick_that_decided_nothing_is_where_it_was_before_later_progress() -> None:
    lines: list[bytes] = []
    core = Programs(ProgramsConfig(mode="tr", flavour="thunderagent"), log=DecisionLog(lines.append))
    core.set_backend(0, 0, models=[MODEL], capacity=1000)
    core.begin(ProgramRequest(id=1, model=MODEL, program="p", prompt_tokens=900), 0)
    assert not core.advance(5_000_000)  # 900 and the buffer fit
    core.progress(1, 20, 6_000_000)  # too many from now on: seen at the next tick
    core.end(1, None, 7_000_000)
    again: list[bytes] = []
    replay(lines, DecisionLog(again.append))
    assert again == lines
