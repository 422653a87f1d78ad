"""BLIS's rules, where they differ from ours: to compare with its results (`flavour: blis`). This is the whole list.

Instances (the key `instance.flavour`; chosen by `compat/instance_rules.py`):

    what               ours                                      BLIS's
    clock              a step begins when all inputs of the      it begins in the turn of its instance, and its outcome is
                       instant are in; its outcome is there      there at once
                       when it ends
    admission to       when the whole prompt fits in the free    when the first chunk fits
    the batch          blocks
    a victim           keeps the tokens that it has emitted      starts its answer anew
    no block is free   victims leave until the others fit, all   if the victim is the sequence that needs the block, those
                       of which run                              admitted after it stand still in this step
    prompt cached      one token is computed                     nothing is computed; the blocks are not held, and may be
    as a whole                                                   evicted under it
    cached beginning   a latency model may charge the first      no time is charged
                       chunk for reading it
    last token         takes no block                            takes one, if one is free, and gives it back at once
    copies of a block  the first one answers; the block is       the last one answers; the block is forgotten with any of
                       forgotten with the last                   them
    blank blocks       are evicted before all others             take their turn in eviction
    main memory        none                                      a second tier of KV blocks (`kv_cpu_blocks`)
    prefix cache       can be off, or SGLang's radix cache       always on, block by block
    drivers            an event for a delay that takes time;     an event for each delay; an instance finds out itself that
                       a request that can never run is refused   a request can never run; routers see idle instances until
                       at once; routers see the instances        the first interval of the snapshots has passed
    not with BLIS                                                `async_scheduling`; prefill and decode in different
                                                                 instances

Flow control (the key `admission.flavour`; chosen by `admission/terms/presets.py`; the preset is here, `ADMISSION`):

    bands              all that have a name exist from the       a band exists once a request has waited in it, so the
                       start                                     ceilings of the bands depend on what came before
    order of bands     `dispatch_order`                          priority, whatever `dispatch_order` says
    within a band      `global-strict` has one queue for all     first a tenant is chosen, and then its next request
                       tenants
    saturation         a request on its way to an instance       it does not count, so too many enter
                       counts
    let in             all that may enter                        one request for each arrival and each tick
    detector           `concurrency`, if none is given           `never`, if none is given

Step times do not depend on the flavour: docs/latency.md says where ours differ from BLIS's.

    instance.py        the clock
    batch.py           what fits in a step, and which sequence gives way
    block_manager.py   which blocks a sequence holds
    tiered_blocks.py   the same, with main memory as a second tier
    block_pool.py      what the blocks remember
"""

from __future__ import annotations

from typing import Final

from maitred.admission.terms.flow_config import FairnessPolicy
from maitred.admission.terms.presets import AdmissionPreset, FlowControlPreset

ADMISSION: Final = AdmissionPreset(
    retries_victims=False,
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
    ),
)
