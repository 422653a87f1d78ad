"""Stages: what stands between the arrival of a request and its instance, beside the router.

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

from maitred.sim.admission_driver import AdmissionDriver
from maitred.sim.config import RequestDelays
from maitred.sim.disaggregation import Disaggregation
from maitred.sim.failures import Failures
from maitred.sim.fleet_scaler import FleetScaler
from maitred.sim.programs_driver import ProgramsDriver
from maitred.sim.slot_learning import SimulatedSlots


class Stages:
    """The stages of a pipeline. None: there is no such stage, and the next one follows at once."""

    def __init__(
        self,
        delays: RequestDelays,
        admission: AdmissionDriver | None = None,
        programs: ProgramsDriver | None = None,
        disaggregation: Disaggregation | None = None,
        slots: SimulatedSlots | None = None,
        failures: Failures | None = None,
        scaler: FleetScaler | None = None,
    ) -> None:
        """Without `admission` every request may enter, and without `programs` every one may hold memory; `programs` is then the
        router, too. Without `disaggregation` every instance does prefill and decode. Without `slots` they are told,
        without `failures` no instance fails, and without `scaler` they stay as many."""
        self.delays = delays
        self.admission = admission
        self.programs = programs
        self.disaggregation = disaggregation
        self.slots = slots
        self.failures, self.scaler = failures, scaler
        self.fleet_is_fixed: bool = (failures or scaler) is None
        """Whether the same instances serve throughout."""
        self.take_no_time: bool = (admission or programs or disaggregation) is None and delays == RequestDelays()
        """Whether a request is in an instance within the event of its arrival."""
        self.want_first_tokens: bool = (admission or programs or slots) is not None
        """Whether any of them waits for first tokens."""
