"""BLIS's flow control, where it differs from ours.

BLIS creates a band when a request first waits in it, so the ceilings of the bands depend on what came before. It serves
bands by priority, whatever `dispatch_order` says. Within a band it first chooses a tenant, and then the next request of
this tenant. It looks at the instances alone: a request on its way to an instance does not count, so that too many
enter.
"""

from __future__ import annotations

from typing import Final

from maitred.admission.flow_control_config import FairnessPolicy
from maitred.admission.presets import AdmissionPreset, FlowControlPreset

ADMISSION: Final = AdmissionPreset(
    flow_control=FlowControlPreset(
        detector="never",
        dispatch="one",
        serves_by_priority=True,
        fairness={
            "global-strict": FairnessPolicy.OLDEST_TENANT,
            "round-robin": FairnessPolicy.ROUND_ROBIN_RESTARTING,
        },
        creates_all_bands=False,
        counts_unseen_in_flight=False,
    )
)
