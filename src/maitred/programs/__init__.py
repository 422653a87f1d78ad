"""Programs: may the agent program of a request hold KV memory now, and at which backend?

core.py                  Programs: the inputs and their answers
core_views.py            what can be read of it between two inputs
inputs.py                the inputs as data, as a log has them
agenda.py                what an input has left to settle; passes.py: the passes that settle it, and the tick
places.py                every change of a program's state: place, pause, resume, wait, forget
departures.py            programs that leave: their backend, the queue, the table
model_pool.py            which paused programs of a model are resumed, and for which others are paused
placement.py             which paused programs fit now, and where; paused_programs.py: their order
victims.py               which programs of a backend are paused when they need more than it has
backend_memory.py        the memory of one backend and who holds it; backend_table.py: all backends
program.py               a program and its requests; program_table.py: all of them, and when each is forgotten
idle_contexts.py         the contexts of a program that no request is using
acting_estimators.py     how many tokens count while a tool works; token_estimator.py: tokens from characters
adoption.py              what outlives a core, and how another one takes it over
config.py, rules.py      the keys of the section `programs`; what differs by flavour
enums.py, invariants.py  states, actions and reasons; what is always true
"""

from maitred.programs.acting_estimators import ACTING_ESTIMATORS, ActingEstimator, ToolTimes
from maitred.programs.adoption import ProgramRecord, record_of
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.config import ProgramsConfig
from maitred.programs.core import Programs
from maitred.programs.enums import BackendStatus, ProgramAction, ProgramDecision, ProgramPhase, ProgramReason, ProgramState
from maitred.programs.program import Program, ProgramKey, ProgramRequest, Usage
from maitred.programs.token_estimator import PROGRESS_TOKENS

__all__ = [
    "ACTING_ESTIMATORS",
    "PROGRESS_TOKENS",
    "ActingEstimator",
    "BackendMemory",
    "BackendStatus",
    "Program",
    "ProgramAction",
    "ProgramDecision",
    "ProgramKey",
    "ProgramPhase",
    "ProgramReason",
    "ProgramRecord",
    "ProgramRequest",
    "ProgramState",
    "Programs",
    "ProgramsConfig",
    "ToolTimes",
    "Usage",
    "record_of",
]
