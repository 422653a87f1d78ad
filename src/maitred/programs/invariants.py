"""What is true between any two inputs: no program is lost, in two places, or counted wrongly."""

from __future__ import annotations

from maitred.core.errors import InvariantError
from maitred.programs.enums import ProgramState, ProgramStatus
from maitred.programs.idle_contexts import MAX_PASSED
from maitred.programs.places import ProgramPlaces
from maitred.programs.program import Program
from maitred.programs.program_table import ProgramTable


def check_programs(places: ProgramPlaces, table: ProgramTable) -> None:
    """Raise InvariantError if the tables of programs, backends and requests contradict each other."""
    for backend in places.backends.all:
        backend.check()
    for pool in places.backends.pools:
        pool.waiting.check()
    _check_held(places)
    placed = {p.serial for backend in places.backends.all for p in backend.programs}
    waiting = {p.serial for pool in places.backends.pools for p in pool.waiting}
    known = {p.serial for p in table.all}
    if placed & waiting:
        raise InvariantError(f"programs {placed & waiting} have a place and wait for one")
    if placed | waiting != known:
        raise InvariantError(f"programs {known ^ (placed | waiting)} are nowhere, or forgotten")
    for program in table.all:
        _check_program(program, places, is_placed=program.serial in placed)
    _check_requests(places, table)


def _check_held(places: ProgramPlaces) -> None:
    held: dict[str, float] = {}
    for backend in places.backends.all:
        for program in backend.programs:
            held[program.key.tenant] = held.get(program.key.tenant, 0.0) + program.charge
    if places.backends.held != {tenant: tokens for tenant, tokens in held.items() if tokens}:
        raise InvariantError(f"tenants hold {held}, and {places.backends.held} is noted")


def _check_requests(places: ProgramPlaces, table: ProgramTable) -> None:
    if places.num_waiting != sum(len(p.waiting) for p in table.all):
        raise InvariantError(f"{places.num_waiting} waiting requests are not those of the programs")
    requests = {request for p in table.all for request in (*p.waiting, *p.contexts)}
    if requests != set(table.by_request):
        raise InvariantError(f"requests {requests ^ set(table.by_request)} belong to no program, or are forgotten")
    if not set(table.characters) <= requests:
        raise InvariantError(f"characters of requests {set(table.characters) - requests} are kept for nothing")


def _check_waiting(program: Program, places: ProgramPlaces, *, is_placed: bool) -> None:
    if program.contexts and program.waiting and places.backends.reason_to_leave(program) is None:
        raise InvariantError(f"{program.key} has requests under way and waiting ones, and need not leave its backend")
    if program.waiting and not program.contexts and is_placed:
        raise InvariantError(f"{program.key} has a place, and its requests wait")
    if bool(program.waiting) != (program.serial in places.waits):
        raise InvariantError(f"{program.key} waits, and nothing ends its wait, or the other way round")


def _check_tokens(program: Program) -> None:
    idle = program.idle_contexts
    if program.state is ProgramState.ACTIVE:
        needed = idle.beside(sum(program.contexts.values()))
    else:
        needed = program.waiting_tokens if program.waiting else idle.last
    if program.tokens != needed:
        raise InvariantError(f"{program.key} counts {program.tokens} tokens, and needs {needed}")
    if len(idle) > (MAX_PASSED if program.state is ProgramState.ACTIVE else 1):
        raise InvariantError(f"{program.key} keeps {len(idle)} idle contexts")


def _check_program(program: Program, places: ProgramPlaces, *, is_placed: bool) -> None:
    wanted = ProgramState.ACTIVE if is_placed else ProgramState.PAUSED
    if program.state is not wanted or (program.backend is not None) != is_placed:
        raise InvariantError(f"{program.key} is {program.state}, and should be {wanted}")
    _check_waiting(program, places, is_placed=is_placed)
    if (program.status is ProgramStatus.REASONING) != program.is_busy:
        raise InvariantError(f"{program.key} is {program.status} with {len(program.contexts)} requests under way")
    _check_tokens(program)
    if program.is_marked and not program.contexts:
        raise InvariantError(f"{program.key} is marked, and no request of it is under way")
    for child in program.children.values():
        if child.parent is not program or child.state is ProgramState.TERMINATED:
            raise InvariantError(f"{child.key} is not the child of {program.key}")
