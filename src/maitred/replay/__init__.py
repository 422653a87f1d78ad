"""Run a decision log again: the cores of all rooms take their inputs once more, and write another log.

    maitred.replay.replay(path.read_bytes().splitlines(), DecisionLog(again.append))

The second log equals the first, byte for byte, because a log has everything on which decisions depend: that what was simulated
is what runs can be shown so, and an incident be taken apart at leisure. Only seals are not written again: whoever writes the
file adds them. `core.decisions` says what the lines are, and `core.replay` how they are run; here stands only how each core is
made.

    reading   the lines of a log: what each is, and its seals
    verify    compares what the cores decide with what the log says they decided
    moves     what requests did in queues; holdings: what held the slots meanwhile
    narrator  follows what cores are told and decide, and knows the story of each request
    narrated_log   the log that a narrator listens to
    story     a story as data and in sentences
    why       stories from a log; what the slowest requests waited for
    state     what a core looks like, for people
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import maitred.compat  # noqa: F401 - the configurations in a log may have the flavours of other systems
from maitred.admission import Admission, no_load
from maitred.admission import inputs as admission
from maitred.admission.learned_slots import SlotController
from maitred.admission.learned_slots import inputs as slots
from maitred.core.decisions import DecisionLog
from maitred.core.replay import LoggedRoom, replay_rooms
from maitred.programs import Programs
from maitred.programs import inputs as programs
from maitred.routing import inputs as routing
from maitred.routing.core import RecordedRouter


def _open_admission(given: admission.Open, log: DecisionLog) -> Admission:
    return Admission(given.config, given.pools, no_load, log, given.at)  # It is told what it reads: `admission.Look`.


def _open_programs(given: programs.Open, log: DecisionLog) -> Programs:
    return Programs(given.config, given.at, log)


def _open_slots(given: slots.Open, log: DecisionLog) -> SlotController:
    return SlotController(given.start, given.most, given.least, backend=given.backend, log=log)


def _open_routing(given: routing.Open, log: DecisionLog) -> RecordedRouter:
    return RecordedRouter(given, log)


ROOMS: Final = (
    LoggedRoom(admission.ROOM_NAME, admission.AdmissionInput, _open_admission),
    LoggedRoom(programs.ROOM_NAME, programs.ProgramsInput, _open_programs),
    LoggedRoom(slots.ROOM_NAME, slots.SlotsInputs, _open_slots),
    LoggedRoom(routing.ROOM_NAME, routing.RoutingInput, _open_routing),
)


def replay(lines: Iterable[bytes], log: DecisionLog) -> None:
    """Run the inputs in `lines` (as a DecisionLog writes them) again, and write a new log. Raises as `replay_rooms` does."""
    replay_rooms(lines, log, ROOMS)
