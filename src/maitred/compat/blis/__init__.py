"""BLIS's rules, where they differ from ours: to compare with its results (`flavour: blis`).

    clock      the outcome of a step is there when the step begins, and a step begins in its instance's turn
    batch      the first chunk of a prompt must fit whole; a sequence that lacks a block stalls; a victim starts anew
    blocks     the last copy of a block answers; a prompt may be cached as a whole; main memory can be a second tier
    admission  saturation is measured and the queue is served as in BLIS's own flow control

The heads of the files say each rule in full. `compat/instance_rules.py` chooses those of instances (the key
`instance.flavour`), `admission/presets.py` those of admission (`admission.flavour`), which are here (`ADMISSION`):

BLIS creates a band when a request first waits in it, so the ceilings of the bands depend on what came before. It serves
bands by priority, whatever `dispatch_order` says. Within a band it first chooses a tenant, and then the next request of
this tenant. It looks at the instances alone: a request on its way to an instance does not count, so that too many
enter.

instance.py        when steps begin, and when their outcome is there
batch.py           what fits in a step, and which sequence gives way
block_manager.py   which blocks a sequence holds
tiered_blocks.py   the same, with main memory as a second tier
block_pool.py      what the blocks remember
"""

from __future__ import annotations

from typing import Final

from maitred.admission.flow_config import FairnessPolicy
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
