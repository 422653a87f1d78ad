"""Shadow: the cores of all rooms under other rules, fed with what the cores in force are told."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from maitred.admission import AdmissionConfig
from maitred.admission.inputs import ROOM_NAME as ADMISSION
from maitred.core.decisions import Input
from maitred.core.units import Micros
from maitred.programs import ProgramsConfig
from maitred.programs.inputs import ROOM_NAME as PROGRAMS
from maitred.routing import RoutingConfig
from maitred.routing.inputs import ROOM_NAME as ROUTING
from maitred.shadow.admission import AdmissionShadow
from maitred.shadow.disagreements import Disagreement, ShadowKind
from maitred.shadow.programs import ProgramsShadow
from maitred.shadow.routing import RoutingShadow

EXAMPLES: Final = 20
"""Disagreements of each kind that are kept, the newest ones."""


class ShadowRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a shadow goes by."""

    name: str
    """The file that says so."""
    admission: AdmissionConfig
    routing: RoutingConfig
    programs: ProgramsConfig


class Shadow:
    """Decides beside the cores in force."""

    def __init__(self, rules: ShadowRules, routing: RoutingConfig) -> None:
        """`routing` is in force. Raises ConfigError for rules of which no core can be made."""
        self.rules = rules
        self._admission = AdmissionShadow(rules.admission)
        self._rooms: Mapping[str, AdmissionShadow | ProgramsShadow | RoutingShadow] = {
            ADMISSION: self._admission,
            **({ROUTING: RoutingShadow(rules.routing, routing)} if rules.routing != routing else {}),
            **({PROGRAMS: ProgramsShadow(rules.programs)} if rules.programs.mode != "off" else {}),
        }
        self.counts: Counter[ShadowKind] = Counter(dict.fromkeys(ShadowKind, 0))
        """Disagreements by kind."""
        self.examples: dict[ShadowKind, deque[Disagreement]] = {kind: deque(maxlen=EXAMPLES) for kind in ShadowKind}

    @property
    def rooms(self) -> Collection[str]:
        """The rooms that are compared."""
        return self._rooms.keys()

    def use(self, rules: ShadowRules) -> None:
        """Go by other rules, from the next `Reconfigure` of the cores in force on. Routers, and the mode of programs, stay."""
        self.rules = rules
        self._admission.config = rules.admission
        programs = self._rooms.get(PROGRAMS)
        if isinstance(programs, ProgramsShadow) and rules.programs.mode == programs.config.mode:
            programs.config = rules.programs

    def compared(self) -> dict[str, int]:
        """Return how many decisions in force were compared, by room."""
        return {name: room.num_compared for name, room in self._rooms.items()}

    def lacks(self) -> dict[str, str]:
        """Return by room the facts that its shadow would read and the core in force does not: they cannot be compared there."""
        return {name: room.lacks for name, room in self._rooms.items() if room.lacks}

    def take(self, room: str, given: Input, decisions: Sequence[Any]) -> None:
        """Tell the shadow an input that a core in force has taken with these decisions. Raises what a plug-in raises."""
        shadow: Any = self._rooms.get(room)
        if shadow is None:
            return
        for found in shadow.take(given, decisions):
            self.counts[found.kind] += 1
            self.examples[found.kind].append(found)

    def begin_from(self, cores: Mapping[str, Any], at: Micros) -> None:
        """Go on from the state of the cores in force, by room, after inputs that the shadow was not told of. Raises what a
        plug-in raises."""
        for name, room in self._rooms.items():
            if name in cores and not isinstance(room, RoutingShadow):
                room.begin_from(cores[name], at)
