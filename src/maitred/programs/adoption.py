"""Programs that outlive their core: what is kept of a program, and how another core takes it over.

A gateway that restarts has lost its requests, and its clients send them again. But the KV of its programs is still in the
engines, so the core that comes after must know which program is where; or it would place them anew as if all memory were free.

A program is adopted as ACTING, since none of its requests is under way: at its backend if that is up and still serves its
model, otherwise PAUSED. Its tokens, requests so far, tool times and family are as before. The adopted programs may need more
than a backend has (it may be smaller now); then some of them are paused, as at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from maitred.core.request import PriorityClass
from maitred.core.units import Micros, from_seconds
from maitred.programs.config import ProgramsConfig
from maitred.programs.enums import BackendStatus, ProgramAction, ProgramReason
from maitred.programs.places import ProgramPlaces
from maitred.programs.program import Program, ProgramKey
from maitred.programs.program_table import ProgramTable


class ProgramRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The record of a program, as it is kept while none of its requests is under way."""

    tenant: str
    name: str
    model: str
    priority_class: PriorityClass = PriorityClass.DEFAULT
    parent: str = ""
    """The id of the program that forked it, or empty."""
    backend: int | None = None
    """The index of the memory where it was registered, or None if it was paused or that memory is not known any more."""
    tokens: int = 0
    characters: int = 0
    inherited_tokens: int = 0
    num_requests: int = msgspec.field(default=0, name="step_count")
    """Requests so far. In logs it has ThunderAgent's word."""
    tool_count: int = 0
    tool_mean: float = 0.0
    """µs."""
    created_at: Micros = 0
    last_active: Micros = 0


def record_of(program: Program) -> ProgramRecord:
    """Return the record of a program as it is now."""
    return ProgramRecord(
        tenant=program.key.tenant,
        name=program.key.name,
        model=program.key.model,
        priority_class=program.priority_class,
        parent="" if program.parent is None else program.parent.key.name,
        backend=program.backend,
        tokens=program.tokens,
        characters=program.characters,
        inherited_tokens=program.inherited_tokens,
        num_requests=program.num_requests,
        tool_count=program.tools.count,
        tool_mean=program.tools.mean,
        created_at=program.created_at,
        last_active=program.last_active,
    )


def adopt_programs(
    table: ProgramTable, places: ProgramPlaces, config: ProgramsConfig, records: Sequence[ProgramRecord], now: Micros
) -> Sequence[int]:
    """Adopt programs, parents before their children. Return the backends that hold some of them.

    Skipped are those that have expired, those without an id, those that are known already, and those beyond what their tenant,
    or all tenants together, may have."""
    touched: dict[int, None] = {}
    for record in records:
        expires_at = record.last_active + from_seconds(config.program_ttl_secs)
        key = ProgramKey(record.tenant, record.name, record.model)
        is_beyond = table.num_of_tenant(record.tenant) >= config.max_programs_per_tenant or len(table) >= config.max_programs
        # A file may be older than the configuration, and may name what a client has used again already.
        if not record.name or expires_at <= now or is_beyond or table.find(key) is not None:
            continue
        program = table.create(key, record.parent, now)
        _restore(program, record, now)
        table.note_idle(program, program.last_active, expires_at)
        _place(program, record, places, now)
        if program.backend is not None:
            touched[program.backend] = None
    return list(touched)


def _place(program: Program, record: ProgramRecord, places: ProgramPlaces, now: Micros) -> None:
    """Register an adopted program with its backend, or pause it if that cannot take it."""
    pool, backend = places.backends.keep_pool(record.model), places.backends.find(record.backend)
    if backend is not None and backend.status is BackendStatus.UP and backend in pool.backends:
        places.register(program, backend, now)
        places.decide(now, program, ProgramAction.RESUME, ProgramReason.ADOPTED)
        return
    program.origin = None if backend is None else backend.index
    places.add_paused(program)
    places.decide(now, program, ProgramAction.PAUSE, ProgramReason.ADOPTED)


def _restore(program: Program, record: ProgramRecord, now: Micros) -> None:
    program.priority_class = record.priority_class
    # A record has one number for all contexts. They are counted as one, which the next request continues, or passes over.
    program.idle_contexts.end_request(max(0, record.tokens))
    program.characters = record.characters
    program.inherited_tokens = record.inherited_tokens
    program.num_requests = record.num_requests
    program.tools.count, program.tools.mean = record.tool_count, record.tool_mean
    # The clock by which it was written may have been ahead of this one.
    program.created_at = min(record.created_at, now)
    program.last_active = program.acting_since = min(record.last_active, now)
    program.resumed_at = now  # It has had a place, so it is kept when its next request leaves the queue.
