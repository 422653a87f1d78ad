"""The presets and rules of other systems, by their flavours: what `maitred.compat` adds to those that the rooms have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from maitred.admission.terms.presets import AdmissionPreset, Flavour
from maitred.compat import blis, smg, thunderagent
from maitred.programs.rules import ProgramRules, ProgramsFlavour

ADMISSION_PRESETS: Final[Mapping[Flavour, AdmissionPreset]] = {"smg": smg.ADMISSION, "blis": blis.ADMISSION}
"""For the key `admission.flavour`."""
PROGRAM_RULES: Final[Mapping[ProgramsFlavour, ProgramRules]] = {"thunderagent": thunderagent.PROGRAM_RULES}
"""For the key `programs.flavour`."""
