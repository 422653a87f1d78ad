"""Programs: may the agent program of a request hold KV memory now, and at which backend? See `core`."""

from maitred.programs.acting_estimators import ACTING_ESTIMATORS, ActingEstimator, ToolTimes
from maitred.programs.adoption import ProgramRecord, record_of
from maitred.programs.backend_memory import BackendMemory
from maitred.programs.config import ProgramsConfig
from maitred.programs.core import Programs
from maitred.programs.enums import BackendStatus, ProgramAction, ProgramDecision, ProgramReason, ProgramState, ProgramStatus
from maitred.programs.program import Program, ProgramKey, ProgramRequest, Usage
from maitred.programs.replay import RecordedPrograms, replay
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
    "RecordedPrograms",
    "ToolTimes",
    "Usage",
    "record_of",
    "replay",
]
