"""The inputs of the programs as data: one struct for each method of `Programs` that is one. See `core.decisions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from maitred.core.decisions import Input
from maitred.core.request import RequestId
from maitred.programs.adoption import ProgramRecord
from maitred.programs.config import ProgramsConfig
from maitred.programs.enums import BackendStatus, ProgramDecision
from maitred.programs.program import ProgramRequest, Usage

if TYPE_CHECKING:
    from maitred.programs.core import Programs

ROOM_NAME: Final = "programs"


class Open(Input, frozen=True):
    """A core is made."""

    config: ProgramsConfig


class Begin(Input, frozen=True):
    """A request comes."""

    request: ProgramRequest

    def apply_to(self, core: Programs) -> Sequence[ProgramDecision]:
        return core.begin(self.request, self.at)


class Progress(Input, frozen=True):
    """Tokens of a response have come."""

    id: RequestId
    tokens: int

    def apply_to(self, core: Programs) -> Sequence[ProgramDecision]:
        core.progress(self.id, self.tokens, self.at)
        return ()


class End(Input, frozen=True):
    """A request has ended."""

    id: RequestId
    usage: Usage | None

    def apply_to(self, core: Programs) -> Sequence[ProgramDecision]:
        return core.end(self.id, self.usage, self.at)


class Move(Input, frozen=True):
    """The backend of a request has failed it."""

    id: RequestId

    def apply_to(self, core: Programs) -> Sequence[ProgramDecision]:
        return core.move(self.id, self.at)


class Release(Input, frozen=True):
    """The client is done with a program."""

    tenant: str
    name: str

    def apply_to(self, core: Programs) -> Sequence[ProgramDecision]:
        return core.release(self.tenant, self.name, self.at)


class Adopt(Input, frozen=True):
    """Another core has known these programs."""

    records: Sequence[ProgramRecord]

    def apply_to(self, core: Programs) -> Sequence[ProgramDecision]:
        return core.adopt(self.records, self.at)


class SetBackend(Input, frozen=True):
    """What is known of a backend now."""

    index: int
    models: list[str]
    status: BackendStatus
    capacity: int | None
    shared_tokens: int

    def apply_to(self, core: Programs) -> Sequence[ProgramDecision]:
        return core.set_backend(
            self.index,
            self.at,
            models=self.models,
            status=self.status,
            capacity=self.capacity,
            shared_tokens=self.shared_tokens,
        )


class Reconfigure(Input, frozen=True):
    """There are other rules."""

    config: ProgramsConfig

    def apply_to(self, core: Programs) -> Sequence[ProgramDecision]:
        return core.reconfigure(self.config, self.at)


class Advance(Input, frozen=True):
    """Time has passed."""

    def apply_to(self, core: Programs) -> Sequence[ProgramDecision]:
        return core.advance(self.at)


ProgramsInput: TypeAlias = Open | Begin | Progress | End | Move | Release | Adopt | SetBackend | Reconfigure | Advance
