"""ProgramsViews: what can be read of the core of programs, between two inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from maitred.core.errors import InvariantError
from maitred.core.request import RequestId
from maitred.programs.agenda import Agenda
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.backend_table import BackendTable
from maitred.programs.invariants import check_programs
from maitred.programs.places import ProgramPlaces
from maitred.programs.program import Program, ProgramKey
from maitred.programs.program_table import ProgramTable


class ProgramsViews:
    """The state of the core, which `Programs` changes, and what is read of it."""

    _agenda: Agenda
    _backends: BackendTable
    _places: ProgramPlaces
    _table: ProgramTable

    @property
    def programs(self) -> Collection[Program]:
        """All programs, in the order of creation."""
        return self._table.all

    @property
    def backends(self) -> Collection[BackendMemory]:
        """All backends, in the order of their indexes."""
        return self._backends.all

    @property
    def num_waiting(self) -> int:
        """How many requests wait."""
        return self._places.num_waiting

    @property
    def lost_kv_tokens(self) -> int:
        """Tokens of KV that programs held at backends that went down."""
        return self._places.lost_kv_tokens

    def program_of(self, request_id: RequestId) -> Program | None:
        """Return the program of a request that waits or is under way."""
        return self._table.by_request.get(request_id)

    def find(self, tenant: str, name: str) -> Iterator[Program]:
        """Yield the programs of a tenant with this id: one for each model that it has asked."""
        keys = (ProgramKey(tenant, name, model) for model in self._backends.models())
        return (program for key in keys if (program := self._table.find(key)) is not None)

    def check(self) -> None:
        """Raise InvariantError if a program is lost, in two places, or counted wrongly."""
        if not self._agenda.is_empty:
            raise InvariantError("an input has not been settled")
        check_programs(self._places, self._table)
