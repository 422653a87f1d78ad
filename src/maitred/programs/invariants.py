"""What is true between any two inputs: no program is lost, in two places, or counted wrongly."""

from __future__ import annotations

from maitred.core.errors import InvariantError
from maitred.programs.idle_contexts import MAX_PASSED
from maitred.programs.places import ProgramPlaces
from maitred.programs.program import Program, TenantPrograms
from maitred.programs.program_table import ProgramTable


def check_programs(places: ProgramPlaces, table: ProgramTable) -> None:
    """Raise InvariantError if the tables of programs, backends and requests contradict each other."""
    for backend in places.backends.all:
        backend.check()
    for pool in places.backends.pools:
        pool.paused.check()
    _check_tenants(table, places.backends.holding)
    placed = {p.serial for backend in places.backends.all for p in backend.programs}
    paused = {p.serial for pool in places.backends.pools for p in pool.paused}
    known = {p.serial for p in table.all}
    if placed & paused:
        raise InvariantError(f"programs {placed & paused} have a place and are paused")
    if placed | paused != known:
        raise InvariantError(f"programs {known ^ (placed | paused)} are nowhere, or forgotten")
    for program in table.all:
        _check_program(program, places, is_placed=program.serial in placed)
    _check_requests(places, table)


def _check_tenants(table: ProgramTable, holding: dict[str, TenantPrograms]) -> None:
    if holding != {name: tenant for name, tenant in table.tenants.items() if tenant.num_placed}:
        raise InvariantError(f"{list(holding)} are noted as the tenants that have programs at backends")
    if set(table.tenants) != {program.key.tenant for program in table.all}:
        raise InvariantError(f"not all of the tenants {list(table.tenants)} have programs, or others have")
    for name, tenant in table.tenants.items():
        programs = [program for program in table.all if program.of_tenant is tenant]
        placed = [program.charge for program in programs if program.backend is not None]
        held = sum(placed)
        if (tenant.num_programs, tenant.num_placed, tenant.held_tokens) != (len(programs), len(placed), held):
            raise InvariantError(f"{name} has {len(programs)} programs, which hold {held}; {tenant.held_tokens} is noted")


def _check_requests(places: ProgramPlaces, table: ProgramTable) -> None:
    if places.num_waiting != sum(len(p.waiting) for p in table.all):
        raise InvariantError(f"{places.num_waiting} waiting requests are not those of the programs")
    requests = {request for p in table.all for request in (*p.waiting, *p.contexts)}
    if requests != set(table.by_request):
        raise InvariantError(f"requests {requests ^ set(table.by_request)} belong to no program, or are forgotten")
    if not set(table.characters) <= requests:
        raise InvariantError(f"characters of requests {set(table.characters) - requests} are kept for nothing")


def _check_waiting(program: Program, places: ProgramPlaces) -> None:
    backend = places.backends.find(program.backend)
    must_leave = backend is not None and backend.reason_to_leave(program) is not None
    if program.contexts and program.waiting and not must_leave:
        raise InvariantError(f"{program.key} has requests under way and waiting ones, and need not leave its backend")
    if backend is not None and not program.contexts and (program.waiting or must_leave):
        raise InvariantError(f"{program.key} has no request under way at its backend, and is to leave it")
    if bool(program.waiting) != (program.serial in places.waits):
        raise InvariantError(f"{program.key} waits, and nothing ends its wait, or the other way round")


def _check_tokens(program: Program) -> None:
    if program.tokens != program.needed_tokens():
        raise InvariantError(f"{program.key} counts {program.tokens} tokens, and needs {program.needed_tokens()}")
    if len(program.idle_contexts.all) > (1 if program.backend is None else MAX_PASSED):
        raise InvariantError(f"{program.key} keeps {len(program.idle_contexts.all)} idle contexts")


def _check_program(program: Program, places: ProgramPlaces, *, is_placed: bool) -> None:
    if program.is_forgotten or (program.backend is not None) != is_placed:
        raise InvariantError(f"{program.key} is {program.state}, and its place says otherwise")
    _check_waiting(program, places)
    _check_tokens(program)
    if program.is_marked and not program.contexts:
        raise InvariantError(f"{program.key} is marked, and no request of it is under way")
    for child in program.children.values():
        if child.parent is not program or child.is_forgotten:
            raise InvariantError(f"{child.key} is not the child of {program.key}")
