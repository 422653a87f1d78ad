"""Flow control: requests wait in front of the fleet while it is saturated, and go in by urgency and fairly by tenant.

The Gateway API Inference Extension (llm-d) works so, and BLIS simulates it. See `pool` for how it decides.

    config.py      the keys of `admission.flow_control`
    detectors.py   how saturated are the instances?
    band.py        who waits at one priority: a line for all, or one for each tenant in turn
    gate.py        all bands: which may go in at a saturation, and who of them is next
    sight.py       what is seen of the instances, and how many are on the way to them unseen
    dispatcher.py  over all models, who goes in
    victims.py     whose work may be stopped for one that is more urgent
    rules.py       the configuration, resolved
    pool.py        FlowPool: the same machine to the core as a pool with classes
"""

from __future__ import annotations
