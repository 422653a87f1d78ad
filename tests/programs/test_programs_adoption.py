"""A core that takes over the programs of another one."""

from __future__ import annotations

import msgspec
import pytest
from test_programs_random import Driver

from maitred.core.request import PriorityClass
from maitred.core.units import SECOND
from maitred.programs import (
    BackendStatus,
    ProgramAction,
    ProgramPhase,
    ProgramReason,
    ProgramRecord,
    ProgramRequest,
    Programs,
    ProgramsConfig,
    ProgramState,
    Usage,
    record_of,
)

NOW = 100 * SECOND


def a_core(**config: object) -> Programs:
    """Return a core with a backend 0 of 10,000 tokens that is up, and a backend 1 that is down."""
    core = Programs(msgspec.convert({"mode": "tr", **config}, ProgramsConfig), NOW)
    core.set_backend(0, NOW, models=["m"], capacity=10_000)
    core.set_backend(1, NOW, models=["m"], capacity=10_000, status=BackendStatus.DOWN)
    return core


def record(name: str, **fields: object) -> ProgramRecord:
    return ProgramRecord(
        **{"tenant": "t", "name": name, "model": "m", "backend": 0, "tokens": 1000, "last_active": NOW, **fields}
    )


def adopted(core: Programs, *records: ProgramRecord) -> dict[str, tuple[str, int | None]]:
    core.adopt(records, NOW)
    core.check()
    return {program.key.name: (program.state.value, program.backend) for program in core.programs}


def test_where_programs_come_back() -> None:
    core = a_core()
    records = [record("up"), record("down", backend=1), record("gone", backend=None), record("unknown", backend=7)]
    # The three that are paused are idle, and backend 0 has room: it resumes them at once.
    assert adopted(core, *records) == dict.fromkeys(("up", "down", "gone", "unknown"), ("active", 0))
    core = a_core()
    full = record("up", tokens=9_900)
    assert adopted(core, full, *records[1:]) == {"up": ("active", 0)} | dict.fromkeys(
        ("down", "gone", "unknown"), ("paused", None)
    )
    assert {program.phase for program in core.programs} == {ProgramPhase.ACTING}


def test_what_comes_back_of_a_program() -> None:
    core = a_core()
    first = record(
        "p", tokens=4000, characters=16_000, num_requests=7, tool_count=6, tool_mean=2.5e6, priority_class=PriorityClass.BULK,
        inherited_tokens=0, created_at=NOW - 50 * SECOND, last_active=NOW - 3 * SECOND,
    )  # fmt: skip
    core.adopt([first], NOW)
    (program,) = core.programs
    assert record_of(program) == first
    assert next(iter(core.backends)).used == 4100
    # Its next request is no first one, and the tool before it took 3 s.
    core.begin(ProgramRequest(id=1, model="m", tenant="t", program="p", characters=17_000), NOW)
    assert (program.num_requests, program.tools.count) == (8, 7)
    assert program.tools.mean == pytest.approx(0.2 * 3e6 + 0.8 * 2.5e6)


def test_more_than_fits_is_paused() -> None:
    """6,000 and 5,000 tokens and two buffers are more than 10,000: the smaller program is paused."""
    core = a_core(min_stay_secs=0)
    assert adopted(core, record("large", tokens=6000), record("small", tokens=5000)) == {
        "large": ("active", 0),
        "small": ("paused", None),
    }


def test_expired_anonymous_known_and_surplus_programs_are_not_adopted() -> None:
    core = a_core(program_ttl_secs=10, max_programs_per_tenant=2)
    core.begin(ProgramRequest(id=1, model="m", tenant="t", program="here", characters=50), NOW)
    records = [
        record("old", last_active=NOW - 10 * SECOND),
        record(""),
        record("here", tokens=9000),
        record("fits", last_active=NOW - 9 * SECOND),
        record("surplus"),
        record("other", tenant="u"),
    ]
    assert set(adopted(core, *records)) == {"here", "fits", "other"}
    assert {p.key.name: p.tokens for p in core.programs}["here"] == 10  # as this core knows it
    # It expires when it would have without the restart.
    decisions = core.advance(NOW + SECOND)
    fits = next(d for d in decisions if d.action is ProgramAction.END)
    assert (fits.reason, fits.at) == (ProgramReason.EXPIRED, NOW + SECOND)


def test_a_family_stays_one() -> None:
    core = a_core()
    core.adopt([record("parent", tokens=3000), record("child", tokens=4000, parent="parent", inherited_tokens=2500)], NOW)
    core.check()
    parent, child = core.programs
    assert child.parent is parent
    assert next(iter(core.backends)).used == 3000 + 1500 + 200


def test_a_paused_program_whose_client_leaves_again_is_kept() -> None:
    core = a_core()
    core.adopt([record("full", tokens=9_900), record("p", backend=None, tokens=2000)], NOW)
    core.begin(ProgramRequest(id=1, model="m", tenant="t", program="p", characters=10_000), NOW)
    assert core.num_waiting == 1
    core.end(1, None, NOW)
    core.check()
    assert {p.key.name: p.state for p in core.programs}["p"] is ProgramState.PAUSED


@pytest.mark.parametrize("seed", range(40))
def test_after_any_run_every_program_comes_back_once(seed: int) -> None:
    driver = Driver(seed)
    for _ in range(200):
        driver.rng.choice([driver.begin, driver.begin, driver.end, driver.progress, driver.change_backend, driver.advance])()
    old = driver.core
    records = [record_of(program) for program in old.programs if not program.is_anonymous]
    core = Programs(old.config, driver.now)
    for backend in old.backends:
        core.set_backend(backend.index, driver.now, models=["m"], capacity=backend.capacity, status=backend.status)
    core.adopt(records, driver.now)
    core.check()
    assert {p.key for p in core.programs} == {(r.tenant, r.name, r.model) for r in records}
    for program in list(core.programs):
        core.begin(
            ProgramRequest(id=program.serial, model="m", tenant=program.key.tenant, program=program.key.name), driver.now
        )
        core.end(program.serial, Usage(10, 20), driver.now)
        core.check()


def test_programs_of_a_model_whose_backends_are_not_up_yet_wait_for_them() -> None:
    core = a_core()
    assert adopted(core, record("p", model="later")) == {"p": ("paused", None)}
    core.set_backend(2, NOW, models=["later"], capacity=10_000)
    core.check()
    assert [program.backend for program in core.programs] == [2]
