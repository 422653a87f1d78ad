"""Replay: a core that writes its inputs and decisions to a log, and a function that runs such a log again.

A log has everything on which decisions depend: how the core was created, and each input. A second run takes the same decisions,
byte for byte. An `advance` with nothing due is left out. One at which a tick decided nothing is not, because the next line may
be a `progress`, which settles nothing that was due before it: the tick would see its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from maitred.core.decisions import DecisionLog, refuse_gap
from maitred.core.request import RequestId
from maitred.core.units import Micros
from maitred.programs.adoption import ProgramRecord
from maitred.programs.config import ProgramsConfig
from maitred.programs.core import Programs
from maitred.programs.enums import BackendStatus, ProgramDecision
from maitred.programs.program import ProgramRequest, Usage

LOG_ROOM: Final = "programs"


class RecordedPrograms(Programs):
    """A Programs that writes its inputs and decisions to `log`."""

    def __init__(self, config: ProgramsConfig, log: DecisionLog, now: Micros = 0) -> None:
        self._log = log
        log.log_input(LOG_ROOM, "open", now, config=config)
        super().__init__(config, now)

    def _record(self, verb: str, now: Micros, decisions: Sequence[ProgramDecision], **what: Any) -> Sequence[ProgramDecision]:
        self._log.log_input(LOG_ROOM, verb, now, **what)
        self._log.log_decisions(LOG_ROOM, decisions)
        return decisions

    def begin(self, request: ProgramRequest, now: Micros) -> Sequence[ProgramDecision]:
        return self._record("begin", now, super().begin(request, now), request=request)

    def progress(self, request_id: RequestId, tokens: int, now: Micros) -> None:
        super().progress(request_id, tokens, now)
        self._record("progress", now, (), id=request_id, tokens=tokens)

    def end(self, request_id: RequestId, usage: Usage | None, now: Micros) -> Sequence[ProgramDecision]:
        return self._record("end", now, super().end(request_id, usage, now), id=request_id, usage=usage)

    def move(self, request_id: RequestId, now: Micros) -> Sequence[ProgramDecision]:
        return self._record("move", now, super().move(request_id, now), id=request_id)

    def release(self, tenant: str, name: str, now: Micros) -> tuple[bool, Sequence[ProgramDecision]]:
        found, decisions = super().release(tenant, name, now)
        return found, self._record("release", now, decisions, tenant=tenant, name=name)

    def adopt(self, records: Sequence[ProgramRecord], now: Micros) -> Sequence[ProgramDecision]:
        return self._record("adopt", now, super().adopt(records, now), records=records)

    def set_backend(
        self,
        index: int,
        now: Micros,
        *,
        models: Collection[str],
        status: BackendStatus = BackendStatus.UP,
        capacity: int | None = None,
        shared_tokens: int = 0,
    ) -> Sequence[ProgramDecision]:
        known: dict[str, Any] = {"status": status, "capacity": capacity, "shared_tokens": shared_tokens}
        decisions = super().set_backend(index, now, models=models, **known)
        return self._record("set_backend", now, decisions, index=index, models=list(models), **known)

    def reconfigure(self, config: ProgramsConfig, now: Micros) -> Sequence[ProgramDecision]:
        return self._record("reconfigure", now, super().reconfigure(config, now), config=config)

    def advance(self, now: Micros) -> Sequence[ProgramDecision]:
        due = self.next_deadline()
        decisions = super().advance(now)
        return decisions if due is None or due > now else self._record("advance", now, decisions)


def replay(lines: Iterable[bytes], log: DecisionLog) -> None:
    """Run the inputs of programs in `lines` (as a DecisionLog writes them) again, and write a new log. Decisions, and lines of
    other packages, are skipped. Raises ValueError if the inputs do not begin with `open`, and where lines are
    missing."""
    core: RecordedPrograms | None = None
    for line in lines:
        entry = msgspec.json.decode(line)
        refuse_gap(entry)
        if entry["room"] != LOG_ROOM or "input" not in entry:
            continue
        if entry["input"] == "open":
            core = RecordedPrograms(_decode_config(entry), log, entry["at"])
        elif core is None:
            raise ValueError("the log does not say how this core was made")
        else:
            _REPLAYERS[entry["input"]](core, entry)


def _decode_config(entry: dict[str, Any]) -> ProgramsConfig:
    return msgspec.convert(entry["config"], ProgramsConfig)


def _set_backend(core: RecordedPrograms, entry: dict[str, Any]) -> None:
    core.set_backend(
        entry["index"],
        entry["at"],
        models=entry["models"],
        status=BackendStatus(entry["status"]),
        capacity=entry["capacity"],
        shared_tokens=entry["shared_tokens"],
    )


_REPLAYERS: Final[Mapping[str, Callable[[RecordedPrograms, dict[str, Any]], object]]] = {
    "begin": lambda core, e: core.begin(msgspec.convert(e["request"], ProgramRequest), e["at"]),
    "progress": lambda core, e: core.progress(e["id"], e["tokens"], e["at"]),
    "end": lambda core, e: core.end(e["id"], msgspec.convert(e["usage"], Usage | None), e["at"]),
    "move": lambda core, e: core.move(e["id"], e["at"]),
    "release": lambda core, e: core.release(e["tenant"], e["name"], e["at"]),
    "adopt": lambda core, e: core.adopt(msgspec.convert(e["records"], list[ProgramRecord]), e["at"]),
    "set_backend": _set_backend,
    "reconfigure": lambda core, e: core.reconfigure(_decode_config(e), e["at"]),
    "advance": lambda core, e: core.advance(e["at"]),
}
