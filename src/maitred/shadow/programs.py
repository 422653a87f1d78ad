"""The shadow's core of programs: it is told of the same requests, ends, tokens and backends.

What is compared is whether a program is paused, after each input that either core has decided on it. A program that is told of
is told again when both have agreed meanwhile. Programs without an id are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from maitred.core.copying import CannotCopyError
from maitred.core.units import Micros
from maitred.programs import ProgramAction, ProgramDecision, Programs, ProgramsConfig
from maitred.programs.enums import BackendStatus, ProgramState
from maitred.programs.inputs import Begin, Open, ProgramsInput, Reconfigure, SetBackend
from maitred.programs.program import ProgramKey
from maitred.shadow.disagreements import Disagreement, ShadowKind


class ProgramsShadow:
    """One core of programs beside another."""

    lacks = ""

    def __init__(self, config: ProgramsConfig) -> None:
        """Raises ConfigError for an estimator that is unknown."""
        self.config = config
        self._core = Programs(config)
        self._real: dict[int, ProgramKey] = {}
        """The programs by their serial numbers in force."""
        self._own: dict[int, ProgramKey] = {}
        """And by those in the shadow."""
        self._here: set[ProgramKey] = set()
        """The programs in force."""
        self._paused: set[ProgramKey] = set()
        """Those that are paused in force."""
        self._told: set[ProgramKey] = set()
        self.num_compared = 0

    def take(self, given: ProgramsInput, decisions: Sequence[ProgramDecision]) -> list[Disagreement]:
        """Tell the shadow an input that the core in force has taken with these decisions."""
        if isinstance(given, Open):
            self._core = Programs(self.config, given.at)
            for table in (self._real, self._own, self._here, self._paused, self._told):
                table.clear()
            return []
        took = self._apply(given)
        if isinstance(given, Begin) and given.request.program:
            key = ProgramKey(given.request.tenant, given.request.program, given.request.model)
            if key not in self._here and any(each.request == given.request.id and each.program for each in decisions):
                self._here.add(key)
                self._paused.add(key)  # until one of the decisions gives it a place
            for table, decided in ((self._real, decisions), (self._own, took)):
                table.update({each.program: key for each in decided if each.request == given.request.id})
        touched = [*_named(self._real, decisions), *_named(self._own, took)]
        for decision in decisions:
            self._note(decision)
        self._forget(took)
        self.num_compared += len(decisions)
        reasons = {self._real.get(each.program): each for each in decisions}
        return [told for key in dict.fromkeys(touched) for told in self._compare(key, given.at, reasons.get(key))]

    def begin_from(self, real: Programs, at: Micros) -> None:
        """Go on from the state of the core in force, after inputs that the shadow was not told of. Where rules differ that
        cannot change while programs are known, they are met anew as their requests come."""
        for table in (self._real, self._own, self._here, self._paused, self._told):
            table.clear()
        for program in real.programs:
            if program.key.name:
                self._real[program.serial] = program.key
                self._here.add(program.key)
                if program.state is ProgramState.PAUSED:
                    self._paused.add(program.key)
        try:
            self.config.check_fixed(real.config)
            self._core, is_copy = real.copy(), True
        except (ValueError, CannotCopyError):
            self._core, is_copy = Programs(self.config, at), False
        if is_copy:
            self._own.update(self._real)
            if self.config != real.config:
                self._core.reconfigure(self.config, at)
        for each in real.backends:
            if not is_copy or self.config.backend_capacity_tokens not in (None, each.capacity):
                self._apply(SetBackend(at, each.index, list(each.models), each.status, each.capacity, each.shared_tokens))

    def _apply(self, given: ProgramsInput) -> Sequence[ProgramDecision]:
        if isinstance(given, Reconfigure):
            return self._core.reconfigure(self.config, given.at)
        tokens = self.config.backend_capacity_tokens
        if isinstance(given, SetBackend) and tokens is not None and given.status is not BackendStatus.DOWN:
            given = msgspec.structs.replace(given, capacity=tokens)
        return given.apply_to(self._core)

    def _note(self, decision: ProgramDecision) -> None:
        key = self._real.get(decision.program)
        if key is None:
            return
        if decision.action is ProgramAction.PAUSE:
            self._paused.add(key)
        elif decision.action in (ProgramAction.RESUME, ProgramAction.GRANT):
            self._paused.discard(key)
        elif decision.action is ProgramAction.END:
            for table in (self._paused, self._told, self._here):
                table.discard(key)
            del self._real[decision.program]

    def _forget(self, took: Sequence[ProgramDecision]) -> None:
        for decision in took:
            if decision.action is ProgramAction.END:
                self._own.pop(decision.program, None)

    def _compare(self, key: ProgramKey, at: Micros, decision: ProgramDecision | None) -> list[Disagreement]:
        own = next((each for each in self._core.find(key.tenant, key.name) if each.key == key), None)
        if own is None or key not in self._here:
            return []
        is_paused, shadow_pauses = key in self._paused, own.state is ProgramState.PAUSED
        if is_paused == shadow_pauses:
            self._told.discard(key)
            return []
        if key in self._told:
            return []
        self._told.add(key)
        rule = "" if decision is None else f" ({decision.action}: {decision.reason})"
        real, shadow = (("paused" if paused else "active") for paused in (is_paused, shadow_pauses))
        told = Disagreement(ShadowKind.PAUSE, at, None, key.name, key.tenant, key.model, real + rule, shadow)
        return [told]


def _named(known: Mapping[int, ProgramKey], decisions: Sequence[ProgramDecision]) -> list[ProgramKey]:
    return [known[each.program] for each in decisions if each.program in known]
