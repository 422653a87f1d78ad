"""The presets of other systems, by the name of their flavour: what `maitred.compat` adds to those that the rooms have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from maitred.admission.terms.presets import AdmissionPreset, Flavour
from maitred.compat import blis, smg

ADMISSION_PRESETS: Final[Mapping[Flavour, AdmissionPreset]] = {"smg": smg.ADMISSION, "blis": blis.ADMISSION}
"""For the key `admission.flavour`."""
