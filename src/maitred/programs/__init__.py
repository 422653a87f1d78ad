"""Programs: may the agent program of a request hold KV memory now, and at which backend?

core.py                  Programs: the inputs and their answers
inputs.py                the inputs as data, as a log has them
places.py                every change of a program's state, and the passes that make room and use it: pause, mark, resume
model_pool.py            which programs of a model are paused for want of memory, and for the one that has waited longest
placement.py             which paused programs fit now, and where; waiting_programs.py: their order
backend_memory.py        the memory of one backend and who holds it; backend_table.py: all backends
departures.py            programs that leave: their backend, the queue, the table
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
from maitred.programs.enums import BackendStatus, ProgramAction, ProgramDecision, ProgramReason, ProgramState, ProgramStatus
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
    "ProgramReason",
    "ProgramRecord",
    "ProgramRequest",
    "ProgramState",
    "ProgramStatus",
    "Programs",
    "ProgramsConfig",
    "ToolTimes",
    "Usage",
    "record_of",
]
